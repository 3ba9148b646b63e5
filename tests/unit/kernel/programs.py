# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stand-ins in ``bin`` and ``vgpu_bin`` do: ``programs.py NAME ARGUMENT...``, on the tree that KERNEL_TREE names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from kernel import acts, tree, vgpu_programs


def modprobe(root: Path, arguments: list[str]) -> int:
    """Loads a driver of the kernel that is a tree of files."""
    name = arguments[-1]
    if name not in tree.hidden_of(root)["modules"]:
        print(f"modprobe: FATAL: Module {name} not found in directory /lib/modules/6.12.0", file=sys.stderr)
        return 1
    if "--dry-run" not in arguments:
        tree.load(root, name)
    return 0


if __name__ == "__main__":
    called, given = sys.argv[1], sys.argv[2:]
    if called == "tee":
        sys.exit(acts.main(given[0], sys.stdin.read()))
    play = {"modprobe": modprobe, "nvidia-smi": vgpu_programs.nvidia_smi, "sriov-manage": vgpu_programs.sriov_manage}[called]
    sys.exit(play(Path(os.environ["KERNEL_TREE"]), given))
