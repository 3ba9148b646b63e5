# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVIDIA's driver does when the kernel that is a tree of files takes GPUs from it or gives them back: NVML loses or finds them.

``script`` makes a stand-in for ``tee`` that calls this file after each write that binds; ``CALLS`` are its own calls in the log of NVML.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pynvml

CALLS = ("nvmlDeviceModifyDrainState", "nvmlDeviceRemoveGpu", "nvmlDeviceDiscoverGpus")
HERE = Path(__file__).resolve().parent


def script(place: Path, *addresses: str) -> None:
    """Put that stand-in into a directory, for the GPUs at these addresses."""
    follow = f"{sys.executable} {HERE / 'follow.py'} {' '.join(addresses)}"
    write = f'{sys.executable} -E -S {HERE / "programs.py"} tee "$@" || exit $?'
    text = f'#!/bin/sh\n{write}\ncase "$1" in */unbind | */drivers_probe) exec {follow} ;; esac\n'
    (place / "tee").write_text(text, encoding="utf-8")
    (place / "tee").chmod(0o755)


def follow(root: Path, address: str) -> None:
    """Bring NVML to what the kernel has."""
    domain, bus, rest = address.split(":")
    pci = pynvml.nvmlPciInfo_t()
    pci.domain, pci.bus, pci.device = int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
    link = root / "sys/bus/pci/devices" / address / "driver"
    if link.is_symlink() and link.resolve().name == "nvidia":
        pynvml.nvmlDeviceDiscoverGpus(pci)
        return
    try:
        pynvml.nvmlDeviceModifyDrainState(pci, 1)
        pynvml.nvmlDeviceRemoveGpu(pci)
    except pynvml.NVMLError_InvalidArgument:
        pass  # it is gone already


if __name__ == "__main__":
    pynvml.nvmlInit()
    for name in sys.argv[1:]:
        follow(Path(os.environ["KERNEL_TREE"]), name)
