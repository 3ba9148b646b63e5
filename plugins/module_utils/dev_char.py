# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links ``/dev/char/MAJOR:MINOR`` to NVIDIA's device nodes, which its driver does not make.

systemd and some releases of runc find a device by them when a container's device rules are written again
(NVIDIA/nvidia-container-toolkit issue 48). ``nvidia-ctk system create-dev-char-symlinks`` makes the same.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

_DIRECTORY_MODE = 0o755


def missing(dev_root: Path) -> dict[str, str]:
    """What each link that is not there, or leads elsewhere, has to lead to; links and targets are paths, by link."""
    found = {}
    for node in sorted([*dev_root.glob("nvidia*"), *dev_root.glob("nvidia-caps/nvidia-cap*")]):
        try:
            status = node.stat()
        except OSError:
            continue
        if not stat.S_ISCHR(status.st_mode):
            continue
        link = dev_root / "char" / f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        try:
            right = os.path.samestat(link.stat(), status)
        except OSError:
            right = False
        if not right:
            found[str(link)] = os.path.relpath(node, link.parent)
    return found


def make(links: dict[str, str]) -> None:
    """Make them, each all at once. FleetError when one cannot be made."""
    for link, target in links.items():
        place = Path(link)
        temporary = place.with_name(f"{place.name}.gpuops-new")
        try:
            place.parent.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target)
            os.replace(temporary, place)
        except OSError as error:
            raise FleetError(f"cannot make {link}: {error.strerror}") from error
