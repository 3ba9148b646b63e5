# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Board files: read, check, fill in what is unknown, and turn into the lines that the C library reads.

The library knows no board: everything that makes an A100 an A100 is in its file. What a file marks ``unknown`` is
estimated here by a rule that is stated beside it, and every estimated field is named in ``Board.estimated``.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from nvmlsim import ci, located
from nvmlsim.common import SimError
from nvmlsim.located import Section

ARCHITECTURES = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10, "rubin": 13}
EVIDENCE = ("hardware", "read", "assumed")
BRANDS = {"unknown": 0, "quadro": 1, "tesla": 2, "geforce": 5, "quadro-rtx": 12, "nvidia-rtx": 13, "nvidia": 14}
MAX_MEMORY_SLICES = 64
MAX_JOINED = 32
PROFILE_COUNT = 18
PROFILE_NAME = re.compile(r"^(\d+)g\.(\d+)gb((?:[+-][a-z.]+)*)$")

# NVML enum by (slices, attribute): nvml.h, quoted in mig-geometry.yaml, nvml_enums.
QUERIES = {
    (1, ""): 0,
    (2, ""): 1,
    (3, ""): 2,
    (4, ""): 3,
    (7, ""): 4,
    (8, ""): 5,
    (6, ""): 6,
    (1, "+me"): 7,
    (2, "+me"): 8,
    (1, "+gfx"): 10,
    (2, "+gfx"): 11,
    (4, "+gfx"): 12,
    (1, "-me"): 13,
    (2, "-me"): 14,
    (1, "+me.all"): 15,
    (2, "+me.all"): 16,
    (3, "+gfx"): 17,
}
DOUBLE_MEMORY_QUERY = 9
# For a profile whose slices have no enum of their own (a board nobody has seen): any enum that is still free.
SPARE_QUERIES = (5, 6, 4, 3, 2, 1, 0, 17, 12, 11, 10, 14, 13, 16, 15, 8, 7, 9)
# Ids of the seven-slice boards by enum (mig-geometry.yaml); used where a file says `id: unknown`.
SEVEN_SLICE_IDS = {0: 19, 7: 20, 9: 15, 1: 14, 2: 9, 3: 5, 4: 0}
ENGINES = ("ce", "dec", "enc", "jpeg", "ofa")


@dataclasses.dataclass
class Profile:
    """One GPU instance profile; ``size`` in memory slices, ``memory_mib`` in MiB."""

    name: str
    query: int
    id: int
    slices: int
    size: int
    max: int
    sm: int
    memory_mib: int
    engines: dict[str, int]
    starts: list[int]
    ids: dict[int, int]
    order: list[int]
    p2p: bool = False
    capabilities: int = 0
    compute: list[ci.ComputeProfile] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class VgpuType:
    """A vGPU type; ``profile`` is the GPU instance profile's name, None when it is time-sliced."""

    name: str
    fb_mib: int
    max: int
    profile: str | None
    vclass: str


@dataclasses.dataclass
class Board:
    """A board as the simulator uses it: nothing unknown any more, ``estimated`` says what was."""

    key: str
    name: str
    numbers: dict[str, int]
    texts: dict[str, str]
    memory_mib: int
    reserved_mib: int
    bar1_mib: int
    profiles: list[Profile]
    vgpu_types: list[VgpuType]
    aliases: list[str]
    minimum_driver: str | None
    estimated: list[str]
    evidence: dict[str, t.Any]
    file: str

    @property
    def mig(self) -> bool:
        """Whether the board can be partitioned."""
        return bool(self.numbers["mig"])


def read_board(file: str, text: str) -> Board:
    """Reads one board file. Raises SimError (one line: file, line, field, wrong, right)."""
    return _Reader(file, located.read(file, text)).board()


class _Reader:
    def __init__(self, file: str, top: Section) -> None:
        self.file = file
        self.top = top
        self.estimated: list[str] = []
        self.numbers: dict[str, int] = {}

    def estimate(self, field: str, value: int, rule: str) -> int:
        self.estimated.append(f"{field} = {value} ({rule})")
        return value

    def board(self) -> Board:
        top = self.top
        key = top.text("board")
        name = top.text("name")
        if len(name.encode()) > 90 or not name.isprintable():
            raise top.error("name", "cannot be an NVML name", "give at most 90 printable characters")
        self.identity()
        memory_mib, reserved, bar1 = self.memory()
        self.power_and_heat()
        self.numbers["nvlink"] = top.number("nvlink", 0, MAX_JOINED, default=0)
        profiles = self.mig(memory_mib)
        pci = self.pci()
        minimum = top.text("minimum_driver", located.UNKNOWN)
        board = Board(
            key=key,
            name=name,
            numbers=self.numbers,
            texts={**pci, "vbios": top.text("vbios", "")},
            memory_mib=memory_mib,
            reserved_mib=reserved,
            bar1_mib=bar1,
            profiles=profiles,
            vgpu_types=self.vgpus(profiles),
            aliases=self.aliases(),
            minimum_driver=None if minimum == located.UNKNOWN else minimum,
            estimated=self.estimated,
            evidence=self.evidence(),
            file=self.file,
        )
        top.finish()
        return board

    def aliases(self) -> list[str]:
        if not self.top.has("aliases"):
            return []
        value = self.top.raw("aliases", "")
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise self.top.error("aliases", f"{located.plain(value)!r} is not possible", "give a list of texts")
        return value

    def evidence(self) -> dict[str, t.Any]:
        if not self.top.has("evidence"):
            return {}
        section = self.top.section("evidence")
        for name in section.names():
            entry = section.section(name)
            entry.choice("how", EVIDENCE)
            entry.text("source")
            entry.finish()
        return t.cast("dict[str, t.Any]", located.plain(section))

    def identity(self) -> None:
        top = self.top
        capability = top.text("compute_capability")
        match = re.fullmatch(r"(\d+)\.(\d+)", capability)
        if not match:
            raise top.error("compute_capability", f"{capability!r} is no capability", "give a text such as '9.0'")
        self.numbers.update(
            {
                "arch": ARCHITECTURES[top.choice("architecture", ARCHITECTURES)],
                "brand": BRANDS[top.choice("brand", BRANDS)] if top.has("brand") else BRANDS["nvidia"],
                "cc-major": int(match[1]),
                "cc-minor": int(match[2]),
                "board-sm": top.number("sm", 1, 4096),
                "cores-per-sm": top.maybe("cores_per_sm", 1, 1024) or 0,
                "bus-width": top.maybe("memory_bus_bits", 1, 65536) or 0,
                "ecc": int(top.flag("ecc", True)),
                "retired-pages": int(top.flag("retired_pages", False)),
                "fan": int(top.flag("fan", False)),
            }
        )
        self.numbers["pcie-gen"], self.numbers["pcie-width"] = 0, 0
        if top.has("pcie"):
            pcie = top.section("pcie")
            self.numbers["pcie-gen"] = pcie.number("generation", 1, 9)
            self.numbers["pcie-width"] = pcie.number("width", 1, 32)
            pcie.finish()

    def pci(self) -> dict[str, str]:
        result = {"pci-device-id": "0x000010de", "pci-subsystem-id": "0x000010de"}
        if not self.top.has("pci"):
            self.estimated.append("pci = 0x000010de (not given)")
            return result
        pci = self.top.section("pci")
        for key, word in (("device", "pci-device-id"), ("subsystem", "pci-subsystem-id")):
            value = pci.text(key, located.UNKNOWN)
            if value == located.UNKNOWN:
                self.estimated.append(f"pci.{key} = {result[word]} (unknown)")
            elif re.fullmatch(r"0x[0-9A-Fa-f]{8}", value):
                result[word] = value.lower()
            else:
                raise pci.error(key, f"{value!r} is no PCI id", "give device and vendor as '0x20B210DE'")
        pci.finish()
        return result

    def memory(self) -> tuple[int, int, int]:
        memory = self.top.section("memory")
        total = memory.number("total_mib", 1, 2**31)
        reserved = memory.maybe("reserved_mib", 0, total)
        bar1 = memory.maybe("bar1_mib", 1, 2**31)
        if reserved is None:
            reserved = self.estimate("memory.reserved_mib", total * 6 // 1000, "0.6 % of the total")
        if bar1 is None:
            power_of_two = 1 << max(total - 1, 1).bit_length()
            bar1 = self.estimate("memory.bar1_mib", power_of_two, "the next power of two of the total")
        memory.finish()
        return total, reserved, bar1

    def power_and_heat(self) -> None:
        power = self.top.section("power")
        high = power.number("max_w", 1, 100000)
        low = power.maybe("min_w", 1, high)
        if low is None:
            low = self.estimate("power.min_w", max(1, high // 2), "half of the maximum")
        default = power.number("default_w", low, high, default=high)
        idle = power.maybe("idle_w", 0, high)
        if idle is None:
            idle = self.estimate("power.idle_w", high // 7, "a seventh of the maximum")
        power.finish()
        watts = {"power-min": low, "power-max": high, "power-default": default, "power-idle": idle}
        self.numbers.update({word: value * 1000 for word, value in watts.items()})
        fields = {"idle": ("temp-idle", 32), "gpu_max": ("temp-gpu-max", 85), "mem_max": ("temp-mem-max", 95)}
        fields |= {"slowdown": ("temp-slowdown", 87), "shutdown": ("temp-shutdown", 92)}
        heat = self.top.section("temperature") if self.top.has("temperature") else Section(self.file, "temperature", 1, {})
        for key, (word, usual) in fields.items():
            value = heat.maybe(key, 1, 200)
            self.numbers[word] = value if value is not None else self.estimate(f"temperature.{key}", usual, "a usual value")
        heat.finish()
        clocks = self.top.section("clocks") if self.top.has("clocks") else Section(self.file, "clocks", 1, {})
        for key in ("sm", "mem", "video"):
            self.numbers[f"clock-{key}"] = clocks.maybe(f"{key}_mhz", 1, 100000) or 0
        clocks.finish()

    # ---- MIG ----

    def mig(self, memory_mib: int) -> list[Profile]:
        """Whether the board can be partitioned."""
        self.numbers.update({"mig": 0, "resetless": 0, "compute-slices": 0, "memory-slices": 0})
        if not self.top.has("mig") or self.top.items["mig"][1] in (None, False):
            self.top.taken.add("mig")
            return []
        mig = self.top.section("mig")
        compute = mig.number("compute_slices", 1, 32)
        memory = mig.number("memory_slices", 1, MAX_MEMORY_SLICES)
        resetless = mig.choice("mode_change", ("reset", "immediate")) == "immediate"
        self.numbers.update({"mig": 1, "resetless": int(resetless), "compute-slices": compute, "memory-slices": memory})
        sections = mig.sections("profiles")
        profiles: list[Profile] = []
        for section in sections:
            profiles.append(self.profile(section, profiles, memory_mib))
        self.check_unique(sections, profiles)
        tables = mig.section("compute_instances") if mig.has("compute_instances") else None
        ci.fill(profiles, tables)
        self.instance_ids(sections, profiles, memory)
        for section in (*sections, mig):
            section.finish()
        return profiles

    def profile(self, section: Section, before: list[Profile], board_mib: int) -> Profile:
        compute, memory = self.numbers["compute-slices"], self.numbers["memory-slices"]
        name = section.text("name")
        match = PROFILE_NAME.match(name)
        if not match or len(name) > 31:
            raise section.error("name", f"{name!r} is no profile name", "give a name such as 1g.10gb or 1g.10gb+me")
        slices = section.number("slices", 1, compute, default=int(match[1]))
        if slices != int(match[1]) or slices > compute:
            raise section.error("slices", f"{slices} does not agree with {name}", f"give {match[1]}, at most {compute}")
        size = section.number("size", 1, memory)
        most = section.maybe("max", 1, 64) or 1
        starts = self.starts(section, name, size, most, before)
        mib = section.maybe("memory_mib", 1, 2**31)
        if mib is None:
            rule = "its share of the board's memory, less 2 %, down to 128 MiB"
            mib = self.estimate(f"{name}.memory_mib", max(1, board_mib * size * 98 // (memory * 100) // 128 * 128), rule)
        sm = section.maybe("sm", 1, 4096)
        if sm is None:
            sm = self.estimate(f"{name}.sm", max(1, self.numbers["board-sm"] * slices // compute), "its share of the board's SMs")
        query = self.query(section, slices, match[3], before)
        return Profile(
            name=name,
            query=query,
            id=self.profile_id(section, name, query, before),
            slices=slices,
            size=size,
            max=most,
            sm=sm,
            memory_mib=mib,
            engines=self.engines(section, name, slices),
            starts=starts,
            ids={},
            order=self.order(section, starts),
            p2p=section.flag("p2p", False),
            capabilities=section.number("capabilities", 0, 2**31 - 1, default=0),
        )

    def starts(self, section: Section, name: str, size: int, most: int, before: list[Profile]) -> list[int]:
        memory = self.numbers["memory-slices"]
        if section.has("starts") and section.items["starts"][1] != located.UNKNOWN:
            return section.numbers("starts", 0, memory - size)
        section.taken.add("starts")
        base = next((other for other in before if other.size == size and name.startswith(other.name)), None)
        found = base.starts if base else list(range(0, memory - size + 1, size))[:most]
        self.estimated.append(f"{name}.starts = {found} (multiples of its size)")
        return list(found)

    def order(self, section: Section, starts: list[int]) -> list[int]:
        """Starts in the order in which a create without placement tries them; what is not named follows, ascending."""
        if not section.has("order"):
            return sorted(starts)
        order = section.numbers("order", 0, MAX_MEMORY_SLICES)
        if any(start not in starts for start in order):
            raise section.error("order", f"{order} has a start that is no placement", f"give starts of {starts}")
        return order + [start for start in sorted(starts) if start not in order]

    def query(self, section: Section, slices: int, attribute: str, before: list[Profile]) -> int:
        used = {profile.query for profile in before}
        value = section.maybe("query", 0, PROFILE_COUNT - 1)
        if value is not None:
            return value
        wanted = QUERIES.get((slices, attribute))
        if wanted in used and slices == 1 and not attribute:
            wanted = DOUBLE_MEMORY_QUERY
        if wanted is None or wanted in used:
            wanted = next((spare for spare in SPARE_QUERIES if spare not in used), None)
        if wanted is None:
            raise section.error("query", "all NVML profile enums are used", f"give at most {PROFILE_COUNT} profiles")
        return wanted

    def profile_id(self, section: Section, name: str, query: int, before: list[Profile]) -> int:
        value = section.maybe("id", 0, 2**31 - 1)
        if value is not None:
            return value
        used = {profile.id for profile in before}
        if self.numbers["compute-slices"] == 7 and SEVEN_SLICE_IDS.get(query, 0) not in used and query in SEVEN_SLICE_IDS:
            return self.estimate(f"{name}.id", SEVEN_SLICE_IDS[query], "as on the other seven-slice boards")
        free = next(number for number in range(100 + query, 1000) if number not in used)
        return self.estimate(f"{name}.id", free, "a free number")

    def engines(self, section: Section, name: str, slices: int) -> dict[str, int]:
        result = {"ce": slices, "dec": 0, "enc": 0, "jpeg": 0, "ofa": 0}
        if not section.has("engines") or section.items["engines"][1] == located.UNKNOWN:
            section.taken.add("engines")
            self.estimated.append(f"{name}.engines = {result} (one copy engine for each slice)")
            return result
        engines = section.section("engines")
        for engine in ENGINES:
            value = engines.maybe(engine, 0, 64)
            result[engine] = value if value is not None else self.estimate(f"{name}.engines.{engine}", result[engine], "unknown")
        engines.finish()
        return result

    def check_unique(self, sections: list[Section], profiles: list[Profile]) -> None:
        for field in ("name", "query", "id"):
            seen: set[object] = set()
            for section, profile in zip(sections, profiles, strict=True):
                value = getattr(profile, field)
                if value in seen:
                    raise section.error(field, f"{value!r} belongs to another profile already", "give each profile its own")
                seen.add(value)

    def instance_ids(self, sections: list[Section], profiles: list[Profile], memory: int) -> None:
        """Ids that a file gives, else the binary-tree rule seen on every board: the largest size is numbered first,
        each size continues where the larger one ended, and within a size the id grows with the start."""
        base: dict[int, int] = {}
        total = 0
        for size in sorted({profile.size for profile in profiles}, reverse=True):
            base[size] = total
            total += -(-memory // size)
        for section, profile in zip(sections, profiles, strict=True):
            profile.ids = {start: base[profile.size] + start // profile.size for start in profile.starts}
            if section.has("instance_ids"):
                given = section.section("instance_ids")
                profile.ids |= {start: given.number(str(start), 0, 1023) for start in profile.starts if given.has(str(start))}
                given.finish()
        for section, profile in zip(sections, profiles, strict=True):
            for other in profiles:
                for start, number in profile.ids.items():
                    for start2, number2 in other.ids.items():
                        apart = start + profile.size <= start2 or start2 + other.size <= start
                        if apart and number == number2:
                            wrong = f"id {number} stands for {profile.name}@{start} and {other.name}@{start2}, which can live together"
                            raise section.error("instance_ids", wrong, "give them different ids")

    # ---- vGPU ----

    def vgpus(self, profiles: list[Profile]) -> list[VgpuType]:
        self.numbers["vgpu-supported"] = int(self.top.has("vgpu"))
        if not self.top.has("vgpu"):
            return []
        vgpu = self.top.section("vgpu")
        prefix = vgpu.text("prefix")
        types = vgpu.section("types")
        result = [self.vgpu_type(types, prefix, name, profiles) for name in types.names()]
        if not 0 < len(result) <= 64 or len(prefix) > 32:
            raise vgpu.error("types", f"{len(result)} types", "give 1 to 64")
        vgpu.finish()
        return result

    def vgpu_type(self, types: Section, prefix: str, name: str, profiles: list[Profile]) -> VgpuType:
        most = types.number(name, 1, 64)
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)([ABCQ])(MEALL|NOME|ME|GFX)?", name)
        if not match:
            raise types.error(name, "is no vGPU type", "name it such as 4C, 1-10C or 1-10CME")
        attribute = {"ME": "+me", "MEALL": "+me.all", "NOME": "-me", "GFX": "+gfx", None: ""}[match[4]]
        found = None
        if match[1]:
            wanted = f"{match[1]}g.{match[2]}gb{attribute}"
            found = next((profile.name for profile in profiles if profile.name == wanted), None)
            if found is None:
                raise types.error(name, f"needs profile {wanted}, which this board has not", "name a profile of this file")
        vclass = {"A": "NVS", "B": "NVS", "C": "Compute", "Q": "Quadro"}[match[3]]
        return VgpuType(f"{prefix}-{name}", int(match[2]) * 1024, most, found, vclass)


def spec_lines(board: Board) -> list[str]:
    """The board as `word value` lines for the library (create.c reads them)."""
    lines = [f"board {board.key}", f"name {board.name}"]
    lines += [f"{word} {value}" for word, value in board.texts.items() if value]
    lines += [f"{word} {value}" for word, value in board.numbers.items()]
    lines += [f"memory {board.memory_mib}", f"reserved {board.reserved_mib}", f"bar1 {board.bar1_mib}"]
    for profile in board.profiles:
        lines += _profile_lines(profile)
    names = [profile.name for profile in board.profiles]
    for vgpu in board.vgpu_types:
        index = names.index(vgpu.profile) if vgpu.profile else -1
        lines += [f"vgpu {vgpu.name}", f"vgpu-fb {vgpu.fb_mib}", f"vgpu-max {vgpu.max}", f"vgpu-gi-profile {index}"]
        lines += [f"vgpu-max-per-gi {1 if vgpu.profile else 0}", f"vgpu-class {vgpu.vclass}"]
    return lines


def _profile_lines(profile: Profile) -> list[str]:
    fields = {"query": profile.query, "id": profile.id, "slices": profile.slices, "size": profile.size, "max": profile.max}
    fields |= {"sm": profile.sm, "p2p": int(profile.p2p), "capabilities": profile.capabilities, **profile.engines}
    lines = [f"profile {profile.name}", f"profile-memory {profile.memory_mib}"]
    lines += [f"{word} {value}" for word, value in fields.items()]
    lines += [f"starts {_join(profile.starts)}", f"gi-ids {_join([profile.ids[start] for start in profile.starts])}"]
    lines += [f"order {_join(profile.order)}"]
    for part in profile.compute:
        lines += ["ci", f"ci-query {part.query}", f"ci-id {part.query}", f"ci-slices {part.slices}", f"ci-max {part.max}"]
        lines += [f"ci-sm {part.sm}", f"ci-starts {_join(part.starts)}"]
    return lines


def _join(numbers: t.Iterable[int]) -> str:
    return ",".join(str(number) for number in numbers)


__all__ = ["Board", "Profile", "SimError", "VgpuType", "read_board", "spec_lines"]
