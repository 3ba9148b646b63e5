# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans carried out on boards that refuse what NVML refuses: every slice of every plan is made, where the plan has it."""

from __future__ import annotations

import random
import typing as t
from collections.abc import Iterable

import pynvml
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Gpu, Host, Need, Problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.packed import pack
from simulator_world import create, gpu, nvml_open, placements, profiles

BOARDS = ("a100-80gb", "a30-24gb", "h100-80gb", "rtx-pro-6000-96gb")
Hosts = t.Callable[..., t.Any]


class Board:
    """A GPU in MIG mode, and its geometry as NVML tells it."""

    def __init__(self) -> None:
        self.handle = gpu()
        self.ids = {name: info.id for name, info in profiles(self.handle).items()}
        found = []
        for name, info in profiles(self.handle).items():
            there = placements(self.handle, info.id)
            starts = tuple(sorted(start for start, _size in there))
            numbers = (info.sliceCount, there[0][1], int(info.memorySizeMB), info.multiprocessorCount, info.instanceCount)
            found.append(Profile(name, info.id, *numbers, starts))
        most = max(found, key=lambda profile: profile.slices)
        self.geometry = Geometry(most.slices, max(start + profile.size for profile in found for start in profile.starts), tuple(found))

    def cut(self, slices: Iterable[Slice]) -> None:
        """Make them one by one on the empty board, and take them away again. NVMLError where NVML refuses one."""
        sizes = {profile.name: profile.size for profile in self.geometry.profiles}
        made = [create(self.handle, self.ids[one.profile], one.start, sizes[one.profile]) for one in slices]
        for instance in made:
            pynvml.nvmlGpuInstanceDestroy(instance)


@pytest.fixture
def board(request: pytest.FixtureRequest, fleet_host: Hosts) -> t.Iterator[Board]:
    host = fleet_host(request.param)
    with nvml_open():
        pynvml.nvmlDeviceSetMigMode(gpu(), 1)
    host.simctl("reset", "--gpu", "0")
    with nvml_open():
        yield Board()


def crowd(seed: int, geometry: Geometry) -> Problem:
    """More services than three GPUs of this kind have slices for, and something on one of them already."""
    chance = random.Random(seed)
    sizes = sorted({profile.memory_mib for profile in geometry.profiles})
    there = tuple(
        Gpu(f"GPU-{number}", f"0000:{number + 1:02x}:00.0", "board", sizes[-1], geometry, mig=bool(number % 2)) for number in range(3)
    )
    needs = tuple(
        Need(
            f"s{number:02}",
            "production",
            "slice",
            chance.choice(sizes),
            priority=chance.choice([10, 50]),
            compute=chance.choice([None, 0.4]),
        )
        for number in range(14)
    )
    first = make_plan(Problem((Host("h1", "production", there),), needs[:3]))
    return Problem((Host("h1", "production", there),), needs, first.placements, moves=3)


@pytest.mark.parametrize("board", BOARDS, indirect=True)
def test_nvml_makes_every_slice_of_every_plan(board: Board) -> None:
    for seed in range(6):
        solution = make_plan(crowd(seed, board.geometry))
        cuts = [layout.slices for layout in solution.layouts.values() if layout.mode == "mig"]
        assert cuts
        for slices in cuts:
            board.cut(slices)
        assert all(place.slice in solution.layouts[("h1", place.gpus[0])].slices for place in solution.placements)


@pytest.mark.parametrize("board", BOARDS, indirect=True)
def test_nvml_makes_every_layout_that_the_packing_of_many_services_asks_for(board: Board) -> None:
    chance = random.Random(1)
    for _turn in range(4):
        packed = pack(board.geometry, {profile.name: chance.randint(0, 60) for profile in board.geometry.profiles})
        for slices, count in packed.runs:
            assert count > 0
            board.cut(slices)


@pytest.mark.parametrize("board", ["a100-80gb"], indirect=True)
def test_a_slice_that_cannot_be_is_refused_by_the_board(board: Board) -> None:
    with pytest.raises(pynvml.NVMLError):
        board.cut([Slice(1, "3g.40gb")])
