# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters import what they need when they are called: ansible-core reads every filter file anew in the process of each task."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

REPOSITORY = Path(__file__).resolve().parents[2]
FILTERS = sorted(path.stem for path in (REPOSITORY / "plugins" / "filter").glob("*.py"))

# In a process of its own: this one has imported everything already.
READ_ALL = """
import importlib, json, sys
room = "ansible_collections.gpuops.fleet.plugins"
names = [name for stem in sys.argv[1:] for name in importlib.import_module(f"{room}.filter.{stem}").FilterModule().filters()]
found = sorted(name.removeprefix(f"{room}.plugin_utils.") for name in sys.modules if name.startswith(f"{room}.plugin_utils."))
heavy = sorted({"pydantic", "jsonschema", "numpy", "highspy"} & set(sys.modules))
print(json.dumps([sorted(names), found, heavy]))
"""


def test_reading_every_filter_file_imports_nothing_that_a_filter_needs() -> None:
    command = [sys.executable, "-c", READ_ALL, *FILTERS]
    done = subprocess.run(command, cwd=REPOSITORY / "collections", capture_output=True, text=True, check=True, timeout=60)
    names, found, heavy = json.loads(done.stdout)
    assert names == sorted(path.stem for path in (REPOSITORY / "plugins" / "filter").glob("*.yml"))
    assert (found, heavy) == (["late"], [])


def test_a_function_is_found_when_it_is_called() -> None:
    told = Late("views").unplaced_lines
    assert told([]) == []
    with pytest.raises(AttributeError, match="no_such_function"):
        Late("views").no_such_function()
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        Late("no_such_module").anything()


def test_what_python_asks_of_an_object_is_no_function_of_the_module() -> None:
    assert not hasattr(Late("views"), "__fspath__")
