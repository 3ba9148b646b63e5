# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would be if: the answer is a plan that was made, the number of GPUs is the smallest, and nothing is written."""

from __future__ import annotations

import dataclasses
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.action.plan import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, what_if
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import ask_fleet, explain_plans
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Bar, Gpu, Limit, Problem, Quota, Rules, Solution, Unplaced
from ansible_collections.gpuops.fleet.plugins.plugin_utils.what_if import Answer, WhatIf, boards_of
from decide_world import DIGEST, facts, gpu, gpu_facts, host, l40s, manifest_text, need, place, problem, wired

CATALOGUE = door.catalogue()


def ask(asked: Problem, **question: t.Any) -> Answer:
    return WhatIf(Located(question, "fleet_what_if")).answer(asked, CATALOGUE)


def many(asked: Problem, **kind: t.Any) -> dict[str, t.Any]:
    answer: dict[str, t.Any] = ask(asked, how_many=kind).data["how_many"]
    return answer


def test_as_many_gpus_as_it_takes_and_one_less_is_not_enough() -> None:
    asked = problem([host(gpu())], [need(isolation="exclusive", replicas=12)])
    found = many(asked, board="a100")
    assert (found["board"], found["gpus"], found["hosts"], found["unplaced"]) == ("a100-sxm4-80gb", 11, 2, [])
    assert found["tried"]["10"] == 1
    lines = ask(asked, how_many={"board": "a100"}).lines
    assert lines[2:4] == [
        "11 more a100-sxm4-80gb are needed, 8 in a host: all 12 replicas have a place",
        "with 10 more, 1 replica would have no place",
    ]


def test_where_more_would_help_than_are_tried_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MOST", 8)
    asked = problem([host(gpu())], [need(isolation="exclusive", replicas=12)])
    told = "more than 8 a100-sxm4-80gb are needed, and more were not tried: with 8, 8 in a host, 3 of 12 replicas have no place"
    lines = ask(asked, how_many={"board": "a100"}).lines
    assert (lines[2], [line for line in lines if "would have" in line]) == (told, [])


def test_one_that_is_needed_is_told_beside_none() -> None:
    asked = problem([host(gpu())], [need(isolation="exclusive", replicas=2)])
    assert "without it, 1 replica would have no place" in ask(asked, how_many={"board": "a100"}).lines


def test_a_group_of_which_each_needs_a_host_of_its_own_is_not_given_up_too_early() -> None:
    alone = Rules(max_per_host=1, all_or_nothing=True)
    asked = problem([host(gpu())], [need("group", "exclusive", 16_000, replicas=12, rules=alone)])
    found = many(asked, board="a100", gpus=16)
    assert (found["gpus"], found["hosts"], found["unplaced"]) == (161, 11, [])


def test_boards_that_the_fleet_does_not_have_come_from_the_catalogue() -> None:
    asked = problem([host(gpu())], [need("llm", "exclusive", 100_000, replicas=3)])
    assert many(asked, board="h200-sxm5-141gb", gpus=4)["gpus"] == 3
    assert many(asked, board="a100")["gpus"] == 0
    assert ask(asked, how_many={"board": "a100"}).lines[2].startswith("more a100-sxm4-80gb would help nobody: 3 of 3 replicas")


@pytest.mark.parametrize("there", [wired([gpu(0), gpu(1)], [0, 1]), [gpu(number) for number in range(8)]])
def test_more_gpus_are_joined_as_their_maker_joins_them(there: list[Gpu]) -> None:
    """Whatever is known of the NVLink of those that the fleet has."""
    asked = problem([host(*there)], [need("train", "exclusive", 40_000, count=4, nvlink="required", replicas=2)])
    assert many(asked, board="a100")["gpus"] == 8


def test_slices_are_cut_from_the_gpus_that_come() -> None:
    asked = problem([host(gpu())], [need(memory_mib=9000, replicas=22)])
    assert many(asked, board="a100", gpus=1)["gpus"] == 3


def test_what_no_gpu_mends_is_left_out_of_the_count() -> None:
    asked = problem([host(gpu())], [need("aa", "exclusive", replicas=3), need("bb", team="claims"), need("cc", environment="training")])
    asked = Problem(asked.hosts, asked.needs, quotas=(Quota("claims", (Limit("memory", 0),)),))
    found = many(asked, board="a100", environment="production")
    assert (found["gpus"], [each["service"] for each in found["unplaced"]]) == (2, ["bb", "cc"])


def test_who_loses_its_place_is_told_by_name() -> None:
    fleet = [host(gpu()), host(gpu(0, "h2"), name="h2")]
    before = [place("aa", "0", mode="whole"), place("bb", "0", on="h2", mode="whole")]
    wanted = [need("aa", isolation="exclusive", priority=60), need("bb", isolation="exclusive"), need("cc", isolation="exclusive")]
    answer = ask(problem(fleet, wanted, before), remove=["h2"])
    # cc has no place now, either.
    assert answer.data["lost"] == ["bb-1"]
    assert answer.lines[1:3] == ["then 2 of 3 replicas have no place", "lose their place: bb-1"]


def test_hosts_of_an_environment_that_loses_all_are_like_those_that_go() -> None:
    old = host(l40s(), modes=("shared",), shared_max=4)
    asked = problem([old, host(gpu(0, "h2"), name="h2", environment="staging")], [need(isolation="shared", replicas=3)])
    answer = ask(asked, remove=["h1"], how_many={"board": "l40s", "environment": "production", "gpus": 1})
    assert (answer.data["how_many"]["gpus"], answer.data["how_many"]["unplaced"]) == (1, [])


def test_why_more_gpus_would_help_nobody_is_told() -> None:
    asked = problem([host(gpu())], [need(isolation="exclusive", team="claims", replicas=2)])
    found = ask(replace(asked, quotas=(Quota("claims", (Limit("gpus", 1),)),)), how_many={"board": "a100"})
    assert found.lines[2] == "more a100-sxm4-80gb would help nobody: 1 of 2 replicas has no place"
    assert found.lines[3].startswith("with 64 more, ocr 2 has no place: ")
    assert "its team may not have: team claims has used 1" in found.lines[3]


def test_nothing_more_is_needed_where_everybody_has_a_place() -> None:
    asked = problem([host(gpu())], [need()])
    assert ask(asked, how_many={"board": "l40s"}).lines == [
        "what if: nothing changes",
        "then each replica has a place",
        "no l40s more is needed: each replica has a place",
        "SERVICE  REPLICA  HOST  PLACE",
        "ocr      1        h1    1g.10gb@6",
    ]


def test_hosts_come_and_go_and_replicas_are_counted_anew() -> None:
    fleet = [host(gpu()), host(gpu(0, "h2"), name="h2")]
    asked = problem(
        fleet, [need("aa", "exclusive"), need("bb", "exclusive")], (place("aa", "0", mode="whole"), place("bb", "0", on="h2", mode="whole"))
    )
    gone = ask(asked, remove=["h2"])
    assert [each["service"] for each in gone.data["unplaced"]] == ["bb"]
    instead = ask(asked, remove=["h2"], add=[{"board": "a100-sxm4-80gb", "gpus": 1}])
    assert (instead.data["unplaced"], instead.data["moved"]) == ([], ["bb-1"])
    assert instead.lines[0] == "what if: 1 more host with 1 a100-sxm4-80gb; without h2"
    assert len(ask(asked, replicas={"aa": 4}).data["unplaced"]) == 3
    assert ask(asked, replicas={"aa": 0}).data["unplaced"] == []


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"how_many": {"board": "h900"}}, "there is no board 'h900'"),
        ({"how_many": {"board": "0"}}, "may be one of several boards"),
        ({"how_many": {"board": "l40s", "gpus": 0}}, "it must be at least 1"),
        ({"add": [{"board": "l40s", "gpus": 1, "environment": "prodution"}]}, "no host and no service has the environment 'prodution'"),
        ({"remove": ["h7"]}, "nobody knows h7"),
        ({"remove": ["h11"]}, "nobody knows h11; did you mean 'h1'"),
        ({"remove": ["zzz", "h11"]}, "nobody knows h11, zzz; 'h11': did you mean 'h1'"),
        ({"remove": ["a1", "a2", "a3", "a4", "a5"]}, "nobody knows a1, a2, a3 and 2 more"),
        ({"replicas": {"zz": 2}}, "nobody knows zz"),
        ({"replicas": {"ocr": -1}}, "out of bounds"),
        ({"ad": []}, "unknown field 'ad'"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_a_line(question: dict[str, t.Any], said: str) -> None:
    with pytest.raises(FleetError, match=said):
        ask(problem([host(gpu(0), l40s(1))], [need()]), **question)


def test_hosts_that_come_are_like_one_with_such_a_board_before_one_by_name() -> None:
    fleet = [host(l40s(), name="h0", modes=("whole",)), host(gpu(), modes=("mig",))]
    assert many(problem(fleet, [need(replicas=10)]), board="a100", gpus=1)["unplaced"] == []


def test_the_gate_says_of_hosts_that_come_what_it_says_of_the_one_they_are_like() -> None:
    asked = problem([host(gpu())], [need(bars={("h1", "a100-sxm4-80gb"): Bar("CUDA 13 needs a newer driver", "")})])
    found = ask(asked, how_many={"board": "a100"}, add=[{"board": "a100"}])
    assert found.data["how_many"]["gpus"] == 0
    assert "that the compatibility gate refuses (CUDA 13 needs a newer driver)" in found.data["unplaced"][0]["reason"]


def test_the_answer_counts_one_as_one() -> None:
    assert ask(problem([host()], [need()])).lines[1] == "then 1 of 1 replica has no place"
    assert ask(problem([host(gpu())], [need()])).lines[1] == "then each replica has a place"
    assert ask(problem([host(gpu())], [])).lines[1] == "then there is nobody to place"


@pytest.mark.parametrize("name", ["more-0000", "more-0001", "more-1-0000", "more-2-0000"])
def test_hosts_that_come_have_names_that_nobody_has(name: str) -> None:
    fleet = [host(gpu(0, name), name=name)]
    asked = problem(fleet, [need(isolation="exclusive", replicas=4)], [place("ocr", "0", replica=1, on=name, mode="whole")])
    for known in (asked, dataclasses.replace(asked, hosts=(host(gpu(0)),))):
        assert many(known, board="a100", gpus=1)["gpus"] == 3 - (known is not asked)
        kinds = [{"board": "a100", "gpus": 1, "hosts": 2}, {"board": "a100", "gpus": 1}]
        assert not ask(known, add=kinds).data["unplaced"]
        assert all(each.changes[0].kind == "hosts" for each in propose(known, make_plan(known)))


def test_replicas_that_lack_a_place_for_one_reason_are_one_line() -> None:
    lines = ask(problem([host(gpu())], [need(isolation="exclusive")]), replicas={"ocr": 1000}).lines
    assert [line.split()[:4] for line in lines if "no place:" in line] == [["ocr", "2", "to", "1000"]]


def test_every_board_of_the_catalogue_can_be_asked_for() -> None:
    known = {each.board: each for each in boards_of(CATALOGUE)}
    assert set(known) == set(CATALOGUE.boards)
    assert all(each.memory_mib > 0 for each in known.values())


def site(tmp_path: Path, **more: t.Any) -> dict[str, t.Any]:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "ocr.yml").write_text(manifest_text(), encoding="utf-8")
    policy = {"fleet_environment": "production"}
    return {
        "manifests": str(tmp_path / "manifests"),
        "plans": str(tmp_path / "plans"),
        "hosts": {"h1": {"facts": facts([gpu_facts()]), "policy": policy}},
        "templates": [],
        "fail_unplaced": False,
        **more,
    }


QUESTION = (
    "{services: [{schema: 1, service: big, team: claims, environment: production, image: 'r/x@sha256:"
    + DIGEST
    + "', gpu: {isolation: exclusive, memory: 40 GiB}, replicas: 3}], how_many: {board: a100}}"
)


@pytest.mark.parametrize("form", ["text", "file", "data"])
def test_the_door_answers_a_question_in_each_form_and_writes_nothing(tmp_path: Path, form: str) -> None:
    path = tmp_path / "question.yml"
    path.write_text(QUESTION, encoding="utf-8")
    asked = {"text": QUESTION, "file": str(path), "data": read_yaml(QUESTION, "x").data}[form]
    result = run(site(tmp_path, what_if=asked), check_mode=False, diff=False)
    assert (result["changed"], result["what_if"]["how_many"]["gpus"]) == (False, 3)
    assert result["table"][0] == "what if: big beside what there is"
    assert not (tmp_path / "plans").exists()


def test_a_board_that_the_gate_would_refuse_here_is_no_help() -> None:
    """Nobody has one yet: a Volta, for an image of CUDA 13."""
    image = f"registry.example.com/receipt-ocr@sha256:{DIGEST}"
    driver = {"present": True, "version": "580.95.05", "cuda": None, "flavour": None}
    machine = facts([gpu_facts(compute_capability="8.0")], driver=driver)
    found = ask_fleet(
        WhatIf(Located({"how_many": {"board": "v100-sxm2-32gb"}}, "fleet_what_if")),
        [("m/ocr.yml", manifest_text(image=image, gpu="{isolation: exclusive, memory: 20 GiB}", replicas="2"))],
        {},
        {"h1": {"facts": machine, "policy": {"fleet_environment": "production"}}},
        CATALOGUE,
        ["http"],
        judge=door.judge({image: ["CUDA_VERSION=13.0.2"]}),
    )
    assert found.lines[1] == "then 1 of 2 replicas has no place"
    assert found.lines[2] == "more v100-sxm2-32gb would help nobody: 1 of 2 replicas has no place"


def test_the_answer_says_which_hosts_cannot_be_read(tmp_path: Path) -> None:
    given = site(tmp_path, what_if={"replicas": {"receipt-ocr": 2}})
    given["hosts"]["h2"] = {"facts": None, "policy": {"fleet_environment": "production"}, "unread": "no route to host"}
    result = run(given, check_mode=False, diff=False)
    assert result["table"][1] == "h2 counts as gone, for it cannot be read: no route to host"
    assert result["what_if"]["unread"] == {"h2": "no route to host"}


def test_the_door_says_why_of_whom_it_is_asked(tmp_path: Path) -> None:
    first = run(site(tmp_path), check_mode=False, diff=False)
    assert [line.partition(":")[0] for line in first["why"]] == ["receipt-ocr-1"]
    arguments = {**site_again(tmp_path), "explain": ["true"]}
    assert run(arguments, check_mode=False, diff=False)["why"] == []
    (kept,) = run({**arguments, "explain": ["receipt-ocr, receipt-ocr-1"]}, check_mode=False, diff=False)["why"]
    assert "kept: its place is still right" in kept
    with pytest.raises(FleetError, match="explain: there is no service or replica 'receipt-oc'; did you mean 'receipt-ocr'"):
        run({**arguments, "explain": ["receipt-oc"]}, check_mode=False, diff=False)


def site_again(tmp_path: Path) -> dict[str, t.Any]:
    (tmp_path / "manifests" / "ocr.yml").unlink()
    (tmp_path / "manifests").rmdir()
    return site(tmp_path)


def test_plans_can_be_explained_after_they_were_written(tmp_path: Path) -> None:
    arguments = site(tmp_path)
    run(arguments, check_mode=False, diff=False)
    texts, plans = door.read_texts(arguments["manifests"]), door.last_plans(arguments["plans"], FLEET)
    found = explain_plans(texts, {}, plans, arguments["hosts"], CATALOGUE, ["http"])
    assert found == {"receipt-ocr-1": "the only GPU with room for it"}
    assert explain_plans(texts, plans, plans, arguments["hosts"], CATALOGUE, ["http"]) == {}


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ({"how_many": {"board": ""}}, "how_many.board: it names no board; write a board's id or a part that only one has, such as a100"),
        ({"add": [{"board": " "}]}, "add[0].board: it names no board; write a board's id or a part that only one has, such as a100"),
        ({"remove": ["h1", "h2", "h1"]}, "remove[2]: 'h1' is removed already by remove[0]; name each host once"),
    ],
)
def test_a_question_that_names_nothing_or_a_host_twice_is_refused(question: dict[str, t.Any], line: str) -> None:
    with pytest.raises(FleetError) as caught:
        ask(problem([host(gpu()), host(name="h2")], [need()]), **question)
    assert str(caught.value) == f"fleet_what_if: {line}"


@pytest.mark.parametrize(("replicas", "count"), [(72, 1), (17, 4)])
def test_a_group_larger_than_what_is_tried_first_is_counted_all_the_same(replicas: int, count: int) -> None:
    group = need(isolation="exclusive", count=count, replicas=replicas, rules=Rules(all_or_nothing=True))
    assert many(problem([host(gpu())], [group]), board="a100")["gpus"] == replicas * count - (count == 1)


def test_the_fewest_are_told_where_very_many_would_serve_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a plan for very many GPUs might, which nobody proves to be the best."""
    plain = what_if.make_plan

    def worse(given: Problem) -> Solution:
        solution = plain(given)
        lost = solution.placements[-1:] if sum(len(each.gpus) for each in given.hosts) > 40 else ()
        unplaced = (*solution.unplaced, *(Unplaced(each.service, each.replica, "lost", "nothing") for each in lost))
        return dataclasses.replace(solution, unplaced=unplaced, placements=solution.placements[: len(solution.placements) - len(lost)])

    monkeypatch.setattr(what_if, "make_plan", worse)
    needs = [need(isolation="exclusive", replicas=9), need("never", "exclusive", models=("h900",))]
    found = many(problem([host(gpu())], needs), board="a100", gpus=4)
    assert (found["gpus"], len(found["unplaced"])) == (8, 1)


def test_who_gets_all_of_the_gpu_that_it_had_a_share_of_has_moved() -> None:
    asked = problem([host(l40s())], [need("s", "exclusive")], [place("s", "0", mode="shared")])
    now = Solution((place("s", "0", mode="whole"),))
    assert what_if._moved(asked, now) == ["s-1"]
    assert any("whole" in line for line in what_if._places(asked, now))
    assert what_if._moved(asked, Solution(asked.previous)) == []
