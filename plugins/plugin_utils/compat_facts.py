# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What drivers, CUDA toolkits, GPUs and systems need of each other: ``data/compat.yml``, checked and with questions that it answers.

Every answer is a :class:`Fact`: a value with its confidence and its source. Versions are compared number by number.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import AfterValidator, Field, Strict, Wrong, check

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located

Version = tuple[int, ...]
Confidence = t.Literal["A", "B", "C", "U"]
Modules = t.Literal["any", "open", "proprietary"]

# From the best to the worst: what stands on two facts has the worse of their confidences.
CONFIDENCES: tuple[Confidence, ...] = ("A", "B", "C", "U")
# Before it there is no minor version compatibility: the toolkit's own driver is the least one (CUDA release notes).
FIRST_FAMILY = 11
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")


@lru_cache(maxsize=4096)
def version(text: str | None) -> Version:
    """``535.104.05`` -> (535, 104, 5): the numbers with which a version begins, without zeros at its end. () where there are none."""
    found = _NUMBERS.match(text or "")
    return trimmed(tuple(int(part) for part in found.group().split("."))) if found else ()


def trimmed(numbers: Version) -> Version:
    """Without zeros at its end, so that 13 and 13.0 are the same."""
    while numbers and not numbers[-1]:
        numbers = numbers[:-1]
    return numbers


def minor(numbers: Version) -> Version:
    """Major and minor version of a CUDA release: (12, 4, 1) -> (12, 4), (12,) -> (12, 0)."""
    return (*numbers, 0, 0)[:2]


def weakest(*confidences: Confidence) -> Confidence:
    """The worst of several confidences."""
    return max(confidences, key=CONFIDENCES.index)


def _is_version(text: str) -> str:
    if not _NUMBERS.fullmatch(text):
        raise Wrong(f"'{text}' is not a version", "write numbers with dots between, as text, such as '535.104.05'")
    return text


Number = t.Annotated[str, AfterValidator(_is_version)]


class _Row(Strict):
    conf: Confidence | None = None


class _Block(Strict):
    conf: Confidence
    sources: t.Annotated[list[str], Field(min_length=1)]


class Toolkit(_Row):
    """A release of CUDA: its own driver, and the least one."""

    cuda: Number
    driver: Number
    floor: Number


class Family(_Row):
    """A major release of CUDA, and the least driver for all of it."""

    cuda: Number
    floor: Number


class Branch(_Row):
    """A driver branch. ``eol``: the month (``2028-06``) in which fixes end; ``ended``: listed as out of support, whatever the date."""

    branch: int
    kind: str | None
    eol: str | None
    ended: bool


class Architecture(_Row):
    """A generation of GPUs by compute capability, or by how the catalogue ids of its ``boards`` begin. None: no first or last one."""

    name: str
    capabilities: list[Number]
    boards: list[str] = []  # noqa: RUF012 # pydantic copies a default
    first_cuda: Number
    full_cuda: Number | None
    last_cuda: Number | None
    first_branch: int | None
    last_branch: int | None
    modules: Modules


class System(_Row):
    """An operating system that NVIDIA names, for the driver branches ``since`` to ``until``, with its newest kernel and GCC there."""

    id: str
    version: Number
    since: int | None
    until: int | None
    kernel: Number | None
    gcc: int | None


class Compiler(_Row):
    """Up to and with this CUDA, ``newest`` is the newest major version of GCC that nvcc takes."""

    cuda: Number
    newest: int


class ImageTags(_Row):
    """CUDA of images whose tag lies between two (both with it) and ends with ``suffix``."""

    image: str
    since: Number
    until: Number
    suffix: str
    cuda: Number


class _Toolkits(_Block):
    releases: list[Toolkit]


class _Families(_Block):
    rows: list[Family]


class _BranchCuda(_Block):
    map: dict[str, Number]


class _Branches(_Block):
    rows: list[Branch]


class _Architectures(_Block):
    rows: list[Architecture]


class _Forward(_Block):
    windows: dict[str, list[int]]


class _Systems(_Block):
    rows: list[System]


class _Compilers(_Block):
    rows: list[Compiler]


class _ContainerToolkit(_Block):
    cdi: Number
    unenforced: Number


class _Docker(_Block):
    cdi: Number
    cdi_default: Number


class _Mig(_Block):
    floors: dict[str, Number]


class _Vgpu(_Block):
    releases: dict[str, int]


class _Images(_Block):
    rows: list[ImageTags]


class _File(Strict):
    format: int
    sources: dict[str, str]
    cuda_toolkits: _Toolkits
    families: _Families
    branch_cuda: _BranchCuda
    branches: _Branches
    architectures: _Architectures
    forward_compat: _Forward
    systems: _Systems
    gcc: _Compilers
    toolchain: _Block
    container_toolkit: _ContainerToolkit
    docker: _Docker
    mig: _Mig
    vgpu: _Vgpu
    images: _Images


_Value = t.TypeVar("_Value")


@dataclass(frozen=True)
class Fact(t.Generic[_Value]):
    """A value, how sure it is, and where it was read."""

    value: _Value
    confidence: Confidence
    source: str


@dataclass(frozen=True)
class CudaNeed:
    """What a toolkit wants of the driver: ``driver`` is its own (None: not known), ``floor`` the least."""

    driver: str | None
    floor: str


class CompatFacts:
    """``data/compat.yml``. Where a question has no answer it is None: what is not known blocks nothing."""

    def __init__(self, located: Located) -> None:
        """:raises FleetError: a field that is not known or missing, a version that is none, a source that is not listed."""
        self._file = check(_File, located)
        for name in _File.model_fields:
            block = getattr(self._file, name)
            if isinstance(block, _Block):
                for key in block.sources:
                    if key not in self._file.sources:
                        raise located.error((name, "sources"), f"'{key}' is not among the sources", "add it to 'sources', with its address")
        self._toolkits = sorted(self._file.cuda_toolkits.releases, key=lambda row: version(row.cuda))
        self._branches = {row.branch: row for row in self._file.branches.rows}
        self.newest_branch = max(self._branches)
        # Asked again and again with the same few words.
        self._needs: dict[str, Fact[CudaNeed] | None] = {}
        self._found: dict[tuple[str | None, str], Fact[Architecture] | None] = {}
        self._upgrades: dict[str | None, list[int]] = {}

    def _fact(self, value: _Value, block: _Block, *confidences: Confidence | None, first: str | None = None) -> Fact[_Value]:
        source = self._file.sources[first or block.sources[0]]
        own = [each for each in confidences if each is not None]
        return Fact(value, weakest(*own) if own else block.conf, source)

    def toolkit(self, cuda: str) -> Fact[CudaNeed] | None:
        """What this release of CUDA wants. One that is not in the table stands by its neighbour below, or by its family."""
        if cuda not in self._needs:
            self._needs[cuda] = self._toolkit(cuda)
        return self._needs[cuda]

    def _toolkit(self, cuda: str) -> Fact[CudaNeed] | None:
        asked = version(cuda)
        block = self._file.cuda_toolkits
        same = [row for row in self._toolkits if minor(version(row.cuda)) == minor(asked)]
        if same:
            below = [row for row in same if version(row.cuda) <= asked] or same[:1]
            row = below[-1]
            exact = version(row.cuda) == asked
            return self._fact(
                CudaNeed(row.driver, row.floor), block, *((row.conf or block.conf,) if exact else (row.conf or block.conf, "C"))
            )
        families = self._file.families
        for family in families.rows:
            if version(family.cuda)[:1] == asked[:1]:
                return self._fact(CudaNeed(None, family.floor), families, family.conf)
        return None

    def families(self) -> Iterable[tuple[int, Version]]:
        """(major version of CUDA, least driver for all of it), in order."""
        return sorted((version(row.cuda)[0], version(row.floor)) for row in self._file.families.rows)

    def branch_cuda(self, branch: int) -> str | None:
        """The newest CUDA that a driver branch speaks."""
        return self._file.branch_cuda.map.get(str(branch))

    def branch_cuda_source(self) -> Fact[None]:
        """How sure that is, and where it was read."""
        return self._fact(None, self._file.branch_cuda)

    def families_source(self) -> Fact[None]:
        """How sure the least drivers of whole major releases are, and where they were read."""
        return self._fact(None, self._file.families)

    def branch(self, branch: int) -> Fact[Branch] | None:
        """What is known of a driver branch."""
        row = self._branches.get(branch)
        return None if row is None else self._fact(row, self._file.branches, row.conf)

    def supported(self, branch: int, month: str | None) -> bool:
        """Is the branch known to get fixes in this month (``2026-11``)?"""
        row = self._branches.get(branch)
        return row is not None and not row.ended and (row.eol is None or month is None or row.eol >= month)

    def upgrades(self, month: str | None) -> list[int]:
        """Branches with fixes in this month: long-term ones first, then production, then others; the newest first among equals."""
        if month not in self._upgrades:
            order = {"LTSB": 0, "PB": 1}
            self._upgrades[month] = sorted(
                (branch for branch in self._branches if self.supported(branch, month)),
                key=lambda branch: (order.get(self._branches[branch].kind or "", 2), -branch),
            )
        return self._upgrades[month]

    def first_release(self, branch: int) -> str | None:
        """The oldest driver of a branch that a toolkit names as its own."""
        drivers = [row.driver for row in self._toolkits if version(row.driver)[0] == branch]
        return min(drivers, key=version, default=None)

    def architecture(self, capability: str | None, board: str) -> Fact[Architecture] | None:
        """The generation of a GPU: by its board where the facts name it, else by compute capability."""
        if (capability, board) not in self._found:
            self._found[capability, board] = self._architecture(capability, board)
        return self._found[capability, board]

    def _architecture(self, capability: str | None, board: str) -> Fact[Architecture] | None:
        block = self._file.architectures
        fits = [row for row in block.rows if capability in row.capabilities]
        named = [row for row in fits if any(board.startswith(each) for each in row.boards)]
        plain = [row for row in fits if not row.boards]
        for row in named or plain:
            return self._fact(row, block, row.conf)
        return None

    def modules_source(self) -> str:
        """Where it was read which kernel modules drive which GPUs."""
        return self._file.sources["openkm"]

    def forward(self, cuda: str) -> Fact[list[int]] | None:
        """Branches on which ``cuda-compat`` of this release of CUDA runs, as NVIDIA's images list them."""
        block = self._file.forward_compat
        name = ".".join(map(str, minor(version(cuda))))
        return self._fact(block.windows[name], block) if name in block.windows else None

    def forward_source(self) -> Fact[None]:
        """Where it was read which GPUs forward compatibility is for."""
        return self._fact(None, self._file.forward_compat)

    def systems(self, system: str) -> list[Fact[System]]:
        """All versions of an operating system that NVIDIA names."""
        block = self._file.systems
        return [self._fact(row, block, row.conf) for row in block.rows if row.id == system]

    def systems_source(self) -> Fact[None]:
        """Where the systems were read."""
        return self._fact(None, self._file.systems, first="drvinst")

    def gcc(self, cuda: str) -> Fact[int] | None:
        """The newest major version of GCC that nvcc of this CUDA takes."""
        block = self._file.gcc
        asked = minor(version(cuda))
        for row in sorted(block.rows, key=lambda each: version(each.cuda)):
            if asked <= minor(version(row.cuda)):
                return self._fact(row.newest, block, row.conf)
        return None

    def toolchain(self) -> Fact[None]:
        """Where it was read that kernel modules are to be built with what the kernel was built with."""
        return self._fact(None, self._file.toolchain)

    def container_toolkit(self) -> Fact[tuple[str, str]]:
        """The first container toolkit that makes CDI specifications; the first whose runtime no longer looks at ``NVIDIA_REQUIRE_*``."""
        block = self._file.container_toolkit
        return self._fact((block.cdi, block.unenforced), block)

    def requires_source(self) -> Fact[None]:
        """Where the grammar of ``NVIDIA_REQUIRE_*`` was read."""
        return self._fact(None, self._file.container_toolkit)

    def docker(self) -> Fact[tuple[str, str]]:
        """The first Docker with CDI, and the first that has it switched on."""
        block = self._file.docker
        return self._fact((block.cdi, block.cdi_default), block)

    def mig(self, board: str) -> Fact[str] | None:
        """The least driver for MIG on a board."""
        block = self._file.mig
        fits = [start for start in block.floors if f"{board}-".startswith(start)]
        return self._fact(block.floors[max(fits, key=len)], block) if fits else None

    def mig_source(self) -> Fact[None]:
        """Where the least drivers for MIG were read."""
        return self._fact(None, self._file.mig)

    def vgpu(self, branch: int) -> Fact[int | None]:
        """The major release of vGPU software whose drivers are of this branch."""
        block = self._file.vgpu
        return self._fact(next((int(name) for name, each in block.releases.items() if each == branch), None), block)

    def image_cuda(self, reference: str) -> Fact[str] | None:
        """CUDA of an image by its name and tag (``NAME:TAG@sha256:...``), for one whose variables nobody has read."""
        name, separator, tag = reference.partition("@")[0].rpartition(":")
        block = self._file.images
        for row in block.rows:
            ours = separator and name == row.image and tag.endswith(row.suffix)
            if ours and version(row.since) <= version(tag) <= version(row.until):
                return self._fact(row.cuda, block, row.conf)
        return None
