# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes src/nvml_unsupported.c: every function that pynvml calls and the simulator does not answer.

Run it by hand after a new nvidia-ml-py or a newly answered function: `python gen_unsupported.py`.
A test compares what it would write with what is there.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re

SOURCES = pathlib.Path(__file__).resolve().parent / "src"
TARGET = SOURCES / "nvml_unsupported.c"
LICENCE = """/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
"""
HEAD = """/* Made by gen_unsupported.py from the functions that pynvml calls: those without an answer of their own say
 * NOT_SUPPORTED, so that a client written for a newer driver runs as it does on a board that lacks the feature.
 * They are called with arguments that they do not look at.
 */
#include "api.h"

#define UNSUPPORTED(function) \\
    EXPORT nvmlReturn_t function(void); \\
    EXPORT nvmlReturn_t function(void) { \\
        OPEN(READ, "%s", ""); \\
        NEEDS(false, NVML_ERROR_NOT_SUPPORTED); \\
        return call_end(&c, r); \\
    }

"""


def called_by_pynvml() -> set[str]:
    """Names of the C functions that the installed pynvml looks up."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise SystemExit("pynvml is not installed; install nvidia-ml-py")
    text = pathlib.Path(spec.origin).read_text(encoding="utf-8")
    return set(re.findall(r"_nvmlGetFunctionPointer\(\s*[\"'](nvml\w+)[\"']", text))


def answered() -> set[str]:
    """Names that the C sources answer themselves."""
    names: set[str] = set()
    for path in sorted(SOURCES.glob("*.c")):
        if path != TARGET:
            text = path.read_text(encoding="utf-8")
            names |= set(re.findall(r"\bEXPORT [\w ]+[ *](nvml\w+)\(", text))
            names |= set(re.findall(r"^(?:NUMBER|WIDE|CLOCK|PROCESSES|ENGINE_LOAD)\((nvml\w+),", text, re.MULTILINE))
    return names


def content() -> str:
    """The text of the table as it should be."""
    missing = sorted(called_by_pynvml() - answered())
    return LICENCE + HEAD + "".join(f"UNSUPPORTED({name})\n" for name in missing)


if __name__ == "__main__":
    TARGET.write_text(content(), encoding="utf-8")
