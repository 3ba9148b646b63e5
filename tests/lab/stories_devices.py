# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Acts of a host that gives devices, and parts of devices, to virtual machines."""

from __future__ import annotations

import typing as t
from collections.abc import Iterator

from lab import acts_boot, acts_passthrough, acts_vgpu
from lab.acts import told
from lab.guest import Guest
from lab.site import Site

Act = t.Callable[[Site, Guest], Iterator[str]]
ACTS: dict[str, Act] = {act.__name__: act for act in (*acts_passthrough.ACTS, *acts_vgpu.ACTS, *acts_boot.ACTS)}


def tell_acts(site: Site, names: t.Iterable[str]) -> Iterator[str]:
    """Acts, one after the other; each leaves the devices as it found them, and none needs another."""
    (guest,) = site.guests()
    for name in names:
        yield from told(name, ACTS[name](site, guest))


def devices(site: Site) -> Iterator[str]:
    """All of them."""
    yield from tell_acts(site, ACTS)
