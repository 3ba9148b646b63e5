# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a compose file needs beside its template: safe values, health checks, and a judgement by the specification's schema.

Pure: text and plain data in, text and plain data out. Whoever calls brings the schema.
"""

from __future__ import annotations

import json
import re
import shlex
import typing as t

import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

if t.TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

# Characters that JSON leaves as they are and YAML does not take, or takes for a line break.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")

# Where a template writes why it refuses what it was given: a list of lines. Compose itself passes over names that begin with x-.
REFUSED = "x-gpuops-refused"

Data = t.Mapping[str, t.Any]


def compose_value(value: t.Any) -> str:
    """Write plain data so that YAML reads back the same data and Compose interpolates nothing in it.

    JSON is a part of YAML except for a few characters, which are escaped. Compose expands ``$NAME`` in every string;
    ``$$`` is its way to write a dollar sign, so an owner's text can never reach for the host's environment.
    """
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found.group()):04x}", text).replace("$", "$$")


def volume_source(source: str, models_dir: str) -> str:
    """Where a volume comes from on the host: an absolute source is that, a relative one lies below the model store."""
    return source if source.startswith("/") else f"{models_dir.rstrip('/')}/{source}"


def mps_environment(manifest: Data, mps: Data) -> dict[str, str]:
    """What a client of an MPS daemon needs (``mps``: an entry of RV(daemons) of module mps, empty for none), and its own limits.

    The one device that it sees has the number 0. Sources: manual of nvidia-cuda-mps-control 535, NVIDIA's MPS documentation.
    """
    if not mps:
        return {}
    values = {"CUDA_MPS_PIPE_DIRECTORY": str(mps["pipe"])}
    if manifest["need_mib"]:
        values["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={manifest['need_mib']}M"
    if manifest["gpu"]["compute"]:
        values["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{manifest['gpu']['compute'] * 100:g}"
    return values


def mps_volumes(mps: Data) -> list[dict[str, t.Any]]:
    """The mounts that a client of an MPS daemon needs: its pipes, which both write, and the memory that all of them share."""
    if not mps:
        return []
    return [
        {"source": mps["pipe"], "target": mps["pipe"], "read_only": False},
        {"source": mps["shm"], "target": "/dev/shm", "read_only": False},
    ]


def health_command(url: str, seconds: int = 10) -> str:
    """One shell line that is true when the GPU is still there and the address answers within ``seconds``.

    A container can lose its GPU while its server goes on answering (nvidia-container-toolkit issues 48, 251, 1227), so the GPU is asked
    first where the image has nvidia-smi. Images differ in what can fetch an address: curl, wget or Python, whichever is there.
    """
    quoted = shlex.quote(url)
    python = shlex.quote(f"import sys; from urllib import request as web; web.build_opener().open(sys.argv[1], timeout={seconds})")
    return (
        "if command -v nvidia-smi >/dev/null; then nvidia-smi -L | grep -q UUID || exit 1; fi; "
        f"if command -v curl >/dev/null; then exec curl -fsS -m {seconds} -o /dev/null {quoted}; fi; "
        f"if command -v wget >/dev/null; then exec wget -q -T {seconds} -O /dev/null {quoted}; fi; "
        f"exec python3 -c {python} {quoted}"
    )


def compose_problems(text: str, schema: Data) -> list[str]:
    """What is wrong with a compose file, one line each, the place first; [] when the Compose specification's schema accepts it.

    What its template refuses comes alone: the rest of the file is of no use then.
    Raises FleetError when the package jsonschema is not installed.
    """
    try:
        import jsonschema  # here: every task of a play reads this file, and few check a compose file
    except ImportError as error:
        wrong = "cannot check a compose file: the Python package jsonschema is not installed"
        raise FleetError(wrong, hint="pip install jsonschema") from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        return [f"{line}not YAML: {getattr(error, 'problem', None) or error}"]
    if not isinstance(data, dict):
        return ["not a mapping of services"]
    if data.get(REFUSED):
        return [str(line) for line in data[REFUSED]]
    # The most telling reason below each.
    errors = [jsonschema.exceptions.best_match([error]) or error for error in jsonschema.Draft202012Validator(schema).iter_errors(data)]
    places = [tuple(error.absolute_path) for error in errors]
    return sorted({_words(error) for error in errors if not _consequence(error, places)})


def _consequence(error: ValidationError, places: t.Sequence[tuple[str | int, ...]]) -> bool:
    """True when one wrong field made the validator give up on all of its neighbours: only the field itself is worth a line."""
    place = tuple(error.absolute_path)
    below = any(len(other) > len(place) and other[: len(place)] == place for other in places)
    return error.validator == "unevaluatedProperties" and below


def _words(error: ValidationError) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    return f"{place or 'top level'}: {' '.join(str(error.message).split())}"
