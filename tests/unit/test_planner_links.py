# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that NVLink joins: who gets which, who leaves them to others, and what is said where there are none."""

from __future__ import annotations

import itertools
import random
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import edited, propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import host_of, need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import best_joined, joined, most_sets, new_gpus
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.moving import Move, moved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.objective import objective
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import Policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Gpu,
    Hint,
    Host,
    Need,
    Placement,
    Problem,
    Resources,
    Rules,
    planned,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Proposal
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import exact, program, together
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState
from ansible_collections.gpuops.fleet.plugins.plugin_utils.what_if import WhatIf, boards_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.why_here import reason_lines, why_here
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import (
    facts,
    gpu,
    gpu_facts,
    host,
    l40s,
    manifest_text,
    need,
    place,
    problem,
    where,
    wired,
)
from ansible_collections.gpuops.fleet.tests.unit.test_planner_properties import QUICK, wires
from hypothesis import given
from hypothesis import strategies as st

PAIRS = [(0, 2), (1, 3)]
CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)


def a100s(many: int, *sets: t.Sequence[int], name: str = "h1", **more: t.Any) -> Host:
    """A host of so many whole A100s, joined in these sets."""
    return host(*wired([gpu(number, name) for number in range(many)], *sets), name=name, **more)


def whole(service: str = "train", count: int = 2, **more: t.Any) -> Need:
    return need(service, "exclusive", 30000, count=count, **more)


def solved(given_: Problem) -> dict[str, str]:
    """Replica -> where; right in the eyes of the checker."""
    solution = make_plan(given_)
    assert planner_checker.complaints(given_, solution) == []
    return {each.name: where(each) for each in solution.placements}


# Which GPUs


def test_a_replica_of_two_gets_a_bridged_pair_and_not_the_first_two() -> None:
    assert solved(problem([a100s(4, *PAIRS)], [whole()])) == {"train-1": "h1/0,2"}


def test_all_of_a_service_get_pairs_of_their_own() -> None:
    assert solved(problem([a100s(4, *PAIRS)], [whole(replicas=2)])) == {"train-1": "h1/0,2", "train-2": "h1/1,3"}


@pytest.mark.parametrize("sets", [(), *[[pair] for pair in PAIRS]])
def test_where_links_do_not_matter_the_first_gpus_are_taken(sets: t.Any) -> None:
    assert solved(problem([a100s(4, *sets)], [whole(count=4)])) == {"train-1": "h1/0,1,2,3"}


def test_of_eight_behind_switches_any_will_do() -> None:
    places = solved(problem([a100s(8, range(8))], [whole(count=4, replicas=2, nvlink="required")]))
    assert places == {"train-1": "h1/0,1,2,3", "train-2": "h1/4,5,6,7"}


def test_a_host_with_joined_gpus_comes_before_one_without_and_before_smaller_ones() -> None:
    cards = host(*wired([l40s(number, "a1") for number in range(2)]), name="a1")
    assert solved(problem([cards, a100s(4, *PAIRS)], [whole()])) == {"train-1": "h1/0,2"}
    assert solved(problem([cards, a100s(4)], [whole()])) == {"train-1": "a1/0,1"}


def test_one_gpu_does_not_part_a_pair_while_another_serves_as_well() -> None:
    given_ = problem([a100s(3, (0, 1))], [whole("one", 1)])
    assert solved(given_) == {"one-1": "h1/2"}


def test_one_gpu_takes_what_is_left_of_a_pair_before_it_parts_another() -> None:
    given_ = problem([a100s(4, *PAIRS)], [whole("one", 1), whole("two", 1)], [place("two", "1", mode="whole")])
    assert solved(given_) == {"one-1": "h1/3", "two-1": "h1/1"}


def test_a_slice_and_a_share_do_not_part_a_pair_either() -> None:
    fleet = [a100s(3, (0, 1), modes=("mig", "shared", "whole"))]
    assert solved(problem(fleet, [need()])) == {"ocr-1": "h1/2:1g.10gb@6"}
    assert solved(problem(fleet, [need(isolation="shared")])) == {"ocr-1": "h1/2"}


def test_what_changes_less_comes_before_a_pair_that_stays_whole() -> None:
    """Leaving joined GPUs to others is the last thing that counts."""
    several = wired([gpu(0), gpu(1), gpu(2, mig=True)], (0, 1))
    assert solved(problem([host(*several)], [whole("one", 1)])) == {"one-1": "h1/0"}


def test_two_are_taken_from_four_that_are_parted_already() -> None:
    given_ = problem([a100s(8, range(4), range(4, 8))], [whole("one", 1), whole()], [place("one", "5", mode="whole")])
    assert solved(given_) == {"one-1": "h1/5", "train-1": "h1/0,1"} or solved(given_)["train-1"] in ("h1/4,6", "h1/4,7", "h1/6,7")
    assert solved(given_)["train-1"] == "h1/4,6"


def test_three_without_a_joined_set_part_no_more_than_they_must() -> None:
    assert solved(problem([a100s(5, (0, 2), (1, 3))], [whole(count=3)])) == {"train-1": "h1/0,2,4"}


# Required


def test_without_joined_gpus_who_asks_for_them_has_no_place_and_who_prefers_them_has() -> None:
    fleet = [a100s(4)]
    assert solved(problem(fleet, [whole(nvlink="required")])) == {}
    assert solved(problem(fleet, [whole()])) == {"train-1": "h1/0,1"}


def test_gpus_that_are_joined_one_after_the_other_are_no_joined_set() -> None:
    chain = [a100s(3, (0, 1), (1, 2))]
    assert solved(problem(chain, [whole(count=3, nvlink="required")])) == {}
    assert solved(problem(chain, [whole(count=2, nvlink="required")])) == {"train-1": "h1/0,1"}


def test_it_is_enough_that_one_of_two_names_the_other() -> None:
    one, other = wired([gpu(0), gpu(1)], (0, 1))
    given_ = problem([host(replace(one, links=None), other)], [whole(nvlink="required")])
    assert solved(given_) == {"train-1": "h1/0,1"}


def test_required_holds_for_what_runs_already_and_preferred_moves_nobody() -> None:
    there = [place("train", "0,1", mode="whole")]
    fleet = [a100s(4, *PAIRS)]
    assert solved(problem(fleet, [whole()], there)) == {"train-1": "h1/0,1"}
    assert solved(problem(fleet, [whole(nvlink="required")], there)) == {"train-1": "h1/0,2"}


def test_what_nobody_knows_of_lets_a_replica_stay_and_gives_no_new_one_a_place() -> None:
    given_ = problem([host(gpu(0), gpu(1), gpu(2), gpu(3))], [whole(nvlink="required", replicas=2)], [place("train", "0,1", mode="whole")])
    assert solved(given_) == {"train-1": "h1/0,1"}


def test_lower_priorities_give_way_on_a_joined_set() -> None:
    there = [place(name, str(number), mode="whole") for number, name in enumerate(("aa", "bb", "cc"))]
    others = [whole(name, 1, priority=10) for name in ("aa", "bb", "cc")]
    given_ = replace(problem([a100s(4, *PAIRS)], [*others, whole(nvlink="required", priority=90)], there), preemption=True)
    assert solved(given_)["train-1"] == "h1/1,3"
    assert {name: at for name, at in solved(given_).items() if name in ("aa-1", "cc-1")} == {"aa-1": "h1/0", "cc-1": "h1/2"}


def test_others_move_out_of_a_joined_set() -> None:
    there = [place("aa", "0", mode="whole"), place("bb", "1", mode="whole")]
    others = [whole("aa", 1), whole("bb", 1)]
    given_ = replace(problem([a100s(4, *PAIRS), a100s(1, name="h2")], [*others, whole(nvlink="required")], there), moves=2)
    places = solved(given_)
    assert places["train-1"] in ("h1/0,2", "h1/1,3")
    assert len(places) == 3


@pytest.mark.parametrize("solver", [True, False])
def test_services_that_differ_in_this_alone_are_not_taken_for_one_another(solver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not solver:
        monkeypatch.setattr(program, "highspy", None)
    strict = [whole(name, nvlink="required", priority=priority) for name, priority in (("aa", 90), ("dd", 10))]
    loose = [whole(name, priority=50) for name in ("bb", "cc")]
    assert sorted(solved(problem([a100s(4)], [*strict, *loose]))) == ["bb-1", "cc-1"]


def test_a_gpu_whose_peers_are_in_use_or_that_is_in_use_itself_parts_nothing() -> None:
    """Of two that serve a slice already, or whose other half does, both are as good: the first is taken."""
    fleet = [a100s(4, (0, 2), (1, 3), modes=("mig", "whole"))]
    there = [place("aa", "1:1g.10gb@0"), place("bb", "2:1g.10gb@0")]
    given_ = problem(fleet, [need("aa"), need("bb"), need("cc")], there)
    assert solved(given_)["cc-1"].startswith("h1/1:")
    there = [place("aa", "1:1g.10gb@0"), place("bb", "2:1g.10gb@0"), place("dd", "0", mode="whole")]
    given_ = problem(fleet, [need("aa"), need("bb"), need("cc"), whole("dd", 1)], there)
    assert solved(given_)["cc-1"].startswith("h1/1:")
    given_ = problem([a100s(4, (0, 2))], [whole("bb", 1), need("cc")], [place("bb", "2", mode="whole")])
    assert solved(given_)["cc-1"].startswith("h1/0:")


def test_a_place_that_was_found_elsewhere_is_taken_only_if_it_is_joined() -> None:
    one = whole(nvlink="required")
    given_ = problem([a100s(4, *PAIRS)], [one])
    draft = Draft(given_, Fleet(given_), {})
    assert draft.place_at(one, 1, Hint("h1", ("GPU-h1-0", "GPU-h1-1"))) is None
    assert draft.place_at(one, 1, Hint("h1", ("GPU-h1-0", "GPU-h1-2"))) is not None


@pytest.mark.parametrize("solver", [True, False])
def test_whoever_needs_joined_gpus_chooses_before_whoever_prefers_them(solver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not solver:
        monkeypatch.setattr(program, "highspy", None)
    given_ = problem([a100s(4, (1, 3))], [whole("aa"), whole("zz", nvlink="required")])
    assert solved(given_) == {"aa-1": "h1/0,2", "zz-1": "h1/1,3"}


# The solver


def test_the_program_counts_joined_sets_and_proves_that_there_are_no_more() -> None:
    solution = make_plan(problem([a100s(5, *PAIRS)], [whole(nvlink="required", replicas=3)]))
    assert [where(each) for each in solution.placements] == ["h1/0,2", "h1/1,3"]
    assert solution.proof is not None
    assert solution.proof.more == ()


def test_on_hosts_without_joined_gpus_it_hopes_for_nobody() -> None:
    solution = make_plan(problem([a100s(8), a100s(8, (0, 1), name="h2")], [whole(count=4, nvlink="required")]))
    assert solution.placements == ()
    assert solution.proof is not None
    assert solution.proof.more == ()


def test_places_that_were_found_together_are_joined_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh fleet that one by one would open more GPUs for: what the program proposes takes joined GPUs."""
    hints: list[t.Any] = []
    plain = together.plan_together

    def kept(*arguments: t.Any) -> t.Any:
        found = plain(*arguments)
        hints.extend([] if found is None else found.hints.values())
        return found

    monkeypatch.setattr(together, "plan_together", kept)
    monkeypatch.setattr(exact, "MOST_COLUMNS", 0)
    rng = random.Random(5)
    for _round in range(30):
        small = [need(f"s{number}", memory_mib=rng.choice([9000, 15000, 30000]), replicas=rng.randint(1, 3)) for number in range(5)]
        fleet = [a100s(4, *PAIRS), a100s(4, (0, 3), (1, 2), name="h2")]
        given_ = problem(fleet, [*small, whole(nvlink="required", replicas=2), whole("other", 2)])
        solved(given_)
    several = [hint for hint in hints if len(hint.gpus) == 2]
    assert several
    sets = [{"0", "2"}, {"1", "3"}, {"0", "3"}, {"1", "2"}]
    assert all({uuid.rpartition("-")[2] for uuid in hint.gpus} in sets for hint in several)


def test_of_what_the_program_leaves_whole_joined_gpus_are_together() -> None:
    """Slices fill two GPUs of four; the two that stay whole are a pair, and nobody is left over but who needs three."""
    small = [need("s0", memory_mib=15000, replicas=2), need("s1", memory_mib=9000, replicas=5)]
    three = whole("many", 3)
    places = solved(problem([a100s(4, (0, 3), (1, 2))], [*small, three, whole(nvlink="required")]))
    assert len(places) == 8
    assert places["train-1"] == "h1/0,3"


def test_whoever_has_to_be_joined_gets_what_the_program_meant_for_it() -> None:
    fleet = [a100s(4, *PAIRS), a100s(4, (0, 3), (1, 2), name="h2")]
    singles = [whole("ones", 1, replicas=3), need("s0", memory_mib=30000, replicas=2)]
    both = [whole("aa", nvlink="required"), whole("bb", nvlink="required", replicas=3)]
    places = solved(problem(fleet, [*singles, *both]))
    assert len(places) == 7
    assert "aa-1" in places


def test_what_one_may_have_proves_nothing_for_another_that_asks_for_joined_gpus() -> None:
    """One that takes any two has them, and there are two more: the bound does not hope for one who needs joined ones."""
    solution = make_plan(problem([a100s(4)], [whole("aa"), whole("bb", nvlink="required")]))
    assert [each.service for each in solution.placements] == ["aa"]
    assert solution.proof is not None
    assert solution.proof.more == ()


def test_a_plan_whose_replicas_are_joined_is_worth_more() -> None:
    given_ = problem([a100s(4, *PAIRS)], [whole()])
    solution = make_plan(given_)
    other = replace(solution, placements=(replace(solution.placements[0], gpus=("GPU-h1-0", "GPU-h1-1")),))
    assert objective(given_, solution) > objective(given_, other)
    plain = problem([a100s(4)], [whole()])
    assert objective(plain, solution) == objective(plain, other)


# Why not, and what would help


def proposals(asked: Problem, boards: t.Sequence[Gpu] = ()) -> list[Proposal]:
    """Each change that is told gives the replica its place."""
    solution = make_plan(asked)
    found = propose(asked, solution, boards=boards)
    for each in found:
        for change in each.changes:
            after = make_plan(edited(planned(asked, solution), change.edits))
            assert (each.service, each.replica) in {(one.service, one.replica) for one in after.placements}, change
    return found


def test_free_gpus_that_are_not_joined_are_the_cause_and_doing_without_is_the_cheapest_change() -> None:
    given_ = problem([a100s(4)], [whole(nvlink="required")])
    (missing,) = make_plan(given_).unplaced
    assert missing.reason == "h1: 4 GPUs free, of which NVLink does not join 2 with each other (nvlink: required)"
    assert missing.help == "leave 'nvlink: required' out: h1 has the GPUs for it"
    (found,) = proposals(given_)
    assert found.cause == "nvlink"
    assert [(change.kind, change.sentence) for change in found.changes] == [
        ("nvlink", "leave 'nvlink: required' out: h1 has the GPUs for it")
    ]


def test_fewer_gpus_that_are_joined_are_the_other_change() -> None:
    (found,) = proposals(problem([a100s(4, range(3))], [whole(count=4, nvlink="required")]))
    assert [(change.kind, change.sentence) for change in found.changes] == [
        ("nvlink", "leave 'nvlink: required' out: h1 has the GPUs for it"),
        ("count", "ask for 3 GPUs in place of 4 ('count'): NVLink joins no more with each other on h1"),
    ]


def test_a_host_with_fewer_gpus_that_are_all_joined_is_asked_for_those_and_the_rule_stays() -> None:
    (found,) = proposals(problem([a100s(4, range(4)), a100s(4, name="h2")], [whole(count=5, nvlink="required")]))
    assert [change.sentence for change in found.changes][:1] == ["ask for 4 GPUs in place of 5 ('count'): h1 has no more of one board"]
    (found,) = proposals(problem([a100s(1)], [whole(nvlink="required")]))
    # A manifest of one GPU that names nvlink is refused.
    assert found.changes[0].sentence == "ask for 1 GPU in place of 2 ('count', without 'nvlink'): h1 has no more of one board"


def test_a_host_that_lacks_something_else_too_is_not_said_to_have_room() -> None:
    given_ = problem([a100s(4, listening=frozenset({22}))], [whole(nvlink="required", ports=(("http", 22),))])
    (missing,) = make_plan(given_).unplaced
    assert missing.help == "leave 'nvlink: required' out: h1 has the GPUs for it"


def test_whoever_has_a_joined_set_is_named_and_not_whoever_has_the_first_gpus() -> None:
    there = [place("aa", "0", mode="whole"), place("bb", "2", mode="whole"), place("cc", "1", mode="whole")]
    others = [whole(name, 1) for name in ("aa", "bb", "cc")]
    (missing,) = make_plan(problem([a100s(4, (0, 2))], [*others, whole(nvlink="required")], there)).unplaced
    assert missing.help == "h1 has 2 GPUs (a100-sxm4-80gb) for it only if aa-1, bb-1 move"


def test_where_the_facts_do_not_tell_the_reason_says_so_and_what_to_do() -> None:
    known = "h1: 2 GPUs free, and its facts do not tell which of them NVLink joins"
    (missing,) = make_plan(problem([host(gpu(0), gpu(1))], [whole(nvlink="required")])).unplaced
    assert missing.reason == f"{known} (read its facts anew, and plan again)"
    (missing,) = make_plan(problem([host(gpu(0), gpu(1, mig=True))], [whole(nvlink="required")])).unplaced
    assert missing.reason == f"{known} (a GPU in MIG mode cannot: give it mode whole in fleet_gpu_layouts)"


def test_a_joined_set_that_others_have_is_in_use() -> None:
    there = [place("aa", "0,1", mode="whole")]
    (found,) = proposals(problem([a100s(2, (0, 1))], [whole("aa", 2), whole(nvlink="required")], there))
    assert found.cause == "in use"
    assert "nvlink" not in {change.kind for change in found.changes}


def test_more_hosts_have_a_board_that_can_be_joined_by_so_many() -> None:
    given_ = problem([a100s(0)], [whole(count=4, nvlink="required", models=("h100",))])
    (found,) = proposals(given_, boards_of(CATALOGUE))
    (change,) = [each for each in found.changes if each.kind == "hosts"]
    assert "with 4 free GPUs that NVLink joins (h100-" in change.sentence
    assert "pcie" not in change.sentence


def test_what_cards_without_nvlink_would_do_is_not_told() -> None:
    given_ = problem([host(l40s(0), l40s(1))], [whole(nvlink="required", models=("l40s",))])
    (found,) = proposals(given_, boards_of(CATALOGUE))
    assert "hosts" not in {change.kind for change in found.changes}


@pytest.mark.parametrize("seed", range(60))
def test_every_change_that_is_told_on_a_small_fleet_does_what_it_says(seed: int) -> None:
    chance = random.Random(seed)
    fleet = []
    for number in range(chance.randint(1, 3)):
        name, many = f"h{number}", chance.randint(2, 4)
        pairs = [pair for pair in itertools.combinations(range(many), 2) if chance.random() < 0.5]
        fleet.append(a100s(many, *pairs, name=name))
    there = [whole(f"old-{number}", chance.randint(1, 2), priority=chance.choice([10, 50])) for number in range(3)]
    before = make_plan(problem(fleet, there)).placements
    new = whole("new", chance.randint(2, 4), nvlink="required", replicas=2)
    found = proposals(problem(fleet, [*there, new], before), boards_of(CATALOGUE))
    assert found == [] or found[0].changes
    assert all(each.changes for each in found if each.cause == "nvlink")


def test_why_a_replica_is_where_it_is_says_that_nvlink_decided() -> None:
    given_ = problem([a100s(4, name="a1"), a100s(4, *PAIRS)], [whole()])
    (line,) = reason_lines(why_here(given_, make_plan(given_)))
    assert line.endswith("chosen for GPUs that NVLink joins")
    given_ = problem([a100s(2, (0, 1), name="a1"), a100s(2)], [whole("one", 1)])
    (line,) = reason_lines(why_here(given_, make_plan(given_)))
    assert (
        line == "one-1: whole on h1 GPU-h1-0, new: 4 GPUs of 2 hosts have room for it; chosen for GPUs that NVLink joins stay free together"
    )


def test_a_replica_moves_by_hand_only_to_joined_gpus() -> None:
    there = [place("train", "0,1", mode="whole")]
    train = whole(nvlink="required")
    fleet = [a100s(2, (0, 1)), a100s(4, (1, 3), name="h2"), a100s(2, name="h3")]
    solution = moved(problem(fleet, [train], there), Move("train", 1, "h2"))
    assert [where(each) for each in solution.placements] == ["h2/1,3"]
    with pytest.raises(FleetError, match="NVLink does not join 2 with each other"):
        moved(problem(fleet, [train], there), Move("train", 1, "h3"))


@pytest.mark.parametrize(("board", "gpus"), [("h100-sxm5-80gb", 4), ("h100-pcie-80gb", 0)])
def test_how_many_gpus_it_takes_knows_which_boards_can_be_joined(board: str, gpus: int) -> None:
    asked = f"{{how_many: {{board: {board}, gpus: 8, environment: production}}}}"
    answer = WhatIf(read_yaml(asked, "fleet_what_if")).answer(problem([a100s(2)], [whole(count=4, nvlink="required")]), CATALOGUE)
    assert answer.data["how_many"]["gpus"] == gpus
    assert bool(answer.data["how_many"]["unplaced"]) is (gpus == 0)


# From facts and manifests


def test_links_of_facts_become_those_of_the_planner() -> None:
    several = [gpu_facts(0, nvlink=["0000:02:00.0"]), gpu_facts(1, nvlink=None), gpu_facts(2)]
    made = host_of("h1", facts(several), Policy(fleet_environment="production"), CATALOGUE, [])
    assert [one.links for one in made.gpus] == [("GPU-h1-1",), None, None]


def test_a_peer_that_is_not_in_the_facts_is_left_out() -> None:
    made = host_of("h1", facts([gpu_facts(0, nvlink=["0000:77:00.0"])]), Policy(fleet_environment="production"), CATALOGUE, [])
    assert made.gpus[0].links == ()


def test_a_manifest_says_whether_nvlink_is_required_and_no_container_is_made_anew_for_it() -> None:
    texts = [
        manifest_text(gpu=f"{{isolation: exclusive, count: 2, memory: 8 GiB{more}}}")
        for more in ("", ", nvlink: preferred", ", nvlink: required")
    ]
    manifests = [read_manifest("m.yml", text) for text in texts]
    assert [need_of(each).nvlink for each in manifests] == ["preferred", "preferred", "required"]
    assert len({each.digest() for each in manifests}) == 1


def test_nvlink_of_one_gpu_is_refused() -> None:
    with pytest.raises(FleetError, match="one GPU is joined with nobody"):
        read_manifest("m.yml", manifest_text(gpu="{isolation: exclusive, memory: 8 GiB, nvlink: required}"))


# Sets


def states(draw: st.DrawFn, many: int) -> list[GpuState]:
    several = wires(draw, [gpu(number, mig=draw(st.booleans())) for number in range(many)])
    one = host(*several)
    return HostState(one, [GpuState(each, one, None) for each in several]).gpus


@QUICK
@given(st.data(), st.integers(2, 6), st.integers(2, 4))
def test_the_best_joined_set_is_the_one_that_a_search_through_all_finds(data: st.DataObject, many: int, count: int) -> None:
    @st.composite
    def drawn(draw: st.DrawFn) -> list[GpuState]:
        return states(draw, many)

    several = data.draw(drawn())

    def cost(state: GpuState) -> tuple[int, ...]:
        return (int(state.gpu.mig),)

    def rank(chosen: t.Sequence[GpuState]) -> tuple[t.Any, ...]:
        uuids = {one.gpu.uuid for one in chosen}
        cut = sum(len(one.peers - uuids) for one in chosen)
        return (sum(one.gpu.mig for one in chosen), cut, [one.gpu.pci for one in chosen])

    sets = [each for each in itertools.combinations(several, count) if joined(each)]
    found = best_joined(several, count, cost)
    assert (found is None) == (not sets)
    assert found is None or rank(found) == min(map(rank, sets))
    most = max(
        (len(each) for number in range(many // count + 1) for each in itertools.combinations(sets, number) if _apart(each)), default=0
    )
    assert most_sets(several, count) >= most


def _apart(sets: t.Sequence[t.Sequence[GpuState]]) -> bool:
    uuids = [one.gpu.uuid for each in sets for one in each]
    return len(uuids) == len(set(uuids))


def test_sixteen_gpus_that_are_all_joined_take_no_search() -> None:
    made = a100s(16, range(16))
    several = HostState(made, [GpuState(each, made, None) for each in made.gpus]).gpus
    asked = 0

    def cost(_state: GpuState) -> tuple[int, ...]:
        nonlocal asked
        asked += 1
        return ()

    found = best_joined(several, 8, cost)
    assert found is not None
    assert [one.gpu.pci for one in found] == [one.gpu.pci for one in several[:8]]
    assert asked == 16


def test_hosts_that_are_not_there_have_sets_one_after_the_other() -> None:
    assert [one.links for one in new_gpus(gpu(7, slices="1g.10gb@0"), ["a", "b", "c"], 2)] == [("b",), ("a",), ()]
    assert new_gpus(gpu(7, slices="1g.10gb@0"), ["a"], None) == (gpu(uuid="a", links=None),)


# Many fleets


@st.composite
def fleets(draw: st.DrawFn) -> Problem:
    """Whole GPUs, wired in every way, and replicas of one to four of them; planned before for other needs."""
    hosts = [
        host(*wires(draw, [gpu(number, f"h{one}") for number in range(draw(st.integers(1, 6)))]), name=f"h{one}")
        for one in range(draw(st.integers(1, 3)))
    ]

    def needs() -> list[Need]:
        return [
            whole(
                f"s{number}",
                draw(st.integers(1, 4)),
                replicas=draw(st.integers(1, 3)),
                priority=draw(st.sampled_from([10, 50, 90])),
                nvlink=draw(st.sampled_from(["preferred", "required"])),
                resources=Resources(0, 0, 0, 0),
                rules=Rules(spread=draw(st.sampled_from(["host", "pack"]))),
            )
            for number in range(draw(st.integers(1, 5)))
        ]

    before: tuple[Placement, ...] = make_plan(problem(hosts, needs())).placements if draw(st.booleans()) else ()
    return replace(problem(hosts, needs(), before), moves=draw(st.integers(0, 3)), preemption=draw(st.booleans()))


@QUICK
@given(fleets())
def test_the_checker_finds_nothing_wrong_and_planning_again_changes_nothing(given_: Problem) -> None:
    first = make_plan(given_)
    assert planner_checker.complaints(given_, first) == []
    again = make_plan(replace(given_, previous=first.placements))
    assert (again.placements, again.displaced) == (first.placements, ())


@QUICK
@given(fleets())
def test_who_stays_alone_is_not_kept_from_a_joined_set_of_its_host(given_: Problem) -> None:
    """The first replica of a fleet that serves nobody gets a joined set where any host of its spread has one."""
    one = replace(given_.needs[0], replicas=1)
    solution = make_plan(replace(given_, needs=(one,), previous=()))
    sets = any(planner_checker.all_linked(each) for each_host in given_.hosts for each in itertools.combinations(each_host.gpus, one.count))
    for each in solution.placements:
        gpus = {gpu_.uuid: gpu_ for each_host in given_.hosts for gpu_ in each_host.gpus}
        assert planner_checker.all_linked([gpus[uuid] for uuid in each.gpus]) == sets
