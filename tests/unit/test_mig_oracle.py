# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The smallest change, on random pairs of layouts on every board, judged by an oracle that shares no code with the product."""

from __future__ import annotations

import ast
import os
import typing as t
from pathlib import Path

import mig_oracle
import pynvml
import pytest
import yaml
from mig_oracle import BUSY, IMPOSSIBLE, POSSIBLE, Kind, Oracle
from mig_world import H100, World
from proof_host import REPOSITORY, prove

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

BOARD_FILES = {path.stem: yaml.safe_load(path.read_text()) for path in (REPOSITORY / "tests" / "simulator" / "boards").glob("*.yml")}
BOARDS = sorted(name for name, board in BOARD_FILES.items() if "mig" in board)
COMPLETE = os.environ.get("MIG_PROOF") == "complete"
PAIRS = 2000 if COMPLETE else 300


# The oracle itself

SMALL = Oracle([Kind("1g", 1, 1, 3, (0, 1, 2)), Kind("2g", 2, 2, 1, (0, 2)), Kind("4g", 3, 4, 1, (0,))], compute_slices=3)


def test_the_oracle_knows_every_legal_set() -> None:
    ones = [set(), {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}]
    expected = {frozenset(("1g", start) for start in one) for one in ones}
    expected |= {frozenset([("4g", 0)]), frozenset([("2g", 0)]), frozenset([("2g", 2)])}
    expected |= {frozenset([("2g", 0), ("1g", 2)]), frozenset([("2g", 2), ("1g", 0)]), frozenset([("2g", 2), ("1g", 1)])}
    assert len(SMALL.sets) == len(set(SMALL.sets))
    assert set(SMALL.sets) == expected


@pytest.mark.parametrize(
    ("standing", "wish", "verdict"),
    [
        ({}, [], (POSSIBLE, 0)),
        ({("1g", 0): False, ("1g", 1): False}, [("1g", None)], (POSSIBLE, 1)),
        ({("1g", 0): False, ("1g", 1): True}, [("1g", 0)], (BUSY, 0)),
        ({("1g", 0): False, ("1g", 1): True}, [("1g", None)], (POSSIBLE, 1)),
        ({("1g", 1): True}, [("2g", None), ("1g", None)], (POSSIBLE, 1)),
        ({("1g", 1): True}, [("2g", 0), ("1g", None)], (BUSY, 0)),
        ({("1g", 1): False}, [("2g", 0), ("1g", None)], (POSSIBLE, 3)),
        ({}, [("1g", 0), ("1g", 0)], (IMPOSSIBLE, 0)),
        ({}, [("2g", None), ("1g", None), ("1g", None)], (IMPOSSIBLE, 0)),
        ({("1g", 2): True}, [("4g", None), ("1g", None)], (IMPOSSIBLE, 0)),
        ({}, [("2g", 1)], (IMPOSSIBLE, 0)),
    ],
)
def test_the_oracle_judges_as_one_would_by_hand(standing: t.Any, wish: t.Any, verdict: tuple[str, int]) -> None:
    found = SMALL.judge(standing, wish)
    assert (found.word, found.cost) == verdict


@pytest.mark.parametrize("name", ["mig_oracle.py", "proof_host.py"])
def test_the_oracle_shares_no_code_with_the_product(name: str) -> None:
    tree = ast.parse(Path(__file__).with_name(name).read_text())
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [module for module in named if "ansible" in module or "plugins" in module]


@pytest.mark.parametrize("board", BOARDS)
def test_the_oracle_reads_a_board_as_its_file_has_it(fleet_host: MakeHost, board: str) -> None:
    fleet_host(board)
    pynvml.nvmlInit()
    try:
        kinds = mig_oracle.read_kinds(pynvml.nvmlDeviceGetHandleByIndex(0))
    finally:
        pynvml.nvmlShutdown()
    written = BOARD_FILES[board]["mig"]
    assert {(kind.name, kind.size, kind.most) for kind in kinds} == {(one["name"], one["size"], one["max"]) for one in written["profiles"]}
    assert max(kind.slices for kind in kinds) == written["compute_slices"]


# The product


@pytest.mark.slow
@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize("board", BOARDS)
def test_every_wish_is_met_by_the_fewest_changes_or_refused_for_the_right_reason(
    tmp_path: Path, record_property: t.Callable[[str, object], None], board: str
) -> None:
    found = prove("mig_pairs.py", board, PAIRS, 1, where=tmp_path)
    record_property("pairs", found)
    assert found["wrong"] == []
    assert sum(found["words"].values()) == PAIRS
    assert min(found["words"].get(word, 0) for word in (POSSIBLE, IMPOSSIBLE, BUSY)) > PAIRS // 50, "the pairs are too much alike"


def test_one_slice_dropped_from_a_full_gpu_is_one_instance_destroyed(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    fleet = World(fleet_host(f"{H100}:3"), run_module, tmp_path)
    one, two, three = fleet.uuids
    full = [f"1g.10gb@{start}" for start in range(7)]
    fleet.mig((one, *full), (two, *full), (three, "7g.80gb"))
    before, count = fleet.show(), len(fleet.mutations())
    result = fleet.mig((one, *full[:3], *full[4:]), (two, *full), (three, "7g.80gb"))
    assert not result["failed"]
    assert fleet.mutations()[count:] == [("nvmlComputeInstanceDestroy", one), ("nvmlGpuInstanceDestroy", one)]
    assert fleet.show()[1:] == before[1:]
    assert fleet.slices(0) == [*full[:3], *full[4:]]
    again = fleet.mig((one, *full[:3], *full[4:]), (two, *full), (three, "7g.80gb"))
    assert (again["changed"], len(fleet.mutations())) == (False, count + 2)
