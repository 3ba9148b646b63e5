# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of vGPU types: how they are spelled, and what they say. Pure.

``A100D-10C`` is a time-sliced type of 10 GB on board A100D, ``A100D-1-10C`` one that is backed by a GPU instance of one compute slice, and
``A100D-1-10CME`` by one with the media engines. Series: Q workstation, C compute, A applications, B desktops. Source: NVIDIA's user guide
of vGPU software, and vgpu-device-manager (pkg/types).
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

_TYPE = re.compile(
    r"(?P<board>[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z][A-Za-z0-9]*)*)-(?:(?P<slices>[1-9][0-9]?)-)?(?P<gb>[0-9]{1,4})(?P<series>[ACQ]|B4?)"
    r"(?P<attribute>MEALL|NOME|ME|GFX)?"
)
# What the attribute of a type is called at a MIG profile (vgpu-device-manager, pkg/types/mig.go; hosts.md of mig-parted's names).
ATTRIBUTES = {"ME": "+me", "NOME": "-me", "MEALL": "+me.all", "GFX": "+gfx"}
GRAPHICS = "GFX"


@dataclass(frozen=True)
class VgpuType:
    """What a name says. ``slices``: compute slices of the GPU instance that backs it, None for a time-sliced one. ``gb``: frame buffer."""

    board: str
    slices: int | None
    gb: int
    series: str
    attribute: str = ""

    def __str__(self) -> str:
        middle = "" if self.slices is None else f"{self.slices}-"
        return f"{self.board}-{middle}{self.gb}{self.series}{self.attribute}"

    @property
    def profile(self) -> str | None:
        """The MIG profile that it fills, as in ``1g.10gb+me``; None for a time-sliced type."""
        return None if self.slices is None else f"{self.slices}g.{self.gb}gb{ATTRIBUTES.get(self.attribute, '')}"

    @property
    def listed(self) -> str:
        """The name as a host lists it: that graphics are wished is said of the GPU instance, and not in the type's name."""
        return str(self).removesuffix(GRAPHICS) if self.attribute == GRAPHICS else str(self)


def parse(name: str) -> VgpuType | None:
    """What a type's name says, short or as a host spells it (``NVIDIA A100D-10C``); None for a name of another form."""
    words = name.split()
    found = _TYPE.fullmatch(words[-1]) if words else None
    if found is None or (found["attribute"] and not found["slices"]):
        return None
    slices = None if found["slices"] is None else int(found["slices"])
    return VgpuType(found["board"], slices, int(found["gb"]), found["series"], found["attribute"] or "")


def short(name: str) -> str:
    """``NVIDIA A100D-10C`` -> ``A100D-10C``; a name of another form stays as it is."""
    kind = parse(name)
    return name.strip() if kind is None else str(kind)


def meant(name: str, known: Iterable[str]) -> str | None:
    """Which of the ``known`` short names a person means: spelled alike but for case, or a graphics type by its listed name."""
    kind = parse(name)
    wanted = {short(name).lower(), "" if kind is None else kind.listed.lower()}
    for one in known:
        if one.lower() in wanted:
            return one
    return None


def advice(name: str, known: t.Collection[str]) -> str:
    """What to write instead of a type that is not there."""
    if not known:
        return "it lists no type at all now"
    near = get_close_matches(short(name), list(known), n=1, cutoff=0.5)
    return f"{f'did you mean {near[0]}? ' if near else ''}it has {', '.join(sorted(known, key=order))}"


def order(name: str) -> tuple[t.Any, ...]:
    """Sorts names: time-sliced types first, then by slices, size and name."""
    kind = parse(name)
    return (2, 0, 0, name) if kind is None else (0 if kind.slices is None else 1, kind.slices or 0, kind.gb, name)
