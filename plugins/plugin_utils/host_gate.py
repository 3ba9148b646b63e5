# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""May any service run on this host? The rules of the gate that do not look at an image (docs/compat.md). Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat import judge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import CompatGpu, CompatImage, Finding, host_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts

# That nothing is known of an image's CUDA is all that it says where there is no image.
_OF_IMAGE = frozenset({"cuda-driver"})


def judge_host(facts: CompatFacts, catalogue: Catalogue, name: str, sensed: Mapping[str, t.Any], today: str | None) -> dict[str, list[str]]:
    """``no``: what keeps every service away; ``warn``: what may go wrong; one line each, with the remedy."""
    host = host_of(name, sensed, catalogue)
    result: dict[str, list[str]] = {"no": [], "warn": []}
    if not host.gpus and host.present:
        result["no"].append(f"{name}: the driver is loaded and finds no GPU; look at `nvidia-smi` and `dmesg`")
    for gpu in host.gpus or (CompatGpu("no GPU", None),):
        for found in judge(facts, host, gpu, CompatImage(""), today).findings:
            line = _line(name, gpu.board, found)
            kind = result["no" if found.effect == "no" else "warn"]
            if found.rule not in _OF_IMAGE and line not in kind:
                kind.append(line)
    return result


def _line(host: str, board: str, found: Finding) -> str:
    text = f"{host}: {board}: {found.message} ({found.rule})"
    return f"{text}; {found.remedy}" if found.remedy else text
