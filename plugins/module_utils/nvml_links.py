# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs of a host NVLink joins: the NVML call, a part of :class:`nvml.Nvml`, and what its answers come to for each GPU.

nvmlDeviceGetP2PStatus is asked of each pair. It answers the question itself, whether the two reach each other over NVLink, whatever is
between them: a bridge, a board's own lines or NVSwitches. The calls for single links (nvmlDeviceGetNvLinkState and its like) name the
switch as the other end there, and so not the GPUs behind it.
"""

from __future__ import annotations

import itertools
import typing as t
from collections.abc import Callable, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Handle, NvmlError

# NVML_P2P_CAPS_INDEX_NVLINK and values of nvmlGpuP2PStatus_t (nvml.h). From 1 to 5 all say no, each for another reason; 6 is UNKNOWN.
_NVLINK = 2
_OK, _LAST_NO = 0, 5

Facts = dict[str, t.Any]


class LinkCalls:
    """A getter. It raises NvmlError when NVML refuses; None: this board or driver does not tell."""

    # These are Nvml's own.

    def _call(self, name: str, *args: t.Any, **kwargs: t.Any) -> t.Any:
        raise NotImplementedError

    def _maybe(self, *refusals: str, call: Callable[[], t.Any]) -> t.Any:
        raise NotImplementedError

    def nvlink(self, handle: Handle, other: Handle) -> bool | None:
        """Does NVLink join two GPUs, so that each can reach the memory of the other over it?"""
        status = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: self._call("nvmlDeviceGetP2PStatus", handle, other, _NVLINK))
        if status is None or not _OK <= int(status) <= _LAST_NO:
            return None
        return int(status) == _OK


def read_links(nvml: LinkCalls, gpus: Sequence[tuple[Facts, Handle]]) -> str | None:
    """Fill in ``nvlink`` of all GPUs (their facts so far, their handles): the PCI addresses of those that it is joined with; None where
    that is not known. Gives back the first refusal in words, if there was one.

    A GPU in MIG mode reaches no other GPU whatever joins them (MIG User Guide), so a no says nothing of how the two are joined: that GPU
    does not know then. The other one does not say that it is joined with it, which counts for nothing as long as one of them is None.
    """
    able = (index for index, (gpu, _handle) in enumerate(gpus) if gpu["pci"] is not None and gpu["state"] != "lost")
    peers: dict[int, list[str]] = {index: [] for index in able}
    unknown: set[int] = set()
    refusal = None
    for one, other in itertools.combinations(peers, 2):
        try:
            answer = nvml.nvlink(gpus[one][1], gpus[other][1])
        except NvmlError as error:
            answer, refusal = None, refusal or str(error)
        if answer:
            peers[one].append(gpus[other][0]["pci"])
            peers[other].append(gpus[one][0]["pci"])
        else:
            sliced = {each for each in (one, other) if (gpus[each][0]["mig"] or {}).get("current")}
            unknown |= sliced or ({one, other} if answer is None else set())
    for index, found in peers.items():
        gpus[index][0]["nvlink"] = None if index in unknown else sorted(found)
    return refusal
