# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planning run as a whole, from texts to texts: same input, same bytes; what changes is said in a table."""

from __future__ import annotations

import random
import re
import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import version
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text

CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
MANIFESTS = [
    ("m/a.yml", manifest_text("receipt-ocr", replicas="2")),
    ("m/b.yml", manifest_text("llm-chat", gpu="{memory: 30 GiB}")),
    ("m/c.yml", manifest_text("train", gpu="{isolation: exclusive, memory: 60 GiB}", ports="")),
    ("m/d.yml", manifest_text("notebook", gpu="{isolation: shared, memory: 4 GiB}", environment="staging")),
]


def hosts() -> dict[str, dict[str, t.Any]]:
    return {
        "h1": {"facts": facts([gpu_facts(0), gpu_facts(1)]), "policy": {"fleet_environment": "production"}},
        "h2": {
            "facts": facts([gpu_facts(0, "h2", mig=None)]),
            "policy": {"fleet_environment": "staging", "fleet_gpu_modes": ["shared"]},
        },
    }


def plan(
    manifests: t.Sequence[tuple[str, str]] | None = None, last: Planned | None = None, given: dict[str, dict[str, t.Any]] | None = None
) -> Planned:
    texts = {name: (f"plans/{name}.yml", each.text) for name, each in last.plans.items()} if last else {}
    return plan_fleet(MANIFESTS if manifests is None else manifests, texts, hosts() if given is None else given, CATALOGUE, ["http"])


def texts(planned: Planned) -> dict[str, str]:
    return {name: each.text for name, each in planned.plans.items()} | {"fleet": planned.fleet}


def test_every_host_of_the_run_has_a_plan() -> None:
    planned = plan()
    assert {name: [line["service"] for line in each.data["services"]] for name, each in planned.plans.items()} == {
        "h1": ["llm-chat", "receipt-ocr", "receipt-ocr", "train"],
        "h2": ["notebook"],
    }
    assert (planned.unplaced, planned.fleet, planned.notes) == ([], "plan: 1\nunplaced: []\nsettings: []\n", [])


def test_the_same_input_in_another_order_gives_the_same_bytes() -> None:
    first = plan()
    for seed in range(5):
        manifests = random.Random(seed).sample(MANIFESTS, len(MANIFESTS))
        turned = {name: dict(reversed(entry.items())) for name, entry in reversed(hosts().items())}
        turned["h1"]["facts"] = {**turned["h1"]["facts"], "gpus": turned["h1"]["facts"]["gpus"][::-1]}
        again = plan(manifests, given=turned)
        assert (texts(again), again.table) == (texts(first), first.table)


def test_a_second_run_gives_the_same_bytes() -> None:
    first = plan()
    assert texts(plan(last=first)) == texts(first)


def test_the_table_says_where_and_what_changes() -> None:
    first = plan()
    assert first.table == [
        "SERVICE      REPLICA  HOST  GPU       SLICE      MEMORY     PORT        CHANGE",
        "llm-chat     1        h1    GPU-h1-1  3g.40gb@4  40192 MiB  http:18000  new",
        "notebook     1        h2    GPU-h2-0  shared     4 GiB      http:18000  new",
        "receipt-ocr  1        h1    GPU-h1-1  1g.10gb@0  9856 MiB   http:18001  new",
        "receipt-ocr  2        h1    GPU-h1-1  1g.10gb@1  9856 MiB   http:18002  new",
        "train        1        h1    GPU-h1-0  whole      80 GiB     -           new",
    ]
    lost = hosts()
    lost["h1"]["facts"]["gpus"][1]["state"] = "lost"
    changed = [
        ("m/a.yml", manifest_text("receipt-ocr", ports="[{name: web, container: 80}]")),
        ("m/b.yml", manifest_text("llm-chat", gpu="{memory: 30 GiB}")),
        ("m/e.yml", manifest_text("new-one", gpu="{memory: 30 GiB}", priority="1")),
    ]
    assert plan(changed, first).table == [
        "SERVICE      REPLICA  HOST  GPU       SLICE      MEMORY     PORT        CHANGE",
        "llm-chat     1        h1    GPU-h1-1  3g.40gb@4  40192 MiB  http:18000  kept",
        "new-one      1        h1    GPU-h1-0  3g.40gb@4  40192 MiB  http:18003  new",
        "notebook     1        h2    GPU-h2-0  shared     -          http:18000  removed",
        "receipt-ocr  1        h1    GPU-h1-1  1g.10gb@0  9856 MiB   web:18002   kept, other ports",
        "receipt-ocr  2        h1    GPU-h1-1  1g.10gb@1  -          http:18002  removed",
        "train        1        h1    GPU-h1-0  whole      -          -           removed",
    ]
    assert [line.split("  ")[-1].strip() for line in plan(last=first, given=lost).table[1:]] == [
        "no place any more, was on h1 GPU-h1-1 3g.40gb@4",
        "kept",
        "no place any more, was on h1 GPU-h1-1 1g.10gb@0",
        "no place any more, was on h1 GPU-h1-1 1g.10gb@1",
        "kept",
    ]
    without_train = [each for each in MANIFESTS if each[0] != "m/c.yml"]
    assert plan(without_train, first, lost).table[3].endswith("moved from h1 GPU-h1-1 1g.10gb@0: its GPU is lost")


def test_whom_somebody_gave_way_to_is_said_as_long_as_nothing_changes() -> None:
    whole = "{isolation: exclusive, memory: 60 GiB}"
    given = hosts()
    given["h1"]["facts"]["gpus"] = given["h1"]["facts"]["gpus"][:1]
    given["h1"]["policy"]["fleet_preemption"] = "lower"
    given["h2"]["policy"]["fleet_preemption"] = "lower"
    low = [("m/a.yml", manifest_text("low", gpu=whole, priority="20"))]
    both = [*low, ("m/b.yml", manifest_text("high", gpu=whole, priority="80"))]
    first = plan(both, plan(low, given=given), given)
    assert first.unplaced[0]["reason"].startswith("it gave way to high-1: h1: 1 GPU already whole for high-1; ")
    last = {name: (f"plans/{name}.yml", each.text) for name, each in first.plans.items()}
    again = plan_fleet(both, last, given, CATALOGUE, ["http"], last_fleet=("plans/fleet.yml", first.fleet))
    assert texts(again) == texts(first)


def test_what_has_no_place_is_in_the_fleet_file() -> None:
    planned = plan([("m/a.yml", manifest_text(environment="training"))])
    reason = "no host has the environment 'training'; what would help: write environment 'production', or set fleet_environment on a host"
    assert planned.unplaced == [{"service": "receipt-ocr", "replica": 1, "reason": reason}]
    assert planned.fleet.splitlines()[1:-1] == [
        "unplaced:",
        "  - {service: receipt-ocr, replica: 1, reason: '" + reason.replace("'", "''") + "'}",
        "settings: []",
        f"proof: {{solver: '{version()}', more: 0}}",
    ]
    assert re.fullmatch("asked: '?[0-9a-f]{16}'?", planned.fleet.splitlines()[-1])
    assert planned.bounds == [f"proven by {version()}: nobody else could be served, unless somebody else stops or moves"]
    assert planned.table[1].split() == ["receipt-ocr", "1", "-", "-", "-", "-", "-", "no", "place"]


def test_services_are_told_with_all_defaults() -> None:
    found = plan().services
    assert sorted(found) == ["llm-chat", "notebook", "receipt-ocr", "train"]
    assert (found["llm-chat"]["need_mib"], found["llm-chat"]["host"]["memory"]) == (30720, 2048)


def test_a_host_that_lost_all_decisions_keeps_a_plan() -> None:
    first = plan()
    second = plan([], first)
    assert (second.plans["h2"].data["serial"], second.plans["h2"].data["services"], second.plans["h2"].data["layout"]) == (2, [], [])
    assert texts(plan([], second)) == texts(second)


def test_a_host_that_is_not_here_keeps_its_services_and_is_mentioned() -> None:
    first = plan()
    only = {"h2": hosts()["h2"]}
    second = plan(last=first, given=only)
    assert (sorted(second.plans), second.unplaced) == (["h2"], [])
    assert second.notes == [
        "h1 is not part of this run: the 4 replicas of its last plan count as running there; remove its plan if the host is gone"
    ]
    assert "train        1        h1    GPU-h1-0  whole      -       -           kept" in second.table
    empty = plan([], first)
    assert plan([], empty, only).notes == []


def test_what_could_not_be_sensed_is_mentioned() -> None:
    given = hosts()
    given["h2"]["facts"]["host"].update(cpus=None, disk=None)
    assert plan(given=given).notes == ["h2: cpus, disk could not be read and is not limited; set fleet_capacity"]


def test_an_adopted_service_is_marked_in_its_plan() -> None:
    first = plan(MANIFESTS[:1])
    second = plan([("m/a.yml", manifest_text(lifecycle="adopted", replicas="2"))], first)
    assert [line["lifecycle"] for line in second.plans["h1"].data["services"]] == ["adopted", "adopted"]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    given = hosts()
    given["h1"]["policy"] = {"fleet_environment": "production", "fleet_gpu_mode": []}
    given["h2"]["facts"] = {**given["h2"]["facts"], "schema": 9}
    given["fleet"] = given["h2"]
    last = {"h1": ("plans/h1.yml", "x"), "h3": ("plans/h3.yml", plan().plans["h1"].text)}
    with pytest.raises(FleetError) as caught:
        plan_fleet([("m/a.yml", "- a")], last, given, CATALOGUE)
    assert str(caught.value).splitlines() == [
        "host fleet: a host cannot be named 'fleet'; 'fleet.yml' and what is no file name cannot be a host's plan; rename the host",
        "host h1: fleet_gpu_mode: unknown variable 'fleet_gpu_mode'; did you mean 'fleet_gpu_modes'?",
        "host h2: facts.schema: host facts of schema 9 were given, and this collection reads schema 1; "
        "use the same version of gpuops.fleet everywhere",
        "m/a.yml:1: expected a mapping, found a list; write one 'field: value' a line",
        "plans/h1.yml:1: expected a mapping, found plain text; write one 'field: value' a line",
        "plans/h3.yml: host: this file has the plan of host 'h1'; name the file h1.yml, or remove it",
    ]


def test_wrong_layouts_of_all_hosts_are_said_at_once() -> None:
    given = hosts()
    for name in given:
        given[name]["policy"]["fleet_cordoned_gpus"] = [9]
    with pytest.raises(FleetError) as caught:
        plan(given=given)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["host h1", "host h2"]


@pytest.mark.parametrize("name", ["fleet", "a/b", ".hidden"])
def test_a_host_whose_name_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(FleetError, match=f"^host {name}: a host cannot be named '{name}'"):
        plan(given={name: hosts()["h1"]})


def test_a_service_that_grows_does_not_push_out_those_that_ask_for_what_they_had() -> None:
    shared = {
        "h2": {"facts": facts([gpu_facts(0, "h2", mig=None)]), "policy": {"fleet_environment": "production", "fleet_gpu_modes": ["shared"]}}
    }

    def sharer(name: str, memory: str, **more: str) -> tuple[str, str]:
        return f"m/{name}.yml", manifest_text(name, gpu=f"{{isolation: shared, memory: {memory}}}", **more)

    neighbours = [sharer("bb", "20 GiB"), sharer("cc", "20 GiB")]
    first = plan([sharer("aa", "20 GiB"), *neighbours], given=shared)
    assert first.unplaced == []
    grown = [sharer("aa", "60 GiB", priority="100"), *neighbours]
    second = plan(grown, first, shared)
    assert [line["service"] for line in second.plans["h2"].data["services"]] == ["bb", "cc"]
    assert [(each["service"], each["replica"]) for each in second.unplaced] == [("aa", 1)]
    assert texts(plan(grown, second, shared)) == texts(second)


def test_a_service_that_asks_for_more_of_a_host_does_not_push_out_its_neighbours() -> None:
    host = {"h1": {**hosts()["h1"], "policy": {"fleet_environment": "production", "fleet_capacity": {"cpus": 9}}}}

    def service(name: str, cpus: int) -> tuple[str, str]:
        return f"m/{name}.yml", manifest_text(name, host=f"{{cpus: {cpus}}}")

    first = plan([service("aa", 4), service("bb", 4)], given=host)
    second = plan([service("aa", 5), service("bb", 4)], first, host)
    assert [line["service"] for line in second.plans["h1"].data["services"]] == ["bb"]
    assert [each["service"] for each in second.unplaced] == ["aa"]


def test_links_between_gpus_are_no_part_of_a_plan_and_change_none_that_stands() -> None:
    first = plan()
    wired = hosts()
    for one, other in ((0, 1), (1, 0)):
        wired["h1"]["facts"]["gpus"][one]["nvlink"] = [wired["h1"]["facts"]["gpus"][other]["pci"]]
    assert texts(plan(last=first, given=wired)) == texts(first)
    assert "nvlink" not in "".join(texts(plan(given=wired)).values())


def test_joined_gpus_are_asked_for_in_a_manifest_and_found_in_the_facts() -> None:
    train = ("m/t.yml", manifest_text("train", gpu="{isolation: exclusive, count: 2, memory: 60 GiB, nvlink: required}", ports=""))
    given = {"h1": {"facts": facts([gpu_facts(number) for number in range(3)]), "policy": {"fleet_environment": "production"}}}
    (missing,) = plan([train], given=given).unplaced
    assert "its facts do not tell which of them NVLink joins" in missing["reason"]
    several = given["h1"]["facts"]["gpus"]
    for number, peers in ((0, [2]), (1, []), (2, [0])):
        several[number]["nvlink"] = [several[peer]["pci"] for peer in peers]
    (line,) = plan([train], given=given).plans["h1"].data["services"]
    assert line["gpus"] == ["GPU-h1-0", "GPU-h1-2"]


def test_one_machine_under_two_names_is_not_given_away_twice() -> None:
    given = hosts()
    given["h1"]["facts"]["host"]["boot_id"] = "4f1c"
    given["h3"] = {"facts": given["h1"]["facts"], "policy": {"fleet_environment": "production"}}
    wrong = "its GPUs are those of h1, and both have been up since the same start: one machine under two names"
    with pytest.raises(FleetError) as caught:
        plan(given=given)
    assert str(caught.value) == f"host h3: facts.gpus: {wrong}; keep one of them in the inventory"


def test_a_gpu_of_two_hosts_is_not_given_away_twice_unless_one_is_down() -> None:
    given = hosts()
    facts_of = given["h1"]["facts"]
    given["h3"] = {"facts": {**facts_of, "host": {**facts_of["host"]}}, "policy": {"fleet_environment": "production"}}
    hint = "gather the facts of both anew"
    # Of facts that do not say since when, they may be made up.
    assert f"h3: it has a GPU of h1, by the same UUID; {hint}" in plan(given=given).notes
    given["h1"]["facts"]["host"]["boot_id"], given["h3"]["facts"]["host"]["boot_id"] = "4f1c", "77aa"
    with pytest.raises(FleetError) as caught:
        plan(given=given)
    line = f"it has a GPU of h1, by the same UUID; {hint}, or call one of them down (fleet_down_hosts)"
    assert str(caught.value) == f"host h3: facts.gpus: {line}"
    given["h3"]["down"] = True
    assert plan(given=given).unplaced == []
