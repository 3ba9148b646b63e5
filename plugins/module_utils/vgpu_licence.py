# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The licence of a virtual machine's vGPUs, as ``nvidia-smi -q`` and the journal of ``nvidia-gridd`` have it. Reads, and changes nothing.

Sources: NVIDIA AI Enterprise, "vGPU for Compute licensing" (section "vGPU Software Licensed Product" of ``nvidia-smi -q``); older drivers
say "GRID Licensed Product". Words of "License Status" that were seen: ``Licensed (Expiry: 2023-1-31 11:32:22 GMT)``, ``Licensed``,
``Unlicensed``, ``Unlicensed (Unrestricted)`` within the time of grace, ``Unlicensed (Restricted)`` after it.
"""

from __future__ import annotations

import datetime
import re
import time
import typing as t
from collections.abc import Callable
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

ASK_SECONDS = 60.0
PAUSE_SECONDS = 2.0
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]+:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_FIELD = re.compile(r"^( +)(.+?)\s*(?::\s*(.*?)\s*)?$")
_PRODUCTS = ("vGPU Software Licensed Product", "GRID Licensed Product")
_EXPIRY = re.compile(r"\(Expiry: ([0-9: -]+) GMT\)")
# Three parts of a token: whatever a daemon writes into its journal, that must not go on.
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]{16,})+")
_TELLING = re.compile(r"licen[sc]e|token|server|error|fail|unable|invalid", re.IGNORECASE)
_WORDS = 200


@dataclass(frozen=True)
class Options:
    """See the options of module ``vgpu_licence_info``."""

    wait: float = 0.0
    require: bool = False
    nvidia_smi: str = "nvidia-smi"
    journalctl: str = "journalctl"
    unit: str = "nvidia-gridd.service"


def parse(text: str) -> list[dict[str, t.Any]]:
    """GPUs that want a licence, from the output of ``nvidia-smi -q``; those that want none, and whole GPUs of a host, are left out."""
    found: list[dict[str, t.Any]] = []
    pci, name, product, depth = "", None, None, 0
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            domain, rest = gpu.group(1).split(":", 1)
            pci, name, product = f"{int(domain, 16):04x}:{rest.lower()}", None, None
            continue
        field = _FIELD.match(line)
        if field is None or not pci:
            continue
        indent, key, value = len(field.group(1)), field.group(2), field.group(3)
        if product is not None and indent <= depth:
            product = None
        if key in _PRODUCTS:
            product, depth = "", indent
        elif product is not None and key == "Product Name":
            product = value or ""
        elif product is not None and key == "License Status":
            if value and value != "N/A":
                found.append(_line(pci, name, product, value))
            product = None
        elif key == "Product Name":
            name = value
    return found


def _line(pci: str, name: str | None, product: str, status: str) -> dict[str, t.Any]:
    expiry = _EXPIRY.search(status)
    try:
        moment = datetime.datetime.strptime(expiry.group(1), "%Y-%m-%d %H:%M:%S") if expiry else None  # GMT, which is written behind it
    except ValueError:
        moment = None
    return {
        "gpu": pci,
        "name": name,
        "product": product or None,
        "status": status,
        "licensed": status.split()[0].lower() == "licensed",
        "restricted": "(restricted)" in status.lower(),
        "expiry": f"{moment.isoformat()}Z" if moment else None,
    }


def look(options: Options, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> dict[str, t.Any]:
    """The module's result, once all are licensed or ``wait`` seconds are over.

    :raises FleetError: with ``require``, a GPU has no licence, none wants one, or nvidia-smi does not answer.
    """
    until = clock() + options.wait
    while True:
        try:
            gpus = parse(_asked(options.nvidia_smi))
        except FleetError as error:
            if options.require:
                raise
            return {"changed": False, "state": "unknown", "gpus": [], "problem": str(error), "words": None}
        without = [gpu for gpu in gpus if not gpu["licensed"]]
        left = until - clock()
        if (gpus and not without) or left <= 0:
            break
        sleep(min(PAUSE_SECONDS, left))
    words = _daemon_words(options) if without else None
    problem = _problem(gpus, options.wait, words)
    if problem and options.require:
        hint = "look at its clock, and whether it reaches the licence server; services go on" if without else "is this a guest with a vGPU?"
        raise FleetError(problem, hint=hint)
    state = "none" if not gpus else "unlicensed" if without else "licensed"
    return {"changed": False, "state": state, "gpus": gpus, "problem": problem, "words": words}


def _asked(program: str) -> str:
    done = run([program, "-q"], ASK_SECONDS, variables={"LC_ALL": "C"})
    if done.status != 0:
        raise FleetError(f"`{program} -q` failed: {done.words}", hint="is the driver loaded?")
    return done.output


def _problem(gpus: list[dict[str, t.Any]], wait: float, words: str | None) -> str | None:
    if not gpus:
        return "no GPU here wants a licence of NVIDIA's vGPU software"
    without = [f"{gpu['gpu']} ({gpu['name']}): {gpu['status']}" for gpu in gpus if not gpu["licensed"]]
    if not without:
        return None
    after = f" after {wait:g} s" if wait else ""
    return f"no licence{after} for {', '.join(without)}; {f'nvidia-gridd: {words}' if words else 'nvidia-gridd says nothing of it'}"


def _daemon_words(options: Options) -> str | None:
    """The last that nvidia-gridd said of it."""
    try:
        done = run([options.journalctl, "--unit", options.unit, "--boot", "--no-pager", "--output", "cat", "--lines", "50"], ASK_SECONDS)
    except FleetError:
        return None
    # What systemd says of the unit is no word of the daemon's.
    lines = [
        " ".join(line.split()) for line in done.output.splitlines() if not line.startswith(("Started ", "Starting ", "Stopp", options.unit))
    ]
    telling = next((line for line in reversed(lines) if _TELLING.search(line)), None)
    if telling is None:
        return None
    clean = _TOKEN.sub("...", telling)
    return clean if len(clean) <= _WORDS else f"{clean[:_WORDS]}..."
