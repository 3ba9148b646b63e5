# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages are a driver, and which board a PCI device is: ``data/driver_packages.yml`` and ``data/pci_chips.yml``, checked."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import Strict, check
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import CompatGpu
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import Confidence

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located

Flavour = t.Literal["open", "proprietary"]
Source = t.Literal["distribution", "repository", "mirror", "runfile"]
Kind = t.Literal["ordinary", "vgpu-host"]


class System(Strict):
    """An operating system that role nvidia_driver prepares. ``proven``: the sources with which it has run there for real."""

    id: str
    version: str
    family: t.Literal["debian", "redhat"]
    codename: str | None
    repository: str
    key: str
    proven: list[Source]

    @property
    def name(self) -> str:
        """As people say it: ``debian 13``."""
        return f"{self.id} {self.version}"


class Packages(Strict):
    """What a driver is made of, with ``{branch}`` in names; see the head of the file."""

    source: t.Literal["distribution", "repository"]
    ids: list[str]
    versions: list[str]
    since: int
    until: int | None
    conf: Confidence
    from_: str
    tools: list[str]
    open: list[str]
    proprietary: list[str]
    user: list[str]
    daemon: str | None
    fabric: str | None
    pin: str | None
    stream: dict[str, str] | None

    def modules(self, flavour: Flavour) -> list[str]:
        """The packages with the kernel modules; none where there are none of this kind."""
        return self.open if flavour == "open" else self.proprietary


class Headers(Strict):
    """Headers of one kernel; ``meta``: package of the kernel -> package of the headers of all later ones."""

    ids: list[str]
    one: str
    meta: dict[str, str]


class _PackagesFile(Strict):
    format: int
    sources: dict[str, str]
    systems: list[System]
    packages: list[Packages]
    headers: list[Headers]
    space: dict[str, int]


class _Chip(Strict):
    first: str
    last: str
    capability: str
    chips: list[str]


class _ChipsFile(Strict):
    format: int
    conf: Confidence
    sources: dict[str, str]
    chips: list[_Chip]
    boards: dict[str, str]


class DriverPackages:
    """``data/driver_packages.yml``."""

    def __init__(self, located: Located) -> None:
        """:raises FleetError: a field that is not known or missing."""
        file = check(_PackagesFile, _renamed(located))
        self.sources = file.sources
        self.systems = file.systems
        self.space = file.space
        self._packages = file.packages
        self._headers = file.headers

    def system(self, name: str | None, version: str | None) -> System | None:
        """The system that a host runs: a minor version of one is that one."""
        return next((each for each in self.systems if each.id == name and f"{version}.".startswith(f"{each.version}.")), None)

    def offers(self, system: System, source: Source) -> list[Packages]:
        """What a source has for a system; a mirror has what the repository has, and a runfile is no package."""
        kind = "repository" if source == "mirror" else source
        rows = (each for each in self._packages if each.source == kind and system.id in each.ids)
        return [each for each in rows if not each.versions or system.version in each.versions]

    def headers(self, system: System) -> Headers:
        """The headers' packages of a system."""
        return next(each for each in self._headers if system.id in each.ids)


def _renamed(located: Located) -> Located:
    """``from`` is a word of Python: the model has it as ``from_``."""
    rows = [{("from_" if key == "from" else key): value for key, value in row.items()} for row in located.data["packages"]]
    return type(located)({**located.data, "packages": rows}, located.file, located.lines)


class Boards:
    """Who sits on the PCI bus, by device id: ``data/pci_chips.yml`` beside the catalogue."""

    def __init__(self, chips: Located, catalogue: Catalogue) -> None:
        """:raises FleetError: a field that is not known or missing."""
        file = check(_ChipsFile, chips)
        self._ranges = [(int(row.first, 16), int(row.last, 16), row.capability) for row in file.chips]
        self._named = file.boards
        self._catalogue = catalogue

    def gpu(self, device: str) -> CompatGpu:
        """A GPU by its PCI device id (``20b2``). One that nobody knows bears its id as its name, and has no compute capability."""
        number = int(device, 16)
        board = self._catalogue.find(f"0x{number:04X}10DE", None)
        name = board.id if board else self._named.get(f"{number:04x}", f"10de:{number:04x}")
        return CompatGpu(name, next((capability for first, last, capability in self._ranges if first <= number <= last), None))

    def named(self, board: str) -> CompatGpu | None:
        """A GPU by the catalogue's name of its board; None for one that is not there."""
        if board not in self._catalogue.boards:
            return None
        numbers = {name: number for number, name in self._named.items()} | self._catalogue.devices()
        return self.gpu(numbers[board]) if board in numbers else CompatGpu(board, None)


def policy_of(arguments: Mapping[str, t.Any]) -> Policy:
    """What the platform wishes, from the arguments of the door."""
    return Policy(**{name: arguments[name] for name in Policy.model_fields if arguments.get(name) is not None})


class Policy(Strict):
    """What the platform wishes of the driver; docs/host-preparation.md."""

    source: Source = "distribution"
    kind: Kind = "ordinary"
    branch: int | None = None
    version: str = ""
    flavour: t.Literal["auto", "open", "proprietary"] = "auto"
    boards: list[str] = []  # noqa: RUF012 # pydantic copies a default
    allow_downgrade: bool = False
    secure_boot: t.Literal["enrolled", "refuse"] = "refuse"
    mirror: str = ""
    key: str = ""
    key_checksum: str = ""
    runfile: str = ""
    runfile_checksum: str = ""
    packages: list[str] = []  # noqa: RUF012 # the same
    persistence: bool = True
    fabric_manager: t.Literal["auto", "always", "never"] = "auto"
    space: dict[str, int] = {}  # noqa: RUF012 # the same
