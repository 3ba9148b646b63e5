# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that nobody reaches: who goes where, what stays in their plans, and what is said while a person has not decided yet."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.action.plan import run
from ansible_collections.gpuops.fleet.plugins.filter.fleet import down_hosts, fleet_hosts, unread_reason
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, views
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import read_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Problem
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu, gpu_facts, host, manifest_text, need, place, problem, where

CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
OCR = ("m/ocr.yml", manifest_text("ocr", replicas="2"))
IMAGING = ("m/imaging.yml", manifest_text("imaging", gpu="{memory: 30 GiB}", replicas="2"))
TIMEOUT = "Connection timed out"


def fleet(**flags: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    """Hosts h1 and h2 with one A100 each; ``h2={"down": True}`` adds to what is known of one."""
    return {
        name: {
            "facts": facts([gpu_facts(0, name)]),
            "policy": {"fleet_environment": "production", "fleet_gpu_modes": ["mig"]},
            **flags.get(name, {}),
        }
        for name in ("h1", "h2")
    }


def plan(hosts: dict[str, dict[str, t.Any]], last: Planned | None = None, *manifests: tuple[str, str]) -> Planned:
    texts = {name: (f"plans/{name}.yml", each.text) for name, each in last.plans.items()} if last else {}
    return plan_fleet(manifests or (OCR, IMAGING), texts, hosts, CATALOGUE, ["http"])


def names(planned: Planned, host_name: str) -> list[str]:
    return [plan_record.name_of(line) for line in planned.plans[host_name].data["services"]]


def carried_out(planned: Planned, host_name: str) -> dict[str, t.Any]:
    """The facts of a host that has done what its plan says."""
    data = planned.plans[host_name].data
    slices = " ".join(f"{line['profile']}@{line['start']}" for line in data["layout"] if "profile" in line)
    record = {"serial": data["serial"], "digest": data["digest"], "state": "done"}
    return facts([gpu_facts(0, host_name, slices=slices)], plan=record)


NEW = ("m/new.yml", manifest_text("new", gpu="{memory: 30 GiB}"))


def helped(hosts: dict[str, dict[str, t.Any]], last: Planned | None = None, *manifests: tuple[str, str]) -> list[list[str]]:
    """What each replica without a place is told."""
    return [[change.sentence for change in each.changes] for each in plan(hosts, last, *(manifests or (NEW,))).explained]


def test_who_is_new_is_told_to_bring_back_a_host_that_could_take_it_before_one_is_added() -> None:
    hosts = fleet(h1={"down": True}, h2={"unread": TIMEOUT})
    board = "a host of environment 'production' with a free GPU"
    assert helped(hosts) == [["bring h1 back", f"add {board} (a100-pcie-40gb)"]]
    # Of one of which nothing is known that may be so.
    nothing = {"down": True, "facts": None}
    (told,) = helped(fleet(h1=nothing, h2=nothing))[0]
    assert told.startswith(f"bring h1 and h2 back, or add {board}")


@pytest.mark.parametrize(
    "state",
    [{"state": "lost"}, {"drain": {"by": "lin", "reason": "fan", "since": "2026-11-21T12:00:00Z", "until": None, "force": False}}],
)
def test_a_host_that_could_not_take_it_as_far_as_is_known_is_not_to_be_brought_back(state: dict[str, t.Any]) -> None:
    away = {"down": True, "facts": facts([gpu_facts(0, "h1", **state)])}
    assert not [each for told in helped(fleet(h1=away, h2=away)) for each in told if "bring" in each]


def test_the_gate_judges_a_host_that_is_down_by_its_last_facts() -> None:
    old = {"present": True, "version": "550.54.15", "cuda": None, "flavour": None}
    hosts = fleet(h1={"down": True, "facts": facts([gpu_facts(0, "h1", compute_capability="8.0")], driver=old)})
    del hosts["h2"]
    (found,) = plan_fleet(
        [("m/new.yml", manifest_text("new", needs="{cuda: '13.0'}"))], {}, hosts, CATALOGUE, ["http"], judge=door.judge({})
    ).explained
    assert [change.kind for change in found.changes] == ["hosts"]


def test_what_is_wrong_in_the_last_facts_of_a_host_keeps_no_plan_from_being_made() -> None:
    hosts = fleet(h1={"down": True}, h2={"down": True})
    hosts["h1"]["policy"]["fleet_cordoned_gpus"] = [7]
    assert [told[0] for told in helped(hosts)] == ["bring h2 back"]


def test_boards_that_are_in_another_host_by_now_do_not_come_back_with_theirs() -> None:
    hosts = fleet(h1={"down": True})
    hosts["h2"]["facts"] = facts([gpu_facts(0, "h1")])
    found = helped(hosts, None, ("m/new.yml", manifest_text("new", gpu="{memory: 60 GiB}", replicas="2")))
    assert not [each for told in found for each in told if each == "bring h1 back"]


@pytest.fixture
def first() -> Planned:
    """One replica of each service on each host."""
    planned = plan(fleet())
    assert (names(planned, "h1"), names(planned, "h2")) == (["imaging-1", "ocr-1"], ["imaging-2", "ocr-2"])
    return planned


@pytest.fixture
def gone(first: Planned) -> Planned:
    """The same fleet, carried out, with h2 called down after that."""
    return plan(fleet(h1={"facts": carried_out(first, "h1")}, h2={"facts": carried_out(first, "h2"), "down": True}), first)


# The planner


@pytest.mark.parametrize("priority", [1, 99])
def test_replicas_leave_a_host_that_is_down_and_push_nobody_out(priority: int) -> None:
    hosts = [host(gpu(0, "h1", slices="3g.40gb@4"), name="h1"), host(gpu(0, "h2", slices="1g.10gb@0"), name="h2", down=True)]
    needs = [need("big", memory_mib=30000), need("ocr", priority=priority)]
    found = make_plan(problem(hosts, needs, [place("big", "0:3g.40gb@4", on="h1"), place("ocr", "0:1g.10gb@0", on="h2")]))
    assert [where(each) for each in found.placements] == ["h1/0:3g.40gb@4", "h1/0:1g.10gb@0"]
    assert (found.unplaced, found.waiting, {name for name, _uuid in found.layouts}) == ((), (), {"h1"})


def test_a_host_that_is_down_gets_nothing_new_and_spreads_nobody() -> None:
    hosts = [host(gpu(0, name), name=name, down=name == "h1") for name in ("h1", "h2", "h3")]
    found = make_plan(problem(hosts, [need(replicas=2)]))
    assert sorted(each.host for each in found.placements) == ["h2", "h3"]


def test_a_replica_without_another_place_waits_for_its_host_unless_it_needs_something_else_by_now() -> None:
    world = problem(
        [host(gpu(0, "h1", slices="7g.80gb@0"), down=True)], [need(memory_mib=70000)], [place("ocr", "0:7g.80gb@0", http=18000)]
    )
    found = make_plan(world)
    assert (found.placements, found.waiting) == ((), world.previous)
    assert [(each.reason, each.help.split(",")[0]) for each in found.unplaced] == [("h1: down", "bring h1 back")]
    assert make_plan(Problem(world.hosts, world.needs, world.previous, frozenset(["ocr"]))).waiting == ()


def test_an_adopted_service_stays_on_a_host_that_is_down() -> None:
    old = place("old", "0:1g.10gb@0", http=9000)
    found = make_plan(problem([host(gpu(0), down=True), host(gpu(0, "h2"), name="h2")], [need("old", adopted=True)], [old]))
    assert (found.placements, found.unplaced, found.waiting) == ((old,), (), ())


def test_where_two_plans_name_one_replica_the_host_that_is_up_counts() -> None:
    hosts = [host(gpu(0), down=True), host(gpu(0, "h2", slices="1g.10gb@3"), name="h2")]
    found = make_plan(problem(hosts, [need()], [place("ocr", "0:1g.10gb@0"), place("ocr", "0:1g.10gb@3", on="h2")]))
    assert [where(each) for each in found.placements] == ["h2/0:1g.10gb@3"]


def test_what_a_moving_replica_took_of_its_host_is_taken_of_the_new_one() -> None:
    four = {"host": "{cpus: 4}"}
    manifests = [("m/a.yml", manifest_text("aa", **four)), ("m/b.yml", manifest_text("bb", **four))]
    hosts = fleet()
    for each in hosts.values():
        each["policy"]["fleet_capacity"] = {"cpus": 6}
    first = plan(hosts, None, *manifests)
    assert {name: names(first, name) for name in hosts} == {"h1": ["aa-1"], "h2": ["bb-1"]}
    hosts["h2"]["down"] = True
    second = plan(hosts, first, *manifests)
    assert [each["service"] for each in second.unplaced] == ["bb"]
    assert second.unplaced[0]["reason"].startswith("h1: needs 4 cpus and has 1 cpu left; h2: down; what would help: ")
    hosts["h1"]["policy"]["fleet_capacity"] = {"cpus": 9}
    assert names(plan(hosts, second, *manifests), "h1") == ["aa-1", "bb-1"]


# Plans of a fleet


def test_what_moves_leaves_the_plan_of_a_host_that_is_down_and_its_layout_stays(first: Planned, gone: Planned) -> None:
    old, new = first.plans["h2"].data, gone.plans["h2"].data
    assert (names(gone, "h1"), names(gone, "h2")) == (["imaging-1", "ocr-1", "ocr-2"], ["imaging-2"])
    assert (new["serial"], new["layout"]) == (2, old["layout"])
    assert new["base"]["gpus"] == [{"gpu": "GPU-h2-0", "mig": True, "instances": ["1g.10gb@0", "3g.40gb@4"]}]
    assert read_plan("h2.yml", gone.plans["h2"].text).data == new
    assert [(each["service"], each["replica"]) for each in gone.unplaced] == [("imaging", 2)]
    assert gone.table == [
        "SERVICE  REPLICA  HOST  GPU       SLICE      MEMORY     PORT        CHANGE",
        "imaging  1        h1    GPU-h1-0  3g.40gb@4  40192 MiB  http:18000  kept",
        "imaging  2        -     -         -          -          -           no place while h2 is down, stays on h2 GPU-h2-0 3g.40gb@4",
        "ocr      1        h1    GPU-h1-0  1g.10gb@0  9856 MiB   http:18001  kept",
        "ocr      2        h1    GPU-h1-0  1g.10gb@1  9856 MiB   http:18002  moved from h2 GPU-h2-0 1g.10gb@0: h2 is down",
    ]
    assert gone.notes == ["h2 is down: imaging-2 stays in its plan and is lost until it is back"]
    assert gone.proposal == []


def test_planning_again_while_the_host_is_down_gives_the_same_bytes(first: Planned, gone: Planned) -> None:
    hosts = fleet(h1={"facts": carried_out(first, "h1")}, h2={"facts": carried_out(first, "h2"), "down": True})
    again = plan(dict(reversed(hosts.items())), gone, IMAGING, OCR)
    assert {name: each.text for name, each in again.plans.items()} == {name: each.text for name, each in gone.plans.items()}
    assert (again.fleet, again.unplaced) == (gone.fleet, gone.unplaced)


def test_who_was_heard_and_seen_there_last_is_nothing_that_a_second_plan_says_otherwise(first: Planned) -> None:
    known = carried_out(first, "h2")
    known["host"]["ports_listening"] = [22, *(port for line in first.plans["h2"].data["services"] for port in line["ports"].values())]
    known["gpus"][0]["holders"] = [{"kind": "compute", "slice": {"gi": 7}, "container": None, "process": "python", "pid": 7}]
    hosts = fleet(h1={"facts": carried_out(first, "h1")}, h2={"facts": known, "down": True})
    waits = ("m/waits.yml", manifest_text("waits", gpu="{memory: 70 GiB}"))
    second = plan(hosts, first, IMAGING, OCR, waits)
    assert second.plans["h2"].text != first.plans["h2"].text
    assert plan(hosts, second, IMAGING, OCR, waits).fleet == second.fleet
    # Nobody computes or listens there now.
    known["gpus"][0]["holders"] = [{"kind": "compute", "slice": None, "container": None, "process": "python", "pid": 7}]
    assert helped(fleet(h1={"facts": None, "down": True}, h2={"facts": known, "down": True}))[0][0] == "bring h2 back"


def test_the_host_that_is_back_begins_its_plan_and_stops_only_what_has_moved(first: Planned, gone: Planned) -> None:
    begun = plan_record.begin(first.plans["h2"].data, None, {"GPU-h2-0": {"gpu": "GPU-h2-0", "mig": False, "instances": []}})
    done = plan_record.finish(first.plans["h2"].data, begun.record, {})
    there = {"GPU-h2-0": {"gpu": "GPU-h2-0", "mig": True, "instances": ["1g.10gb@0", "3g.40gb@4"]}}
    outcome = plan_record.begin(gone.plans["h2"].data, done.record, there)
    assert (outcome.needed, outcome.stop, outcome.gone) == (True, ["ocr-2"], ["ocr-2"])
    assert plan_record.layout_is_true(gone.plans["h2"].data, there)


def test_the_host_that_is_back_is_planned_as_any_other(first: Planned, gone: Planned) -> None:
    record = {"serial": 2, "digest": gone.plans["h2"].data["digest"], "state": "done"}
    hosts = fleet(h1={"facts": carried_out(gone, "h1")}, h2={"facts": {**carried_out(first, "h2"), "plan": record}})
    back = plan(hosts, gone)
    assert {name: each.text for name, each in back.plans.items()} == {name: each.text for name, each in gone.plans.items()}
    assert (back.unplaced, back.notes) == ([], [])


def test_a_service_that_needs_something_else_by_now_does_not_wait_with_its_old_place(first: Planned) -> None:
    grown = ("m/imaging.yml", manifest_text("imaging", gpu="{memory: 60 GiB}", replicas="2"))
    planned = plan(fleet(h2={"down": True}), first, OCR, grown)
    assert names(planned, "h2") == []
    assert planned.notes == ["h2 is down: nothing stays in its plan"]
    assert "no place any more, was on h2 GPU-h2-0 3g.40gb@4" in "\n".join(planned.table)


def test_adopted_services_of_a_host_that_is_down_are_named_as_lost(first: Planned) -> None:
    adopted = ("m/imaging.yml", manifest_text("imaging", gpu="{memory: 30 GiB}", replicas="2", lifecycle="adopted"))
    planned = plan(fleet(h2={"down": True}), first, OCR, adopted)
    assert (names(planned, "h2"), planned.unplaced) == (["imaging-2"], [])
    assert planned.table[2].endswith("lost while h2 is down")
    assert "h2 is down: imaging-2 stays in its plan and is lost until it is back" in planned.notes
    proposed = plan(fleet(h2={"unread": TIMEOUT}), first, OCR, adopted).proposal
    assert "imaging-2 is adopted and stays on h2 GPU-h2-0 3g.40gb@4: lost until that host is back" in proposed


def test_a_host_that_was_never_read_is_planned_as_gone_without_its_facts(first: Planned) -> None:
    planned = plan(fleet(h2={"facts": None, "down": True}), first)
    assert planned.plans["h2"].data["base"] == first.plans["h2"].data["base"]
    assert planned.plans["h2"].data["serial"] == 2
    assert sorted(plan(fleet(h2={"facts": None, "down": True})).plans) == ["h1"]


def test_a_gpu_that_neither_facts_nor_the_last_plan_know_is_not_in_the_base(first: Planned) -> None:
    lost = facts([{**gpu_facts(0, "h2"), "uuid": None}])
    planned = plan(fleet(h2={"facts": lost, "down": True}), first)
    assert planned.plans["h2"].data["base"] == first.plans["h2"].data["base"]


def test_policy_that_names_gpus_of_a_host_that_is_down_is_no_problem(first: Planned) -> None:
    hosts = fleet(h2={"facts": None, "down": True})
    hosts["h2"]["policy"]["fleet_cordoned_gpus"] = ["0000:07:00.0"]
    assert names(plan(hosts, first), "h2") == ["imaging-2"]


# While nobody has decided whether a host is gone


def test_the_proposal_says_where_the_replicas_of_an_unread_host_would_go(first: Planned) -> None:
    proposal = plan(fleet(h2={"unread": TIMEOUT}), first).proposal
    assert proposal[:2] == [f"h2 cannot be read: {TIMEOUT}", "ocr-2 would go from h2 to h1 GPU-h1-0 1g.10gb@1"]
    assert proposal[2].startswith("no place for imaging replica 2: h1: 1 GPU without room for 30 GiB; h2: down; what would help: ")
    assert len(proposal) == 3
    fewer = plan(fleet(h2={"unread": TIMEOUT}), first, ("m/ocr.yml", manifest_text("ocr")), IMAGING).proposal
    assert "ocr-2 is wanted no more, and would leave h2 GPU-h2-0 1g.10gb@0" in fewer


def test_the_proposal_is_short_where_there_is_nothing_to_propose(first: Planned) -> None:
    assert plan(fleet(h2={"unread": TIMEOUT})).proposal == [f"h2 cannot be read: {TIMEOUT}", "no plan has a service on h2"]
    both = fleet(h1={"unread": "Connection refused"}, h2={"unread": TIMEOUT})
    assert plan(both, first).proposal == ["h1 cannot be read: Connection refused", f"h2 cannot be read: {TIMEOUT}"]


def arguments(tmp_path: Path, hosts: dict[str, t.Any]) -> dict[str, t.Any]:
    (tmp_path / "manifests").mkdir(exist_ok=True)
    (tmp_path / "manifests" / "ocr.yml").write_text(OCR[1], encoding="utf-8")
    paths = {name: str(tmp_path / name) for name in ("manifests", "plans")}
    return {**paths, "hosts": hosts, "templates": [], "fail_unplaced": True}


def test_nothing_is_written_while_a_host_cannot_be_read(tmp_path: Path) -> None:
    first = run(arguments(tmp_path, fleet()), check_mode=False, diff=True)
    assert (first["unread"], first["refusal"], first["proposal"]) == ({}, "", [])
    before = {path: path.read_bytes() for path in (tmp_path / "plans").iterdir()}
    result = run(arguments(tmp_path, fleet(h2={"unread": TIMEOUT})), check_mode=False, diff=True)
    assert (result["changed"], result["unread"], result["warnings"]) == (False, {"h2": TIMEOUT}, [])
    assert result["refusal"] == 'h2 cannot be read: nothing was written. To plan as if it were gone: -e \'{"fleet_down_hosts": ["h2"]}\''
    assert {path: path.read_bytes() for path in (tmp_path / "plans").iterdir()} == before
    assert run(arguments(tmp_path, fleet(h2={"down": True})), check_mode=False, diff=False)["changed"]


def test_the_refusal_names_those_that_are_down_already_and_says_when_nobody_is_left(tmp_path: Path) -> None:
    three = {**fleet(h1={"unread": TIMEOUT}, h2={"down": True}), "h3": fleet()["h1"]}
    three["h3"]["facts"] = facts([gpu_facts(0, "h3")])
    refusal = run(arguments(tmp_path, three), check_mode=False, diff=False)["refusal"]
    assert refusal.endswith('-e \'{"fleet_down_hosts": ["h1", "h2"]}\'')
    del three["h3"]
    refusal = run(arguments(tmp_path, three), check_mode=False, diff=False)["refusal"]
    assert refusal == "h1 cannot be read, and no other host is left: nothing was written"


# What is gathered and shown


@pytest.mark.parametrize(
    ("value", "found"),
    [([], []), ("", []), ("b, a", ["a", "b"]), (["b", "a", "b"], ["a", "b"]), ("a", ["a"])],
)
def test_names_are_taken_as_a_list_or_with_commas(value: t.Any, found: list[str]) -> None:
    assert down_hosts(value) == found


@pytest.mark.parametrize("value", [True, 7, {"a": 1}, [1], None])
def test_what_is_no_list_of_names_is_refused(value: t.Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"^fleet_down_hosts: expected a list of host names; write \[gpu-prod-02\], or \[\]"):
        down_hosts(value)


BROKE = {"failed": True, "msg": "MODULE FAILURE\nSee stdout/stderr for the exact error", "module_stderr": "Traceback\nImportError: no\n\n"}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, None),
        ({}, None),
        ({"skipped": True}, None),
        ({"changed": False, "ansible_facts": {}}, None),
        ({"unreachable": True, "msg": "Task failed: Connection\n refused"}, "Connection refused"),
        ({"unreachable": True}, "no reason given"),
        ({"failed": True, "msg": "no such thing", "module_stderr": "a warning"}, "no such thing"),
        ({"failed": True, "module_stderr": "sh: no python\n"}, "sh: no python"),
        (BROKE, "ImportError: no"),
        ({**BROKE, "module_stderr": ""}, "MODULE FAILURE See stdout/stderr for the exact error"),
    ],
)
def test_the_reason_is_one_line(result: dict[str, t.Any] | None, reason: str | None) -> None:
    assert unread_reason(result) == reason


def test_what_is_known_of_a_host_that_nobody_reaches_is_what_was_published(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"schema": 1}', encoding="utf-8")
    cached = {"gpuops_fleet": {"schema": 1, "gpus": ["cached"]}}
    variables = {
        "a": {"ansible_facts": cached, "fleet_down_hosts": ["a"], "__fleet_read": {"skipped": True}},
        "b": {"ansible_facts": cached, "fleet_down_hosts": ["a"], "__fleet_read": {"unreachable": True, "msg": TIMEOUT}},
        "c": {"ansible_facts": cached, "fleet_down_hosts": ["a"], "__fleet_read": {"failed": True, "msg": "no"}},
    }
    hosts = fleet_hosts(["a", "b", "c"], variables, str(tmp_path))
    assert {name: {key: value for key, value in each.items() if key not in ("policy", "plan")} for name, each in hosts.items()} == {
        "a": {"facts": None, "down": True},
        "b": {"facts": {"schema": 1}, "unread": TIMEOUT},
        "c": {"facts": None, "unread": "no", "reached": True},
    }


def test_the_tables_show_a_host_that_is_down_with_what_its_plan_has_there(gone: Planned, first: Planned) -> None:
    hosts: dict[str, dict[str, t.Any]] = {
        "h1": {"facts": None, "plan": None, "unread": "no sudo", "reached": True},
        "h2": {"facts": carried_out(first, "h2"), "plan": gone.plans["h2"].data, "down": True},
        "h3": {"facts": None, "plan": {**first.plans["h2"].data, "host": "h3"}, "unread": TIMEOUT},
    }
    by_plan = "shown by its plan and"
    ends = [
        f"h1 is not read: no sudo; {by_plan} nothing else, for its facts were never published",
        f"h2 is down: fleet_down_hosts names it, and it was not asked; {by_plan} the facts published last",
        f"h3 is down: {TIMEOUT}; {by_plan} nothing else, for its facts were never published",
    ]
    board = "NVIDIA A100-SXM4-80GB"
    status = views.status_table(hosts)
    assert [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in status[1:-3]] == [
        ["h1", "-", "-", "-", "-", "-", "not read"],
        ["h2", "0000:01:00.0", board, "1g.10gb@0", "-", "1 done (plan 2 waits)", "down"],
        ["h2", "0000:01:00.0", board, "3g.40gb@4", "imaging-2", "1 done (plan 2 waits)", "down"],
        ["h3", "-", "-", "-", "-", "none (plan 1 waits)", "down"],
        ["h3", "-", "GPU-h2-0", "3g.40gb@4", "imaging-2", "none (plan 1 waits)", "down"],
        ["h3", "-", "GPU-h2-0", "1g.10gb@0", "ocr-2", "none (plan 1 waits)", "down"],
    ]
    assert status[-3:] == ends
    check = views.host_table(hosts)
    assert check[-3:] == ends
    assert [(line.split()[0], line.split("  ")[-1].strip()) for line in check[1:-3]] == [("h1", "not read"), ("h2", "down"), ("h3", "down")]
