# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a new version runs beside the old one: in room that is there, never on another's place, and only when nothing else changes."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, parse_slice, why_not
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import wish_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.deploying import check_scope, deploy_failures, deploy_held, order_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.rollouts import host_rollouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.surge import STALE, Site, Surge, Surges
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A100, facts, gpu_facts, manifest_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Data = dict[str, t.Any]
CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
QUICK = settings(
    max_examples=120,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
PORTS = "[{name: http, container: 8080}]"


def box(project: str, device: str, port: int = 0, **more: t.Any) -> Data:
    """A container in the facts."""
    ports = [{"host": port, "container": 8080, "protocol": "tcp"}] if port else []
    return {
        "id": project,
        "name": f"{project}-model-1",
        "image": "x",
        "state": "running",
        "project": project,
        "devices": [device],
        "ports": ports,
        **more,
    }


def mig_uuid(one: Data) -> str:
    return f"MIG-{one['gpu']}-{one['start']}"


def carried_out(site: Site, boxes: bool = True) -> Data:
    """The facts after the plan was carried out: its layout, a container of each replica, its ports."""
    by_gpu = {wish["gpu"]: wish for wish in wish_of(site.plan.data)}
    gpus = []
    for gpu in site.facts["gpus"]:
        wish = by_gpu.get(gpu["uuid"])
        if wish is None:
            gpus.append(gpu)
            continue
        instances = [
            {
                "gi": 7 + one["start"],
                "profile": one["profile"],
                "start": one["start"],
                "ci": [{"id": 0, "profile": one["profile"], "uuid": mig_uuid({"gpu": gpu["uuid"], **one})}],
            }
            for one in wish["instances"]
        ]
        gpus.append({**gpu, "mig": {**gpu["mig"], "current": wish["mig"], "pending": wish["mig"], "instances": instances}})
    containers, ports = [], []
    for line in site.plan.data["services"]:
        devices = [mig_uuid(line)] if "profile" in line else line.get("gpus") or [line["gpu"]]
        containers.append({**box(f"{line['service']}-{line['replica']}", devices[0], line["ports"].get("http", 0)), "devices": devices})
        ports.extend(line["ports"].values())
    host = {**site.facts["host"], "ports_listening": sorted([22, *ports])}
    return {**site.facts, "gpus": gpus, "host": host, "containers": containers if boxes else []}


def site_of(manifests: t.Sequence[str], gpus: t.Sequence[Data], carried: bool = True, **policy: t.Any) -> Site:
    """A host with the plan of these services, carried out unless ``carried`` is false."""
    texts = [(f"{number}.yml", text) for number, text in enumerate(manifests)]
    variables = {"fleet_environment": "production", **policy}
    sensed = facts(gpus, containers=[])
    planned = plan_fleet(texts, {}, {"h1": {"facts": sensed, "policy": variables}}, CATALOGUE)
    site = Site("h1", planned.plans["h1"], sensed, read_policy("h1", variables), read_manifests(texts), CATALOGUE)
    return with_facts(site, carried_out(site)) if carried else site


def with_facts(site: Site, new: Data) -> Site:
    return Site(site.name, site.plan, new, site.policy, site.manifests, site.catalogue, site.stopped)


def surge(site: Site, service: str) -> Surge:
    found = Surges(site).place(service)
    assert isinstance(found, Surge), found
    return found


def slices(layout: t.Iterable[Data], gpu: str = "GPU-h1-0") -> list[str]:
    return [f"{one['profile']}@{one['start']}" for wish in layout if wish["gpu"] == gpu for one in wish["instances"]]


def test_a_new_slice_is_cut_beside_those_that_stay() -> None:
    site = site_of([manifest_text("ocr", gpu="{memory: 8 GiB}", ports=PORTS)], [gpu_facts()], fleet_gpu_modes=["mig"])
    found = surge(site, "ocr")
    home = site.plan.data["services"][0]
    assert found.partitions
    assert set(slices(wish_of(site.plan.data))) < set(slices(found.layout))
    assert (found.placement.slice or Slice(0, "")).start != home["start"]
    data = found.data("ocr")
    assert (data["project"], data["devices"]) == (
        "ocr-surge",
        [{"name": "GPU_0", "gpu": "GPU-h1-0", "profile": "1g.10gb", "start": data["start"]}],
    )
    assert data["ports"]["http"] not in (home["ports"]["http"], 22)


def test_a_spare_slice_is_taken_before_one_is_made() -> None:
    site = site_of([manifest_text("ocr", ports=PORTS)], [gpu_facts(slices="1g.10gb@0 1g.10gb@1 3g.40gb@4")])
    found = surge(site, "ocr")
    assert not found.partitions
    assert list(found.layout) == wish_of(site.plan.data)


def test_a_full_gpu_has_no_room_and_the_reason_is_in_words() -> None:
    site = site_of([manifest_text("big", gpu="{memory: 60 GiB}", ports=PORTS)], [gpu_facts()])
    assert str(Surges(site).place("big")).startswith("1 GPU without room for ")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"rollout": "{way: stop-first}"}, "its manifest asks for it"),
        ({"host": "{cpus: 40}"}, "needs 40 cpus and has 23 cpus left"),
    ],
)
def test_a_reason_names_what_is_short_or_who_asked_for_it(more: dict[str, str], reason: str) -> None:
    site = site_of([manifest_text("ocr", ports=PORTS, **more)], [gpu_facts()])
    assert Surges(site).place("ocr") == reason


def test_an_idle_gpu_serves_a_service_that_has_one_for_itself() -> None:
    idle = {"mig": {**gpu_facts()["mig"], "current": False, "pending": False}}
    texts = [manifest_text("llm", gpu="{isolation: exclusive, memory: 60 GiB}", ports=PORTS)]
    site = site_of(texts, [gpu_facts(0, **idle), gpu_facts(1, **idle)])
    found = surge(site, "llm")
    assert (found.placement.mode, found.partitions) == ("whole", False)
    assert set(found.placement.gpus).isdisjoint(site.plan.data["services"][0]["gpus"])
    alone = site_of(texts, [gpu_facts(0, **idle)])
    assert Surges(alone).place("llm") == "1 GPU already whole for llm-1"


def test_a_gpu_that_would_have_to_change_its_mig_mode_is_left_alone() -> None:
    idle = {"mig": {**gpu_facts()["mig"], "current": False, "pending": False}}
    site = site_of([manifest_text("big", gpu="{memory: 60 GiB}", ports=PORTS)], [gpu_facts(0), gpu_facts(1, **idle)])
    assert "1 GPU not in MIG mode" in str(Surges(site).place("big"))


def test_a_host_port_that_the_service_asks_for_stays_with_the_old_version() -> None:
    site = site_of([manifest_text("ocr", ports="[{name: http, container: 8080, host: 9000}]")], [gpu_facts()])
    ((_name, port),) = surge(site, "ocr").placement.ports
    assert 18000 <= port <= 18999


def test_a_slice_of_somebody_who_is_in_no_plan_is_never_taken_nor_destroyed() -> None:
    site = site_of([manifest_text("ocr", ports=PORTS)], [gpu_facts(slices="1g.10gb@0 1g.10gb@1 3g.40gb@4")])
    home = site.plan.data["services"][0]["start"]
    (other,) = {0, 1} - {home}
    held = {**site.facts, "containers": [*site.facts["containers"], box("somebody", f"MIG-GPU-h1-0-{other}")]}
    found = surge(with_facts(site, held), "ocr")
    assert found.placement.slice is not None
    assert found.placement.slice.start not in (home, other)
    assert {"1g.10gb@0", "1g.10gb@1"} <= set(slices(found.layout))


def test_what_is_stopped_before_is_in_nobodys_way() -> None:
    """A replica that left the plan holds its slice until the play stops it."""
    site = site_of([manifest_text("ocr", ports=PORTS)], [gpu_facts(slices="1g.10gb@0 3g.40gb@4")], fleet_gpu_modes=["mig"])
    home = site.plan.data["services"][0]["start"]
    assert home == 0
    held = {**site.facts, "containers": [*site.facts["containers"], box("old-1", "MIG-GPU-h1-0-4")]}
    gone = Site("h1", site.plan, held, site.policy, site.manifests, site.catalogue, frozenset({"old-1"}))
    assert surge(gone, "ocr").placement == surge(site, "ocr").placement


def test_a_surge_that_is_there_still_keeps_its_place_and_its_ports() -> None:
    site = site_of([manifest_text("ocr", ports=PORTS), manifest_text("face", ports=PORTS)], [gpu_facts()], fleet_gpu_modes=["mig"])
    first = surge(site, "ocr")
    assert first.placement.slice is not None
    start, port = first.placement.slice.start, dict(first.placement.ports)["http"]
    there = carried_out(site)
    uuid = mig_uuid({"gpu": "GPU-h1-0", "start": start})
    there["gpus"][0]["mig"]["instances"].append(
        {"gi": 90, "profile": "1g.10gb", "start": start, "ci": [{"id": 0, "profile": "1g.10gb", "uuid": uuid}]}
    )
    there["containers"].append(box("ocr-surge", uuid, port))
    there["host"]["ports_listening"].append(port)
    again = with_facts(site, there)
    surges = Surges(again)
    assert surges.leftovers() == ["ocr"]
    assert f"1g.10gb@{start}" in slices(surges.layout())
    kept, other = surges.place("ocr"), surges.place("face")
    assert isinstance(kept, Surge)
    assert isinstance(other, Surge)
    assert (kept.placement.slice, dict(kept.placement.ports)) == (first.placement.slice, {"http": port})
    assert other.placement.slice not in (first.placement.slice, None)
    assert f"1g.10gb@{start}" in slices(other.layout)
    told = host_rollouts(again, [], ["ocr-surge"])
    assert (told["gone"], [each["left"] for each in told["services"]]) == ([], [service == "ocr" for service in ("face", "ocr")])


def test_a_surge_whose_place_the_plan_needs_is_removed_first() -> None:
    site = site_of([manifest_text("ocr", ports=PORTS)], [gpu_facts()], fleet_gpu_modes=["mig"])
    there = carried_out(site)
    there["containers"].append(box("ocr-surge", mig_uuid(site.plan.data["services"][0])))
    told = host_rollouts(with_facts(site, there), ["ocr-1"], ["ocr-surge", "gone-surge"])
    assert (told["gone"], told["services"][0]["left"]) == (["gone-surge", "ocr-surge"], False)


def test_who_runs_and_gets_another_place_here_is_told_before_it_is_stopped() -> None:
    texts = [manifest_text(name, ports=PORTS) for name in ("ocr", "face", "rests")]
    site = site_of(texts, [gpu_facts()], fleet_gpu_modes=["mig"])
    moving = replace(site, stopped=frozenset(("ocr-1", "rests-1", "left-1")))
    resting = {"rests": {"by": "alice", "since": "2026-11-21T12:00:00Z", "reason": ""}}
    assert host_rollouts(moving, [], [], resting)["moved"] == ["ocr-1"]
    ended = {**site.facts, "containers": [{**each, "state": "exited"} for each in site.facts["containers"]]}
    assert host_rollouts(replace(moving, facts=ended), [])["moved"] == []


def test_a_gpu_beside_the_plan_is_brought_back_to_what_it_was() -> None:
    """It is in MIG mode, and no decision had touched it."""
    texts = [manifest_text("big", gpu="{memory: 60 GiB}", ports=PORTS)]
    on = {"mig": {**gpu_facts()["mig"], "current": True, "pending": True}}
    site = site_of(texts, [gpu_facts(0, **on), gpu_facts(1, **on)])
    found = surge(site, "big")
    assert slices(found.layout, found.placement.gpus[0]) == ["7g.80gb@0"]
    assert list(found.restore) == [{"gpu": found.placement.gpus[0], "mig": True, "instances": []}]


def left_behind(there: Data, gpu: int, start: int) -> str:
    """A slice that a rollout made and that is there still, put into the facts; its MIG UUID."""
    uuid = mig_uuid({"gpu": there["gpus"][gpu]["uuid"], "start": start})
    ci = [{"id": 0, "profile": "1g.10gb", "uuid": uuid}]
    there["gpus"][gpu]["mig"]["instances"].append({"gi": 90 + start, "profile": "1g.10gb", "start": start, "ci": ci, "temporary": True})
    return uuid


@pytest.mark.parametrize("held", [False, True])
def test_what_a_killed_rollout_made_is_in_no_plan_and_is_given_back(held: bool) -> None:
    """With its surge on it or without: the next plan has the layout from before, and the rollout finds a place again."""
    text = manifest_text("ocr", ports=PORTS)
    site = site_of([text], [gpu_facts()], fleet_gpu_modes=["mig"])
    first = surge(site, "ocr").placement
    assert first.slice is not None
    there = carried_out(site)
    uuid = left_behind(there, 0, first.slice.start)
    if held:
        there["containers"].append(box("ocr-surge", uuid, dict(first.ports)["http"]))
    policy = {"fleet_environment": "production", "fleet_gpu_modes": ["mig"]}
    last = {"h1": ("h1.yml", site.plan.text)}
    for texts in ([("0.yml", text)], [("0.yml", text), ("1.yml", manifest_text("face", ports=PORTS))]):
        again = plan_fleet(texts, last, {"h1": {"facts": there, "policy": policy}}, CATALOGUE).plans["h1"]
        named = slices(wish_of(again.data))
        wanted = [f"{line['profile']}@{line['start']}" for line in again.data["services"]]
        assert sorted(named) == sorted(wanted)
        assert not held or str(first.slice) not in named
    rolled = Site("h1", site.plan, there, site.policy, site.manifests, CATALOGUE)
    told = host_rollouts(rolled, ["ocr-1"])
    assert told["layout"] == wish_of(site.plan.data) if not held else str(first.slice) in slices(told["layout"])
    assert str(first.slice) in slices(told["services"][0]["surge"]["layout"])


def test_what_a_killed_rollout_made_beside_the_plan_is_given_back() -> None:
    on = {"mig": {**gpu_facts()["mig"], "current": True, "pending": True}}
    site = site_of([manifest_text("big", gpu="{memory: 60 GiB}", ports=PORTS)], [gpu_facts(0, **on), gpu_facts(1, slices="1g.10gb@6")])
    beside = next(number for number, gpu in enumerate(site.facts["gpus"]) if gpu["uuid"] != site.plan.data["services"][0]["gpu"])
    there = carried_out(site)
    there = {**there, "gpus": [{**gpu, "mig": {**gpu["mig"], "instances": [*gpu["mig"]["instances"]]}} for gpu in there["gpus"]]}
    uuid = left_behind(there, beside, 0)
    stays = [{"profile": one["profile"], "start": one["start"]} for one in there["gpus"][beside]["mig"]["instances"][:-1]]
    back = {"gpu": there["gpus"][beside]["uuid"], "mig": True, "instances": stays}
    assert Surges(with_facts(site, there)).restore() == [back]
    there["containers"].append(box("stranger", uuid))
    assert Surges(with_facts(site, there)).restore() == []


def test_a_policy_that_names_a_board_which_is_gone_stops_no_plan_that_needs_no_more_room() -> None:
    site = site_of([manifest_text("ocr", ports=PORTS)], [gpu_facts()], fleet_gpu_modes=["mig"])
    variables = {"fleet_environment": "production", "fleet_gpu_modes": ["mig"], "fleet_cordoned_gpus": ["GPU-exchanged"]}
    surges = Surges(replace(site, policy=read_policy("h1", variables)))
    assert (surges.leftovers(), surges.layout(), surges.restore()) == ([], wish_of(site.plan.data), [])
    with pytest.raises(FleetError, match="there is no GPU 'GPU-exchanged'"):
        surges.place("ocr")


def test_a_plan_that_is_older_than_the_facts_gives_no_place() -> None:
    site = site_of([manifest_text("ocr", ports=PORTS)], [gpu_facts(0), gpu_facts(1)], fleet_gpu_modes=["mig"])
    used = site.plan.data["services"][0]["gpu"]
    lost = {**site.facts, "gpus": [{**gpu, "state": "lost"} if gpu["uuid"] == used else gpu for gpu in site.facts["gpus"]]}
    assert Surges(with_facts(site, lost)).place("ocr") == STALE


def test_only_replicas_that_run_are_rolled_and_who_rests_is_told() -> None:
    site = site_of(
        [manifest_text("ocr", replicas="2", ports=PORTS), manifest_text("face", ports=PORTS)], [gpu_facts()], fleet_gpu_modes=["mig"]
    )
    less = {**site.facts, "containers": [each for each in site.facts["containers"] if each["project"] != "ocr-2"]}
    told = host_rollouts(with_facts(site, less), ["ocr-1", "ocr-2"], resting={"face": {"by": "alice", "since": "now", "reason": "mask"}})
    (only,) = told["services"]
    assert (only["service"], only["rolled"], only["replicas"]) == ("ocr", ["ocr-1"], ["ocr-1", "ocr-2"])
    assert told["lines"][0].startswith("ocr-1: new version; beside the old one on h1 1g.10gb@")
    assert told["lines"][1] == "face on h1 is stopped by alice (mask) since now, and is left so"
    assert [each["service"] for each in host_rollouts(site, [], only="face")["services"]] == ["face"]


def test_whoever_gives_up_a_port_is_served_before_the_one_that_gets_it() -> None:
    names = ("aa", "bb", "zz")
    site = site_of([manifest_text(name, ports=PORTS) for name in names], [gpu_facts()], fleet_gpu_modes=["mig"])
    has = [next(iter(line["ports"].values())) for line in site.plan.data["services"]]

    def told(*held: int) -> list[str]:
        """The order where these services publish these ports now."""
        boxes = [box(f"{name}-1", "MIG-x", port) for name, port in zip(names, held, strict=True)]
        return [each["service"] for each in host_rollouts(with_facts(site, {**site.facts, "containers": boxes}), [])["services"]]

    assert told(*has) == ["aa", "bb", "zz"]
    # The first is to have what the last has, and that one is to have another.
    assert told(19000, has[1], has[0]) == ["bb", "zz", "aa"]
    shrinks = host_rollouts(site, ["zz-1"])["services"]
    assert [(each["service"], each["rolled"]) for each in shrinks] == [("zz", ["zz-1"]), ("aa", []), ("bb", [])]
    # In a circle nobody can be the first.
    assert told(has[2], has[1], has[0]) == ["bb", "aa", "zz"]


def test_what_failed_here_last_is_not_rolled_again_where_an_earlier_version_serves() -> None:
    site = site_of(
        [manifest_text("ocr", replicas="2", ports=PORTS), manifest_text("face", ports=PORTS)], [gpu_facts()], fleet_gpu_modes=["mig"]
    )
    wished = next(line["manifest"] for line in site.plan.data["services"] if line["service"] == "ocr")
    replaced = {"number": 3, "digest": wished, "outcome": "replaced", "since": "t3", "reason": ""}
    good = {"number": 4, "digest": "sha256:old", "outcome": "serving", "since": "t4", "reason": ""}
    bad = {"number": 5, "digest": wished, "outcome": "failed", "since": "t5", "reason": "it is not healthy"}
    changed = ["ocr-1", "ocr-2", "face-1"]

    def told(
        *versions: dict[str, t.Any], serving: int | None = 4, site: Site = site
    ) -> tuple[list[str], dict[str, list[str]], dict[str, str]]:
        found = host_rollouts(site, changed, versions={"ocr-1": {"versions": list(versions), "serving": serving}})
        return found["lines"], {each["service"]: each["replicas"] for each in found["services"]}, found["held"]

    everybody = {"face": ["face-1"], "ocr": ["ocr-1", "ocr-2"]}
    lines, replicas, held = told(good, bad)
    assert [line.partition(":")[0] for line in lines] == ["face-1"]
    assert replicas == {**everybody, "ocr": []}
    assert held == {
        "ocr": "ocr-1, ocr-2: version 5 failed here at t5 (it is not healthy) and is not tried again; version 4 serves on. "
        "Change the manifest, or try it again by playbook deploy"
    }
    another = {**bad, "digest": "sha256:new"}
    for case in (told(replaced, good), told(good, another), told(good, bad, another), told(good, bad, {**good, "number": 6})):
        assert case[1:] == (everybody, {})
    assert told(bad, serving=None)[1:] == (everybody, {})
    less = {**site.facts, "containers": [each for each in site.facts["containers"] if each["project"] != "ocr-2"]}
    assert told(good, bad, site=with_facts(site, less))[1] == {**everybody, "ocr": ["ocr-2"]}


# ---- many hosts

NEEDS = [
    "{memory: 8 GiB}",
    "{memory: 16 GiB}",
    "{memory: 30 GiB}",
    "{profile: 1g.10gb}",
    "{isolation: exclusive, memory: 40 GiB}",
    "{isolation: shared, memory: 4 GiB}",
]
LAYOUTS = ["", "1g.10gb@0", "3g.40gb@0", "1g.10gb@0 1g.10gb@1 2g.20gb@2 3g.40gb@4", "7g.80gb@0", "1g.20gb@0 1g.10gb@5"]


@st.composite
def sites(draw: st.DrawFn) -> Site:
    count = draw(st.integers(1, 4))
    texts = [
        manifest_text(f"service-{number}", gpu=draw(st.sampled_from(NEEDS)), replicas=str(draw(st.integers(1, 2))), ports=PORTS)
        for number in range(count)
    ]
    gpus = []
    for number in range(draw(st.integers(1, 3))):
        layout = draw(st.sampled_from(LAYOUTS))
        gpu = gpu_facts(number, slices=layout)
        on = bool(layout) or draw(st.booleans())
        gpus.append({**gpu, "mig": {**gpu["mig"], "current": on, "pending": on}})
    site = site_of(
        texts, gpus, draw(st.booleans()), fleet_gpu_modes=["mig", "whole", "shared"], fleet_ports=f"18000-{18000 + draw(st.integers(2, 9))}"
    )
    held = [box(f"stranger-{number}", one["ci"][0]["uuid"]) for number, one in enumerate(_free(site)) if draw(st.integers(0, 3)) == 0]
    return with_facts(site, {**site.facts, "containers": [*site.facts["containers"], *held]})


def _free(site: Site) -> list[Data]:
    """Slices on the boards that the plan gives to nobody."""
    given = {(line.get("gpu"), line.get("start")) for line in site.plan.data["services"]}
    return [one for gpu in site.facts["gpus"] for one in gpu["mig"]["instances"] if one["ci"] and (gpu["uuid"], one["start"]) not in given]


@QUICK
@given(sites())
def test_a_surge_never_overlaps_moves_or_destroys_anything(site: Site) -> None:
    planned = {wish["gpu"]: {Slice(one["start"], one["profile"]) for one in wish["instances"]} for wish in wish_of(site.plan.data)}
    taken = {(uuid, place.slice) for place in site.plan.placements for uuid in place.gpus}
    whole = {uuid for place in site.plan.placements if place.mode == "whole" for uuid in place.gpus}
    ports = {port for place in site.plan.placements for _name, port in place.ports}
    held = {device for each in site.facts["containers"] if str(each["project"]).startswith("stranger") for device in each["devices"]}
    for service in site.services():
        found = Surges(site).place(service)
        if isinstance(found, str):
            assert found
            continue
        place = found.placement
        assert not {port for _name, port in place.ports} & ports
        assert len(place.ports) == 1
        layout = {wish["gpu"]: {Slice(one["start"], one["profile"]) for one in wish["instances"]} for wish in found.layout}
        for uuid, before in planned.items():
            assert before <= layout[uuid]
        for gpu in site.facts["gpus"]:
            uuid = gpu["uuid"]
            assert uuid not in layout or why_not(A100, sorted(layout[uuid])) is None
            for one in gpu["mig"]["instances"]:
                mine = place.slice == Slice(one["start"], one["profile"]) and place.gpus == (uuid,)
                if one["ci"] and one["ci"][0]["uuid"] in held:
                    assert not mine
                    assert uuid not in layout or uuid in planned or parse_slice(f"{one['profile']}@{one['start']}") in layout[uuid]
        if place.slice is not None:
            assert (place.gpus[0], place.slice) not in taken
            assert place.slice in layout.get(place.gpus[0], {place.slice})
        else:
            assert not set(place.gpus) & whole
            assert all(not layout.get(uuid) for uuid in place.gpus)


@QUICK
@given(sites())
def test_the_same_question_has_the_same_answer(site: Site) -> None:
    for service in site.services():
        turned = {**site.facts, "gpus": site.facts["gpus"][::-1], "containers": site.facts["containers"][::-1]}
        assert Surges(site).place(service) == Surges(with_facts(site, turned)).place(service)


# ---- whom a plan concerns


def test_a_deploy_of_one_service_is_refused_when_the_plan_changes_another() -> None:
    concerned = {"h1": {"rolled": ["ocr-1"], "stop": [], "new": []}, "h2": {"rolled": [], "stop": ["face-match-2"], "new": ["llm-1"]}}
    with pytest.raises(FleetError) as caught:
        check_scope("ocr", concerned)
    assert "the plan would change more than ocr: face-match on h2, llm on h2" in str(caught.value)
    assert "deploy that first, or leave out -e service" in str(caught.value)
    check_scope("ocr", {"h1": concerned["h1"]})
    check_scope(None, concerned)


@pytest.mark.parametrize(
    ("record", "turn"),
    [
        ({"needed": True, "new": ["ocr-2"], "stop": ["face-1"], "gone": ["face-1"]}, 1),
        ({"needed": True, "new": [], "stop": ["face-1"], "gone": []}, 1),
        ({"needed": True, "new": [], "stop": [], "gone": [], "rolled": ["ocr-1"]}, 2),
        ({"needed": True, "new": [], "stop": ["face-1"], "gone": ["face-1"]}, 3),
        ({"needed": False, "new": [], "stop": [], "gone": []}, 0),
    ],
)
def test_hosts_that_gain_replicas_come_before_those_that_lose_some(record: Data, turn: int) -> None:
    assert order_of(record) == turn


def test_a_host_that_was_lost_in_its_turn_is_told_and_one_that_has_its_turn_now_is_not() -> None:
    noted: dict[str, Data] = {
        "h1": {"deploy_at_it": True, "deploy_carried": True},
        "h2": {"deploy_at_it": True},
        "h3": {"deploy_at_it": True, "deploy_carried": True, "deploy_problem": "h3: ocr-1: image missing"},
        "h4": {},
    }
    lost = "h2: it could not be reached any more in its turn; the next deploy finishes what was begun there"
    assert deploy_failures(noted, noted) == [lost, "h3: ocr-1: image missing"]
    assert deploy_failures(["h1", "h2", "h4"], noted, "h2") == []


def test_hosts_that_wait_for_their_turn_are_held_on_when_half_of_the_time_is_over() -> None:
    held = {"token": "t"}
    noted: dict[str, Data] = {
        "h1": {"apply_lease": held, "deploy_began": "2026-11-21T12:00:00Z"},
        "h2": {"apply_lease": held, "deploy_began": "2026-11-21T12:10:00Z"},
        "lost": {"apply_lease": {"unreachable": True}, "deploy_began": "2026-11-21T12:00:00Z"},
        "down": {"deploy_began": "2026-11-21T12:00:00Z"},
    }
    assert deploy_held(noted, noted, "h2", "2026-11-21T12:14:59Z", 1800) == []
    assert deploy_held(noted, noted, "h2", "2026-11-21T12:15:00Z", 1800) == ["h1"]
    assert deploy_held(["down"], noted, "h2", "2026-11-21T12:15:00Z", 1800) == []
