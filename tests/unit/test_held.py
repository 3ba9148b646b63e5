# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs holds its memory, CPUs and ports until it is stopped, whatever its manifest says by now: in plans, steps and rollouts."""

from __future__ import annotations

import json
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.held import AMOUNTS, Held, last_of_versions
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import HostPlan, read_plan, to_text
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Resources
from ansible_collections.gpuops.fleet.plugins.plugin_utils.rollouts import YIELDS, host_rollouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.surge import Site
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text

Text = tuple[str, str]
CATALOGUE = door.catalogue()
POLICY = {"fleet_environment": "production", "fleet_gpu_modes": ["mig", "shared"]}


def service(name: str, gib: int = 8, isolation: str = "shared", port: int | None = None, **more: str) -> Text:
    """The manifest of a service, of so much of a GPU, with its port where it asks for one."""
    ports = "[{name: http, container: 8080%s}]" % (f", host: {port}" if port else "")
    return f"m/{name}.yml", manifest_text(name, gpu=f"{{isolation: {isolation}, memory: {gib} GiB}}", ports=ports, **more)


def asks(cpus: int, gib: int = 2) -> dict[str, str]:
    """Of the host."""
    return {"host": f"{{cpus: {cpus}, memory: {gib} GiB}}"}


def plan(*manifests: Text, last: Planned | None = None, sensed: t.Any = None, old: bool = False) -> Planned:
    """A plan of h1, an A100 with 64 CPUs. ``old``: the last one is of a release that kept no amounts."""
    texts = {} if last is None else {"h1": ("plans/h1.yml", (bare(last) if old else last.plans["h1"]).text)}
    hosts = {"h1": {"facts": sensed or facts([gpu_facts()]), "policy": POLICY}}
    return plan_fleet(manifests, texts, hosts, CATALOGUE, ["http"], last_fleet=last and ("plans/fleet.yml", last.fleet))


def bare(planned: Planned) -> HostPlan:
    """A plan's file as releases wrote it that kept no amounts."""
    data = planned.plans["h1"].data
    lines = [{key: value for key, value in line.items() if key not in AMOUNTS} for line in data["services"]]
    data = {**data, "services": lines, "digest": plan_record.digest_of_plan(data["layout"], lines)}
    return read_plan("plans/h1.yml", to_text(data))


def steps(planned: Planned) -> list[str]:
    """``restart aa-1``, without places."""
    return [" ".join(step.split()[1:3]) for step in planned.steps if step[0].isdigit()]


# Plans


def test_a_line_keeps_what_differs_from_what_a_manifest_asks_for_when_it_says_nothing() -> None:
    gpu = "{isolation: shared, memory: 8 GiB, compute: 0.25}"
    made = plan(
        service("aa", host="{cpus: 1, memory: 2 GiB}"),
        ("m/bb.yml", manifest_text("bb", gpu=gpu, host="{cpus: 4, memory: 16 GiB, shm: 1 GiB}")),
    )
    kept = [{key: line[key] for key in AMOUNTS if key in line} for line in made.plans["h1"].data["services"]]
    assert kept == [{"memory": 8192}, {"memory": 8192, "compute": 0.25, "host": {"cpus": 4, "memory": 16384, "shm": 1024}}]
    sliced = plan(service("aa", isolation="slice")).plans["h1"].data["services"][0]
    assert not set(AMOUNTS) & set(sliced)
    assert read_plan("plans/h1.yml", made.plans["h1"].text).data == made.plans["h1"].data


def test_a_plan_of_before_stays_as_it_is_until_something_else_changes() -> None:
    aa, bb = service("aa", **asks(4)), service("bb")
    first = plan(aa)
    old = bare(first)
    assert old.text != first.plans["h1"].text
    again = plan(aa, last=first, old=True)
    assert again.plans["h1"].text == old.text
    assert again.fleet == first.fleet
    more = plan(aa, bb, last=first, old=True).plans["h1"].data
    assert [(line["service"], line["memory"], line.get("host")) for line in more["services"]] == [
        ("aa", 8192, {"cpus": 4}),
        ("bb", 8192, None),
    ]


def test_as_long_as_the_manifest_is_the_same_so_are_the_amounts() -> None:
    first = plan(service("aa"))
    data = first.plans["h1"].data
    lines = [{**line, "memory": 9000} for line in data["services"]]  # another release counted otherwise
    data = {**data, "services": lines, "digest": plan_record.digest_of_plan(data["layout"], lines)}
    first = replace(first, plans={"h1": HostPlan(data, to_text(data))})
    assert plan(service("aa"), last=first).plans["h1"].text == first.plans["h1"].text


@pytest.mark.parametrize("amounts", ["memory: -1", "host: {gpus: 1}", "compute: much"])
def test_amounts_that_are_none_are_refused(amounts: str) -> None:
    text = plan(service("aa")).plans["h1"].text.replace("memory: 8192", amounts)
    with pytest.raises(Exception, match=r"plans/h1.yml"):
        read_plan("plans/h1.yml", text)


# Steps


def test_who_comes_into_what_another_gives_up_in_its_place_waits_for_it() -> None:
    first = plan(service("zz", 60))
    assert steps(plan(service("zz", 20), service("aa", 50), last=first)) == ["restart zz-1", "start aa-1"]
    # With room for both nobody waits for anybody.
    assert steps(plan(service("zz", 20), service("aa", 10), last=first)) == []


def test_who_grows_waits_for_the_one_that_shrinks() -> None:
    first = plan(service("aa", 10), service("zz", 60))
    assert steps(plan(service("aa", 50), service("zz", 20), last=first)) == ["restart zz-1", "restart aa-1"]


def test_whoever_left_holds_what_it_had_until_it_is_stopped() -> None:
    first = plan(service("zz", 60))
    assert steps(plan(service("aa", 50), last=first)) == ["stop zz-1", "start aa-1"]
    cpus = plan(service("zz", isolation="slice", **asks(40)))
    assert steps(plan(service("aa", isolation="slice", **asks(40)), last=cpus)) == ["stop zz-1", "start aa-1"]


def test_the_host_is_given_away_once_too() -> None:
    first = plan(service("zz", isolation="slice", **asks(40, 300)))
    for less in (asks(10, 300), asks(40, 10)):
        comes = asks(40, 10) if less == asks(10, 300) else asks(10, 300)
        made = plan(service("zz", isolation="slice", **less), service("aa", isolation="slice", **comes), last=first)
        assert steps(made) == ["restart zz-1", "start aa-1"]


def test_who_exchange_room_and_have_none_for_both_are_told_who_stops() -> None:
    first = plan(service("aa", 50, **asks(10)), service("zz", 20, **asks(50)))
    made = plan(service("aa", 20, **asks(50)), service("zz", 50, **asks(10)), last=first)
    assert steps(made) == ["stop zz-1", "restart aa-1", "start zz-1"]
    reason = "it is stopped first: others wait for a port or room that it gives up, and it for theirs"
    assert made.steps[-1] == f"zz-1 does not serve for a while: {reason}"
    assert made.rollouts[1] == f"zz-1: new version; stop first on h1: {YIELDS}"


def test_where_nobody_knows_what_runs_who_comes_waits() -> None:
    first = plan(service("zz", 10))
    assert steps(plan(service("zz", 20), service("aa", 10), last=first)) == []
    assert steps(plan(service("zz", 20), service("aa", 10), last=first, old=True)) == ["restart zz-1", "start aa-1"]
    # What has the same manifest as ever holds what that says.
    assert steps(plan(service("zz", 10), service("aa", 10), last=first, old=True)) == []


def test_where_a_line_keeps_nothing_a_container_tells_what_it_has_of_its_host() -> None:
    first = plan(service("zz", isolation="slice", **asks(40)))
    box = {"id": "c", "name": "zz", "project": "zz-1", "state": "running", "devices": [], "cpus": 40.0, "memory_mib": 2048, "shm_mib": 64}
    new = service("zz", isolation="slice", **asks(10)), service("aa", isolation="slice", **asks(40))
    sensed = facts([gpu_facts()], containers=[box])
    assert steps(plan(*new, last=first, old=True, sensed=sensed)) == ["restart zz-1", "start aa-1"]


# Ports


def test_other_ports_are_a_restart_and_are_taken_only_when_they_were_given_up() -> None:
    first = plan(service("aa", isolation="slice"), service("zz", isolation="slice"))
    made = plan(service("aa", isolation="slice", port=18001), service("zz", isolation="slice"), last=first)
    assert [step.rpartition(" with ")[2] for step in made.steps] == ["http:18002", "http:18001"]
    assert steps(made) == ["restart zz-1", "restart aa-1"]
    assert [line.split("; ")[0] for line in made.rollouts] == ["zz-1: other ports", "aa-1: new version"]


def test_two_who_exchange_their_ports_are_told_who_stops() -> None:
    first = plan(
        *(service(name, isolation="slice", port=port, priority=str(rank)) for name, port, rank in (("aa", 18000, 20), ("zz", 18001, 80)))
    )
    made = plan(
        *(service(name, isolation="slice", port=port, priority=str(rank)) for name, port, rank in (("aa", 18001, 20), ("zz", 18000, 80))),
        last=first,
    )
    assert steps(made) == ["stop aa-1", "restart zz-1", "start aa-1"]
    assert made.steps[-1].startswith(
        "aa-1 does not serve for a while: it is stopped first: others wait for a port or room that it gives up"
    )
    assert [line.partition(" on h1")[0] for line in made.rollouts] == [
        "zz-1: new version; beside the old one",
        "aa-1: new version; stop first",
    ]


# Rollouts on a host


def versions(*manifests: Text) -> dict[str, t.Any]:
    """What a host keeps of these services, each of which serves by this manifest."""
    found = {}
    for file, text in manifests:
        (manifest,) = read_manifests([(file, text)])
        one = {"number": 3, "digest": manifest.digest(), "outcome": "serving", "manifest": {"file": file, "text": text}}
        found[f"{manifest.service}-1"] = {"versions": [one], "serving": 3}
    return found


def boxes(ports: t.Mapping[str, int], **more: t.Any) -> list[dict[str, t.Any]]:
    """Containers of these services, which publish these ports."""
    return [
        {"id": name, "name": name, "project": f"{name}-1", "state": "running", "devices": ["GPU-h1-0"], "ports": [{"host": port}], **more}
        for name, port in ports.items()
    ]


def told(runs: t.Sequence[Text], new: t.Sequence[Text]) -> dict[str, t.Any]:
    """What a play on h1 is told, where these versions run as a plan has put them, and a plan of the new manifests is carried out."""
    first = plan(*runs)
    ports = {line["service"]: line["ports"]["http"] for line in first.plans["h1"].data["services"]}
    sensed = facts([gpu_facts()], containers=boxes(ports))
    made = plan(*new, last=first, sensed=sensed)
    site = Site("h1", made.plans["h1"], sensed, read_policy("h1", POLICY), read_manifests(new), CATALOGUE)
    return host_rollouts(replace(site, last=last_of_versions(versions(*runs), sensed)), [f"{name}-1" for name in ports])


def test_on_a_host_who_shrinks_is_served_before_who_grows_and_who_comes() -> None:
    result = told([service("aa", 10), service("zz", 60)], [service("aa", 30), service("bb", 25), service("zz", 20)])
    assert [each["service"] for each in result["services"]] == ["zz", "aa", "bb"]
    assert result["yields"] == []


def test_a_surge_leaves_others_what_they_still_have() -> None:
    # One more of 'aa' has room beside what both will have; while 'zz' has its 50 GiB it has none.
    runs = [service("aa", 20), service("zz", 50)]
    both = told(runs, [service("aa", 19), service("zz", 30)])["services"]
    assert [(each["service"], bool(each["surge"])) for each in both] == [("aa", False), ("zz", False)]
    assert both[0]["reason"] == "no GPU with room while the old versions run"
    small = told(runs, [service("aa", 8), service("zz", 30)])["services"]
    assert [(each["service"], bool(each["surge"])) for each in small] == [("aa", True), ("zz", False)]


def test_a_surge_needs_the_host_beside_what_still_runs() -> None:
    runs = [service("aa", 8, **asks(40))]
    result = told(runs, [service("aa", 8, **asks(24))])
    assert result["services"][0]["reason"] == "too little CPU while the old versions run"
    assert told(runs, [service("aa", 8, **asks(20))])["services"][0]["surge"]


def test_who_exchange_ports_on_a_host_have_the_lower_priority_stopped_before_anybody_is_served() -> None:
    low, high = {"priority": "20"}, {"priority": "80"}
    runs = [service("aa", port=18000, **low), service("zz", port=18001, **high)]
    result = told(runs, [service("aa", port=18001, **low), service("zz", port=18000, **high)])
    assert result["yields"] == ["aa-1"]
    assert [(each["service"], each["rolled"]) for each in result["services"]] == [("zz", ["zz-1"]), ("aa", [])]


def test_a_version_whose_manifest_is_unknown_holds_what_its_limits_say() -> None:
    known = versions(service("aa"))
    sensed = {"containers": boxes({"aa": 18000}, cpus=4.0, memory_mib=1024, shm_mib=64)}
    assert last_of_versions(known, sensed)["aa-1"].held == Held(Resources(1.0, 2048, 64, 0), 8192)
    for text in (None, "schema: 99\n"):
        known["aa-1"]["versions"][0]["manifest"] = {"file": "m/aa.yml", "text": text}
        found = last_of_versions(json.loads(json.dumps(known)), sensed)["aa-1"]
        assert (found.held, found.ports) == (Held(Resources(4.0, 1024, 64, 0), None), frozenset({18000}))
