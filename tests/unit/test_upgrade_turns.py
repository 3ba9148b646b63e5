# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts are upgraded one after the other: in which order, what counts as work, who moves where, and what has to be there afterwards."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.action.upgrade_gate import run as judge
from ansible_collections.gpuops.fleet.plugins.action.upgrade_plan import run as decide
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, upgrade
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.deploying import (
    apply_turns,
    deploy_later,
    deploy_problem,
    deploy_reroutes,
    deploy_turn,
    deploy_waves,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text

CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
POLICY = {"fleet_environment": "production", "fleet_gpu_modes": ["mig"]}
GROUPS = {"gpu_hosts": ["h3", "h1", "h2"], "training": ["h2", "h1"], "gateways": ["gw"]}


def hosts(*names: str, **drains: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    found = {}
    for name in names:
        seen = facts([gpu_facts(0, name)])
        seen["host"] = {**seen["host"], "drain": drains.get(name)}
        found[name] = {"facts": seen, "policy": POLICY}
    return found


def plan_of(*manifests: str) -> upgrade.Plan:
    texts = [(f"m/{number}.yml", text) for number, text in enumerate(manifests)]

    def plan(last: t.Mapping[str, tuple[str, str]], known: t.Mapping[str, t.Mapping[str, t.Any]]) -> Planned:
        return plan_fleet(texts, last, known, CATALOGUE, ["http"])

    return plan


def texts_of(planned: Planned) -> dict[str, tuple[str, str]]:
    return {name: (f"{name}.yml", each.text) for name, each in planned.plans.items()}


def drained(by: str, reason: str) -> dict[str, t.Any]:
    return {"by": by, "reason": reason, "since": "2026-11-21T12:00:00Z", "until": None, "force": False}


OCR = manifest_text("ocr", replicas="2")


def test_hosts_have_their_turns_as_named_those_of_a_group_by_name_and_each_once() -> None:
    assert upgrade.in_order("", GROUPS) == ["h1", "h2", "h3"]
    assert upgrade.in_order("h3, training,h3", GROUPS) == ["h3", "h1", "h2"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("h9", "upgrade_hosts: 'h9' is no host of group gpu_hosts; name hosts or groups of h1, h2, h3, with commas"),
        (
            "h1,gateways",
            "upgrade_hosts: 'gw' of group gateways is no host of group gpu_hosts; name hosts or groups of h1, h2, h3, with commas",
        ),
    ],
)
def test_what_is_no_gpu_host_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(FleetError) as caught:
        upgrade.in_order(pattern, GROUPS)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("driver", "loaded", "engine", "toolkit", "lines"),
    [
        ({}, {}, {}, {}, []),
        ({"steps": []}, {"driver": "580.1", "before": "580.1"}, {"packages": False, "reload": [], "restart": []}, {}, []),
        ({"steps": ["install a 1"]}, {"driver": "580.1", "before": "550.1"}, {}, {}, ["driver: install a 1"]),
        ({"steps": []}, {"driver": "580.1", "before": "550.1"}, {}, {}, ["driver: load 580.1 in place of 550.1"]),
        ({"steps": []}, {"driver": "580.1", "before": None}, {}, {}, ["driver: load 580.1 in place of none"]),
        ({}, {}, {"packages": True, "reload": [], "restart": []}, {}, ["engine: install packages"]),
        ({}, {}, {"packages": False, "reload": [], "restart": ["log-driver"]}, {}, ["engine: settings by a restart: log-driver"]),
        ({}, {}, {}, {"packages": False, "reload": ["runtimes"], "restart": []}, ["container toolkit: settings by a reload: runtimes"]),
    ],
)
def test_a_host_is_passed_over_only_when_driver_engine_and_toolkit_are_as_wished(
    driver: dict[str, t.Any], loaded: dict[str, t.Any], engine: dict[str, t.Any], toolkit: dict[str, t.Any], lines: list[str]
) -> None:
    assert upgrade.work_lines(driver, loaded, engine, toolkit) == lines


def test_what_leaves_first_is_in_nobodys_way_and_a_stranger_is() -> None:
    holders = [{"kind": "mps", "process": "nvidia-cuda-mps", "pid": 1}, {"kind": "compute", "process": "python3", "pid": 2}]
    boxes = [{"name": "a", "project": "ocr-1"}, {"name": "b", "project": "ocr-surge"}, {"name": "jupyter"}]
    seen = {"containers": boxes, "gpus": [{"pci": "1", "holders": holders}, {"pci": "2", "holders": None}]}
    lines = [{"service": "ocr", "replica": 1}, {"service": "old", "replica": 1, "lifecycle": "adopted"}]
    ours = upgrade.projects_of({"services": lines})
    left = upgrade.strangers(seen, ours)
    assert ours == ["ocr-1", "ocr-surge"]
    assert [box["name"] for box in left["containers"]] == ["jupyter"]
    assert [one["process"] for one in left["gpus"][0]["holders"]] == ["python3"]
    assert left["gpus"][1]["holders"] is None, "who is on it cannot be seen, which is not nobody"


def test_a_drain_of_a_former_run_is_taken_over_and_a_persons_is_not() -> None:
    mine, hers = (hosts("h1", h1=each)["h1"]["facts"] for each in (drained("bob", upgrade.drain_reason("gone")), drained("bob", "upgrade")))
    free = hosts("h1")["h1"]["facts"]
    assert [upgrade.begun_before(each) for each in (mine, hers, free)] == [True, False, False]
    assert [upgrade.drain_refusal(each, "h1") for each in (mine, free)] == ["", ""]
    assert upgrade.drain_refusal(hers, "h1") == (
        "drained by bob (upgrade); release it first: ansible-playbook gpuops.fleet.release --limit h1"
    )
    assert len(upgrade.drain_reason("x\n" * 500)) < 250


def test_each_turn_empties_its_host_from_where_the_one_before_left_the_replicas() -> None:
    plan = plan_of(OCR)
    first = plan({}, hosts("h1", "h2"))
    assert {name: len(each.data["services"]) for name, each in first.plans.items()} == {"h1": 1, "h2": 1}
    found = upgrade.turns(plan, texts_of(first), hosts("h1", "h2"), ["h1", "h2"], False, {"h1": ["driver: install a 2"]})
    assert [turn["moves"] for turn in found] == [["ocr-1 from h1 to h2"], ["ocr-1 from h2 to h1", "ocr-2 from h2 to h1"]]
    assert [(turn["back"], turn["stops"]) for turn in found] == [([], []), ([], [])], "who has moved stays: least moves"
    assert found[0]["lines"] == ["h1: drain it; ocr-1 from h1 to h2", "h1: driver: install a 2", "h1: gate, release"]


def test_a_replica_that_can_go_nowhere_is_named_with_the_planners_reason_and_stops_only_when_that_is_allowed() -> None:
    plan = plan_of(manifest_text("llm", gpu="{memory: 60 GiB}", replicas="2"))
    texts = texts_of(plan({}, hosts("h1", "h2")))
    with pytest.raises(FleetError) as caught:
        upgrade.turns(plan, texts, hosts("h1", "h2"), ["h1"], False, {})
    assert str(caught.value).startswith(
        "llm-1 cannot leave h1: its place, 7g.80gb@0 on h1 GPU-h1-0, is drained by this run (playbook upgrade)"
    )
    assert "\n" not in str(caught.value)
    (turn,) = upgrade.turns(plan, texts, hosts("h1", "h2"), ["h1"], True, {})
    assert (turn["stops"], turn["back"]) == (["llm-1"], ["llm-1 from none to h1"])
    assert "h1: llm-1 is stopped for the time" in turn["lines"]


def test_what_is_adopted_is_not_moved_and_not_stopped() -> None:
    plan = plan_of(OCR, manifest_text("old", lifecycle="adopted", ports=""))
    first = plan_of(OCR, manifest_text("old", ports=""))({}, hosts("h1", "h2"))
    (home,) = [name for name, each in first.plans.items() for line in each.data["services"] if line["service"] == "old"]
    texts = texts_of(plan(texts_of(first), hosts("h1", "h2")))
    with pytest.raises(FleetError, match=f"old-1 cannot leave {home}: it is adopted, and nothing moves it; take it away by hand first"):
        upgrade.turns(plan, texts, hosts("h1", "h2"), [home], True, {})


def test_an_upgrade_brings_no_version_that_was_not_deployed() -> None:
    first = plan_of(OCR)({}, hosts("h1", "h2"))
    newer = plan_of(OCR.replace("@sha256:a", "@sha256:b"))
    with pytest.raises(
        FleetError, match=r"ocr-1, ocr-2: the manifest asks for another version than the plan, .*; run playbook deploy first"
    ):
        upgrade.turns(newer, texts_of(first), hosts("h1", "h2"), ["h1"], False, {})


def test_a_host_that_a_former_run_left_drained_takes_part_again_after_its_turn() -> None:
    plan = plan_of(OCR)
    first = plan({}, hosts("h1", "h2"))
    left = hosts("h1", "h2", h1=drained("bob", upgrade.REASON))
    after = plan(texts_of(first), left)
    found = upgrade.turns(plan, texts_of(after), left, ["h1", "h2"], False, {})
    assert [turn["moves"] for turn in found] == [[], ["ocr-1 from h2 to h1", "ocr-2 from h2 to h1"]]
    assert found[0]["lines"][1] == "h1: nothing to install: a former run left it drained"


def seen(*gpus: dict[str, t.Any], present: bool = True, engine: bool = True) -> dict[str, t.Any]:
    found = facts(gpus, driver={"present": present, "version": "580.1", "error": None if present else "no module"})
    return {**found, "engine": {"docker": {"present": engine}}}


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (seen(gpu_facts(0), gpu_facts(1)), []),
        (seen(gpu_facts(0), gpu_facts(1), gpu_facts(2)), []),
        (seen(gpu_facts(1)), ["h1: GPU 0000:01:00.0 (GPU-h1-0) did not come back: 1 of 2 are there"]),
        (seen(gpu_facts(1), gpu_facts(2)), ["h1: GPU 0000:01:00.0 (GPU-h1-0) did not come back: 2 of 2 are there"]),
        (seen(gpu_facts(0, state="lost", error="GPU is lost"), gpu_facts(1)), ["h1: GPU 0000:01:00.0 is lost: GPU is lost"]),
        (seen(present=False), ["h1: no driver answers: no module"]),
        (
            seen(gpu_facts(0), gpu_facts(1), engine=False),
            ["h1: the engine does not answer any more; look at `systemctl status docker`"],
        ),
    ],
)
def test_a_host_has_its_services_again_only_when_all_is_there_that_was(after: dict[str, t.Any], words: list[str]) -> None:
    before = seen(gpu_facts(0), gpu_facts(1))
    assert upgrade.gate("h1", [before], after, []) == words
    assert upgrade.gate("h1", [before], after, ["h1: no"])[-1] == "h1: no"


def test_a_gpu_that_a_killed_run_lost_counts_as_missing() -> None:
    now = seen(gpu_facts(0))
    assert upgrade.gate("h1", [now], now, []) == []
    published = json.dumps(seen(gpu_facts(0), gpu_facts(1)))
    arguments: dict[str, t.Any] = {"host": "h1", "before": now, "facts": now, "services": {}, "today": None, "published": published}
    with pytest.raises(FleetError, match=r"GPU 0000:02:00\.0 \(GPU-h1-1\) did not come back: 1 of 2 are there"):
        judge(arguments)
    for none in ("{", "", None):
        judge({**arguments, "published": none})


def test_a_driver_that_a_service_cannot_use_keeps_the_host_drained() -> None:
    manifest = plan_of(manifest_text("ocr", needs="{cuda: '13.0.1'}"))({}, hosts("h1")).services["ocr"]
    before, after = (
        {**seen(gpu_facts(0, compute_capability="8.0")), "driver": {"present": True, "version": each}}
        for each in ("580.95.05", "470.57.02")
    )
    arguments: dict[str, t.Any] = {"host": "h1", "before": before, "facts": after, "services": {"ocr": manifest}, "today": None}
    with pytest.raises(FleetError, match="h1: ocr may not run on a100-sxm4-80gb any more: "):
        judge(arguments)
    judge({**arguments, "before": after, "facts": before})


def test_the_door_writes_nothing_and_refuses_a_fleet_that_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "plans").mkdir()
    (tmp_path / "manifests" / "ocr.yml").write_text(OCR)
    for name, (_path, text) in texts_of(plan_of(OCR)({}, hosts("h1", "h2"))).items():
        (tmp_path / "plans" / f"{name}.yml").write_text(text)
    files = sorted((tmp_path / "plans").iterdir())
    texts = [path.read_text() for path in files]
    arguments: dict[str, t.Any] = {"manifests": str(tmp_path / "manifests"), "plans": str(tmp_path / "plans"), "templates": []}
    arguments |= {"hosts": hosts("h1", "h2"), "order": ["h2"], "work": {}, "outage": False}
    assert [turn["moves"] for turn in decide(arguments)["turns"]] == [["ocr-2 from h2 to h1"]]
    assert (sorted((tmp_path / "plans").iterdir()), [path.read_text() for path in files]) == (files, texts)
    arguments["hosts"]["h1"]["unread"] = "timed out"
    with pytest.raises(FleetError, match="h1 cannot be read: timed out"):
        decide(arguments)


def test_a_plan_that_leaves_a_replica_on_a_host_to_be_emptied_is_not_carried_out() -> None:
    plan = plan_of(manifest_text("llm", gpu="{memory: 60 GiB}", replicas="2"))
    planned = plan(texts_of(plan({}, hosts("h1", "h2"))), hosts("h1", "h2", h1=drained("bob", upgrade.REASON)))
    answered = {
        "table": [],
        "unread": {},
        "services": planned.services,
        "unplaced": planned.unplaced,
        "plans": {name: dict(each.data) for name, each in planned.plans.items()},
    }
    records = {name: {"needed": False} for name in answered["plans"]}
    assert deploy_problem(answered, records, {}, None, False, "", "h1").startswith("llm-1 cannot leave h1: its place, ")
    assert deploy_problem(answered, records, {}, None, False, "", "") == ""


def test_a_host_on_which_nothing_changes_has_a_turn_in_a_deploy_and_none_in_an_upgrade() -> None:
    idle, plan = {"needed": False}, {"services": [{"service": "ocr"}]}
    assert (deploy_turn(idle, plan, None), deploy_turn(idle, plan, None, False)) == (2, 0)
    assert deploy_turn({"needed": True, "new": ["ocr-1"]}, plan, None, False) == 1


def test_hosts_that_gain_replicas_wait_until_their_own_serve_elsewhere() -> None:
    def noted(order: int, new: str = "", gone: str = "") -> dict[str, t.Any]:
        return {"deploy_order": order, "deploy_record": {"new": new.split(), "gone": gone.split()}}

    # a -> b -> c, d only loses one to a; e changes one where it is.
    chain = {"a": noted(1, "d-1", "a-1"), "b": noted(1, "a-1", "b-1"), "c": noted(1, "b-1"), "d": noted(3, "", "d-1"), "e": noted(2)}
    assert deploy_later(chain, chain) == ["b", "a"]
    assert [deploy_later(chain, chain, wave) for wave in (1, 2, 3)] == [["b"], ["a"], []]
    # Of a circle, one goes first.
    circle = {"a": noted(1, "b-1", "a-1"), "b": noted(1, "a-1", "b-1")}
    assert deploy_later(circle, circle) == ["a"]
    # The one for which the lower priority stops.
    for low, waits in (("a", "b"), ("b", "a")):
        planned = {"services": {name: {"priority": 10 if name == low else 90} for name in circle}}
        known = {host: {**noted_, "deploy_planned": planned} for host, noted_ in circle.items()}
        assert deploy_later(known, known) == [waits]
    long = {f"h{number}": noted(1, f"r{number + 1}-1", f"r{number}-1") for number in range(6)}
    # h0 takes from h1, h1 from h2 and so on, however long that goes on; names decide nothing.
    assert deploy_waves(long, long) == [1, 2, 3, 4, 5]
    assert [deploy_later(long, long, wave) for wave in (1, 2, 3, 4, 5)] == [["h1"], ["h2"], ["h3"], ["h4"], ["h5"]]
    turned = {f"h{5 - int(host[1:])}": noted_ for host, noted_ in long.items()}
    assert deploy_later(turned, turned) == ["h4", "h3", "h2", "h1", "h0"]
    # Hosts that are not reached have no turn.
    assert deploy_later({"a": {}, "b": {}}, {"a": {}, "b": {}}) == []
    assert deploy_waves({"a": {}, "b": {}}, {"a": {}, "b": {}}) == []


def test_a_host_of_an_apply_waits_for_those_to_which_its_replicas_go() -> None:
    def noted(new: str = "", gone: str = "", low: str = "") -> dict[str, t.Any]:
        services = [
            {"name": name, "placement": {"service": name[:-2]}, "manifest": {"priority": 10 if name == low else 90}} for name in new.split()
        ]
        work = {"exists": True, "services": services}
        return {"apply_work": work, "apply_record": {"new": new.split(), "gone": gone.split()}}

    chain = {"a": noted("d-1", "a-1"), "b": noted("a-1", "b-1"), "c": noted("b-1", "e-1"), "d": noted("", "d-1"), "e": noted()}
    waits = {"a": {"a-1": "b"}, "b": {"b-1": "c"}, "c": {}, "d": {"d-1": "a"}, "e": {}}
    turns = {"a": 2, "b": 1, "c": 0, "d": 3, "e": 0}
    assert apply_turns(chain, chain) == {host: {"wave": turns[host], "waits": waits[host]} for host in chain}
    # In a circle the lowest priority stops, and nobody waits for what is in nobody's way.
    for low, first in (("a-1", "a"), ("b-1", "b")):
        circle = {"a": noted("b-1", "a-1", low), "b": noted("a-1", "b-1", low)}
        other = "b" if first == "a" else "a"
        assert apply_turns(circle, circle) == {first: {"wave": 0, "waits": {}}, other: {"wave": 1, "waits": {f"{other}-1": first}}}
    # One that refuses its plan, or cannot be reached, is waited for all the same.
    for record in ({"failed": True, "msg": "older"}, None):
        refused = {**chain, "b": {"apply_work": chain["b"]["apply_work"], "apply_record": record}}
        assert apply_turns(refused, refused)["a"] == {"wave": 1, "waits": {"a-1": "b"}}
    # So is one whose plan cannot be read, by whoever may be in it.
    unread = {"a": chain["a"], "b": {"apply_work": {"failed": True, "msg": "changed"}}}
    assert apply_turns(unread, unread)["a"] == {"wave": 1, "waits": {"a-1": "b"}}
    # A host that is down or has no plan has no turn; one of which nothing is known waits for nobody.
    assert apply_turns(("x", "y", "z"), {"x": {}, "y": {"apply_work": {"exists": False}}, "z": {"apply_work": noted()["apply_work"]}}) == {
        "z": {"wave": 0, "waits": {}}
    }


def test_gateways_have_their_turn_when_something_came_or_leaves_and_nothing_failed() -> None:
    noted: dict[str, dict[str, t.Any]] = {"h1": {"deploy_carried": False, "deploy_order": 0}, "h2": {}}
    assert not deploy_reroutes(noted, noted)
    noted["h2"] = {"deploy_order": "3"}
    assert deploy_reroutes(noted, noted)
    noted["h1"] = {"deploy_problem": "h1: no"}
    assert not deploy_reroutes(noted, noted)


def test_a_replica_that_lost_its_place_is_named_and_one_that_is_wanted_no_more_is_not() -> None:
    before, after = {"ocr-1": "h1", "ocr-2": "h2", "old-1": "h1"}, {"ocr-2": "h1"}
    assert upgrade.lost(before, after, [{"service": "ocr", "replica": 1, "reason": "no room"}]) == ["ocr-1 has no place any more: no room"]
    assert upgrade.moves(before, after) == ["ocr-1 from h1 to none", "ocr-2 from h2 to h1", "old-1 from h1 to none"]


def test_the_summary_has_a_line_for_each_host() -> None:
    done = {"h2": {"from": "550.1", "to": "580.1", "seconds": 61, "moved": ["ocr-1 from h2 to h1"], "back": []}}
    assert upgrade.summary(done, ["h1"]) == [
        "HOST  FROM   TO     SECONDS  MOVED",
        "h2    550.1  580.1  61       ocr-1 from h2 to h1",
        "h1: driver, engine and container toolkit are as wished: passed over",
    ]
