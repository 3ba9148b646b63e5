# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From facts, policy and manifests to the planner's problem."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import check_facts, host_of, need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Gpu, Host, Instance, Need, Pin, Placement, Resources
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A100, facts, gpu_facts, manifest_text, need, place, problem

CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)


def sensed(given: dict[str, t.Any], previous: t.Sequence[Placement] = (), **policy: t.Any) -> Host:
    return host_of("h1", given, read_policy("h1", {"fleet_environment": "production", **policy}), CATALOGUE, previous)


def one_gpu(entry: dict[str, t.Any], previous: t.Sequence[Placement] = (), **more: t.Any) -> Gpu:
    return sensed(facts([entry], **more), previous).gpus[0]


def refused(given: dict[str, t.Any], **policy: t.Any) -> str:
    with pytest.raises(FleetError) as caught:
        sensed(given, **policy)
    return str(caught.value)


def test_a_host_gives_what_it_has_less_the_reserve() -> None:
    assert sensed(facts()) == Host(
        name="h1",
        environment="production",
        gpus=(),
        modes=("mig", "whole"),
        shared_max=4,
        shared_reserve_mib=1024,
        capacity=Resources(63, 515072 - 4096, 257536, 1831420 - 10240),
        ports=tuple(range(18000, 19000)),
        listening=frozenset({22, 9100}),
    )


def test_what_listens_where_a_plan_has_put_a_replica_is_that_replica() -> None:
    given = facts(host={**facts()["host"], "ports_listening": [22, 18000, 18001]})
    assert sensed(given, [place("ocr", "0:1g.10gb@6", http=18000)]).listening == {22, 18001}
    elsewhere = place("ocr", "0:1g.10gb@6", on="h2", http=18000)
    assert sensed(given, [elsewhere]).listening == {22, 18000, 18001}


def test_in_whatever_order_facts_have_gpus_the_host_is_the_same() -> None:
    gpus = [gpu_facts(number) for number in range(3)]
    assert sensed(facts(gpus[::-1]), fleet_cordoned_gpus=[1]) == sensed(facts(gpus), fleet_cordoned_gpus=[1])


def test_what_policy_says_replaces_what_was_sensed() -> None:
    capacity = {"cpus": 8, "memory": "64 GiB", "shm": "1 GiB", "disk": "100 GiB"}
    found = sensed(facts(), fleet_capacity=capacity, fleet_reserve={"cpus": 2, "memory": "1 GiB", "shm": "24 MiB", "disk": "0 MiB"})
    assert found.capacity == Resources(6, 63 * 1024, 1000, 102400)


@pytest.mark.parametrize(
    ("reserve", "line"),
    [
        ({"memory": "2000 GiB"}, "host h1: fleet_reserve.memory: 2,000 GiB is more than the host has, 503 GiB; write what the system"),
        ({"cpus": 64.5}, "host h1: fleet_reserve.cpus: 64.5 is more than the host has, 64; write what the system itself needs"),
    ],
)
def test_a_reserve_that_is_more_than_the_host_has_is_refused(reserve: dict[str, t.Any], line: str) -> None:
    with pytest.raises(FleetError) as caught:
        sensed(facts(), fleet_reserve=reserve)
    assert str(caught.value).startswith(line)


def test_a_host_smaller_than_the_reserve_that_nobody_wrote_is_no_mistake() -> None:
    assert sensed(facts(host={"disk": {"total_mib": 8192}})).capacity.disk == -2048


@pytest.mark.parametrize(
    ("capacity", "line"),
    [
        (
            {"memory": "1 MiB"},
            "memory: of 1 MiB memory the reserve of 4 GiB memory leaves nothing; write all that the host has, or a smaller",
        ),
        ({"cpus": 0}, "cpus: of 0 cpus the reserve of 1 cpu leaves nothing; write all that the host has, or a smaller fleet_reserve.cpus"),
    ],
)
def test_a_capacity_that_was_written_and_leaves_nothing_is_refused_where_anybody_serves(capacity: dict[str, t.Any], line: str) -> None:
    assert not sensed(facts(), fleet_capacity=capacity).capacity.holds(Resources())
    with pytest.raises(FleetError) as caught:
        sensed(facts(), [place("ocr", "0", mode="whole")], fleet_capacity=capacity)
    assert str(caught.value).startswith(f"host h1: fleet_capacity.{line}")


@pytest.mark.parametrize(
    ("policy", "refuses"),
    [
        pytest.param({"fleet_gpu_modes": ["shared"]}, True, id="shared by policy"),
        pytest.param({}, False, id="none is shared"),
        pytest.param({"fleet_gpu_layouts": [{"gpu": 0, "mode": "shared"}]}, True, id="shared by its pin"),
        pytest.param({"fleet_gpu_modes": ["shared"], "fleet_gpu_layouts": [{"gpu": 0, "mode": "whole"}]}, False, id="whole by its pin"),
    ],
)
def test_a_reserve_of_shared_gpus_that_leaves_nothing_of_any_is_refused(policy: dict[str, t.Any], refuses: bool) -> None:
    given = facts([gpu_facts()])
    if refuses:
        line = "host h1: fleet_shared_reserve: 100 GiB leaves nothing to share: the largest GPU here has 80 GiB"
        assert refused(given, fleet_shared_reserve="100 GiB", **policy).startswith(line)
    else:
        assert sensed(given, fleet_shared_reserve="100 GiB", **policy).shared_reserve_mib == 102400


def test_a_gpu_smaller_than_the_reserve_that_nobody_wrote_or_of_unknown_size_is_no_mistake() -> None:
    assert sensed(facts([gpu_facts(memory_mib=1024)]), fleet_gpu_modes=["shared"]).shared_reserve_mib == 1024
    lost = facts([gpu_facts(), gpu_facts(1, memory_mib=None)])
    assert sensed(lost, fleet_gpu_modes=["shared"], fleet_shared_reserve="100 GiB").shared_reserve_mib == 102400


def test_what_is_not_known_is_not_limited() -> None:
    unknown = facts(host={"cpus": None, "memory_mib": None, "shm_mib": None, "disk": None, "ports_listening": None})
    found = sensed(unknown)
    assert (found.capacity, found.listening) == (Resources(None, None, None, None), frozenset())


def test_the_rest_of_policy_is_taken_over() -> None:
    found = sensed(
        facts(),
        fleet_gpu_modes=["shared", "mig", "shared"],
        fleet_shared_max=2,
        fleet_shared_reserve="2 GiB",
        fleet_shared_compute=2,
        fleet_ports="20000-20001",
    )
    assert (found.modes, found.shared_max, found.shared_reserve_mib, found.ports) == (("mig", "shared"), 2, 2048, (20000, 20001))
    assert found.shared_compute == 2


def test_a_gpu_is_known_by_uuid_address_board_and_instances() -> None:
    assert one_gpu(gpu_facts(slices="3g.40gb@4 1g.10gb@0")) == Gpu(
        uuid="GPU-h1-0",
        pci="0000:01:00.0",
        board="a100-sxm4-80gb",
        memory_mib=81920,
        geometry=A100,
        mig=True,
        instances=(Instance(Slice(0, "1g.10gb")), Instance(Slice(4, "3g.40gb"))),
    )


def test_a_board_without_mig_has_no_geometry() -> None:
    found = one_gpu(gpu_facts(mig=None, device_id="0x26B910DE", name="NVIDIA L40S", memory_mib=46068))
    assert (found.board, found.geometry, found.mig, found.instances, found.blocked) == ("l40s", None, False, (), None)


def test_where_the_driver_tells_no_geometry_public_sources_do() -> None:
    silent = gpu_facts(mig={"current": False, "pending": False, "geometry": None, "instances": []})
    assert one_gpu(silent).geometry == A100
    unknown = {**silent, "device_id": "0x0", "name": "NVIDIA X9"}
    found = one_gpu(unknown)
    assert (found.geometry, found.board) == (None, "x9")


def test_the_driver_s_own_geometry_goes_before_public_sources() -> None:
    smaller = {**A100.to_dict(), "profiles": A100.to_dict()["profiles"][:1]}
    found = sensed(facts([gpu_facts()], geometries={A100.digest(): smaller})).gpus[0]
    assert found.geometry is not None
    assert [profile.name for profile in found.geometry.profiles] == ["1g.10gb"]


def test_a_mode_that_waits_for_a_reset_is_the_mode_to_come() -> None:
    waiting = {"current": False, "pending": True, "geometry": A100.digest(), "instances": []}
    assert one_gpu(gpu_facts(mig=waiting)).mig
    assert not one_gpu(gpu_facts(mig={**waiting, "current": True, "pending": False})).mig
    assert one_gpu(gpu_facts(mig={"current": True, "geometry": A100.digest(), "instances": None})).mig


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (gpu_facts(state="lost", error="NVML: GPU is lost"), "lost"),
        (gpu_facts(state="error"), "in the state error"),
        (gpu_facts(state=None), "in an unknown state"),
        (gpu_facts(uuid=None), "without UUID, PCI address or memory in the facts"),
        (gpu_facts(pci=None), "without UUID, PCI address or memory in the facts"),
        (gpu_facts(memory_mib=None), "without UUID, PCI address or memory in the facts"),
        (gpu_facts(slices="1g.12gb@0"), "with a slice that its geometry does not have (1g.12gb@0)"),
        (gpu_facts(), None),
    ],
)
def test_a_gpu_that_cannot_be_used_says_why(entry: dict[str, t.Any], why: str | None) -> None:
    assert one_gpu(entry).blocked == why


def test_a_lost_gpu_that_has_no_name_is_still_counted() -> None:
    nameless = dict.fromkeys(gpu_facts()) | {"state": "lost", "index": 3}
    found = one_gpu(nameless)
    assert (found.uuid, found.pci, found.board, found.memory_mib, found.blocked) == ("(GPU 3)", "", "unknown", 0, "lost")


@pytest.mark.parametrize(
    ("parts", "plain"),
    [
        ([], True),
        ([{"id": 0, "profile": "1g.10gb", "uuid": "MIG-1"}], True),
        ([{"id": 0, "profile": "1c.2g.20gb", "uuid": "MIG-1"}], False),
        ([{"id": 0, "profile": "1g.10gb", "uuid": "MIG-1"}, {"id": 1, "profile": "1g.10gb", "uuid": "MIG-2"}], False),
    ],
)
def test_an_instance_is_plain_when_nothing_smaller_is_in_it(parts: list[dict[str, t.Any]], plain: bool) -> None:
    entry = gpu_facts(slices="1g.10gb@0")
    entry["mig"]["instances"][0]["ci"] = parts
    assert one_gpu(entry).instances == (Instance(Slice(0, "1g.10gb"), plain),)


def holder(kind: str = "compute", gi: int | None = None, container: str | None = None) -> dict[str, t.Any]:
    return {"pid": 7, "process": "python", "kind": kind, "container": container, "slice": None if gi is None else {"gi": gi, "ci": 0}}


def test_who_computes_without_being_in_a_plan_is_an_outsider() -> None:
    found = one_gpu(gpu_facts(slices="1g.10gb@0 1g.10gb@1", holders=[holder(gi=8), holder("mps"), holder("graphics", 8)]))
    assert found.outsiders == ("python (pid 7)",)
    assert [each.outsiders for each in found.instances] == [(), ("python (pid 7)",)]


def test_an_open_file_keeps_nobody_away() -> None:
    found = one_gpu(gpu_facts(slices="1g.10gb@0", holders=[holder("open_file"), holder("open_file", 7)]))
    assert (found.outsiders, found.instances[0].outsiders) == ((), ())


def test_where_a_plan_has_put_a_service_nobody_is_an_outsider() -> None:
    entry = gpu_facts(slices="1g.10gb@0 1g.10gb@1", holders=[holder(gi=7), holder(gi=8), holder()])
    found = one_gpu(entry, [place("ocr", "0:1g.10gb@0"), place("other", "0:1g.10gb@1", on="h2")])
    assert [each.outsiders for each in found.instances] == [(), ("python (pid 7)",)]
    assert found.outsiders == ("python (pid 7)",)
    assert one_gpu(gpu_facts(holders=[holder()]), [place("ocr", "0", mode="whole")]).outsiders == ()


def test_containers_are_named_and_those_of_plans_are_no_outsiders() -> None:
    entry = gpu_facts(slices="1g.10gb@0 1g.10gb@1 1g.10gb@2", holders=[holder(gi=7, container="c1")])
    containers = [
        {"id": "c1", "name": "web", "project": None, "devices": ["MIG-h1-0-0"]},
        {"id": "c2", "name": "x", "project": "ocr-1", "devices": ["MIG-h1-0-1"]},
        {"id": "c3", "name": "stack-job-1", "project": "stack", "devices": ["GPU-h1-0", "MIG-h1-0-2", "GPU-of-another"]},
    ]
    found = one_gpu(entry, [place("ocr", "0:3g.40gb@4")], containers=containers)
    assert [each.outsiders for each in found.instances] == [("web",), (), ("stack",)]
    assert found.outsiders == ("stack",)


def test_facts_without_holders_know_of_no_outsiders() -> None:
    found = one_gpu(gpu_facts(slices="1g.10gb@0", holders=None), containers=None)
    assert (found.outsiders, found.instances[0].outsiders) == ((), ())


@pytest.mark.parametrize("name", [1, "1", "GPU-h1-1", "gpu-H1-1", "0000:02:00.0", "02:00.0", "00000000:02:00.0"])
def test_policy_names_a_gpu_by_index_uuid_or_address(name: int | str) -> None:
    found = sensed(facts([gpu_facts(0), gpu_facts(1)]), fleet_cordoned_gpus=[name])
    assert [each.cordoned for each in found.gpus] == [False, True]


def test_policy_names_a_gpu_by_what_tables_show_of_its_uuid() -> None:
    uuids = [f"GPU-{word}-0000-4000-8000-00000000beef" for word in ("5c1f07aa", "5c1f07ab", "5c1f07ab")]
    given = facts([gpu_facts(number, uuid=uuid) for number, uuid in enumerate(uuids)])
    assert [each.cordoned for each in sensed(given, fleet_cordoned_gpus=["gpu-5C1F07AA"]).gpus] == [True, False, False]
    assert refused(given, fleet_cordoned_gpus=["GPU-5c1f07ab"]) == (
        "host h1: fleet_cordoned_gpus[0]: 'GPU-5c1f07ab' is the beginning of the UUID of 2 GPUs; "
        "write the address: 0000:02:00.0 or 0000:03:00.0"
    )


def test_a_gpu_that_is_not_there_is_refused() -> None:
    given = facts([gpu_facts(0), gpu_facts(1)])
    assert refused(given, fleet_cordoned_gpus=[0, 2]) == (
        "host h1: fleet_cordoned_gpus[1]: there is no GPU '2'; this host has 0000:01:00.0 (GPU-h1-0), 0000:02:00.0 (GPU-h1-1)"
    )
    assert refused(facts(), fleet_gpu_layouts=[{"gpu": 0, "mode": "whole"}]) == (
        "host h1: fleet_gpu_layouts[0]: there is no GPU '0'; this host has none"
    )


def test_a_cordoned_gpu_that_fell_off_the_bus_without_its_name_stops_no_plan() -> None:
    nameless = dict.fromkeys(gpu_facts()) | {"state": "lost", "index": 1}
    found = sensed(facts([gpu_facts(0), nameless]), fleet_cordoned_gpus=["GPU-h1-1"])
    assert [(each.cordoned, each.blocked) for each in found.gpus] == [(False, None), (True, "lost")]
    # One such GPU has one name, and a number is no name.
    assert "there is no GPU 'GPU-h1-2'" in refused(facts([gpu_facts(0), nameless]), fleet_cordoned_gpus=["GPU-h1-1", "GPU-h1-2"])
    assert "there is no GPU '7'" in refused(facts([gpu_facts(0), nameless]), fleet_cordoned_gpus=[7])


def test_a_gpu_named_twice_is_refused() -> None:
    layouts = [{"gpu": 0, "mode": "whole"}, {"gpu": "GPU-h1-0", "mode": "shared"}]
    assert refused(facts([gpu_facts(0)]), fleet_gpu_layouts=layouts) == (
        "host h1: fleet_gpu_layouts[1]: GPU 'GPU-h1-0' is named already by fleet_gpu_layouts[0]; name each GPU once"
    )


def test_pinned_layouts_are_read_in_the_board_s_own_spelling() -> None:
    layouts = [{"gpu": 1, "mode": "mig", "slices": ["3g.39gb@4", "1g.10gb@0"]}, {"gpu": 0, "mode": "shared"}]
    found = sensed(facts([gpu_facts(0), gpu_facts(1)]), fleet_gpu_layouts=layouts)
    assert [each.pin for each in found.gpus] == [Pin("shared"), Pin("mig", (Slice(0, "1g.10gb"), Slice(4, "3g.40gb")))]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (
            {"mode": "mig", "slices": ["3g.40gb@0", "4g.40gb@0"]},
            "slices: an impossible layout: 3g.40gb@0 and 4g.40gb@0 overlap on memory slice 0; change the profiles or their starts",
        ),
        (
            {"mode": "mig", "slices": ["5g.50gb@0"]},
            "slices: this board has no MIG profile 5g.50gb; it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb",
        ),
        ({"mode": "whole", "slices": ["1g.10gb@0"]}, "slices: slices are given for mode 'whole'; write 'mode: mig', or no slices"),
    ],
)
def test_an_impossible_layout_is_refused(layout: dict[str, t.Any], expected: str) -> None:
    given = facts([gpu_facts(0)])
    assert refused(given, fleet_gpu_layouts=[{"gpu": 0, **layout}]) == f"host h1: fleet_gpu_layouts[0].{expected}"


def test_a_layout_for_a_board_without_mig_is_refused() -> None:
    given = facts([gpu_facts(0, mig=None)])
    assert refused(given, fleet_gpu_layouts=[{"gpu": 0, "mode": "mig"}]) == (
        "host h1: fleet_gpu_layouts[0].mode: GPU 0000:01:00.0 (a100-sxm4-80gb) has no MIG; write 'mode: whole' or 'mode: shared'"
    )


def test_a_manifest_becomes_a_need() -> None:
    text = manifest_text(
        gpu="{isolation: exclusive, count: 2, memory: 40 GiB, models: [h100, a100], not_models: [pcie, nvl]}",
        host="{cpus: 4, memory: 16 GiB, shm: 1 GiB, disk: 20 GiB}",
        ports="[{name: metrics, container: 9090}, {name: http, container: 8080, host: 80}]",
        replicas="3",
        priority="70",
    )
    assert need_of(read_manifest("m", text)) == Need(
        service="receipt-ocr",
        environment="production",
        isolation="exclusive",
        memory_mib=40960,
        replicas=3,
        priority=70,
        count=2,
        models=("a100", "h100"),
        not_models=("nvl", "pcie"),
        resources=Resources(4, 16384, 1024, 20480),
        ports=(("http", 80), ("metrics", None)),
        team="claims",
    )
    sliced = need_of(read_manifest("m", manifest_text(gpu="{profile: 3g.40gb, compute: 0.5}", lifecycle="adopted")))
    assert (sliced.isolation, sliced.profile, sliced.compute, sliced.memory_mib, sliced.adopted) == ("slice", "3g.40gb", 0.5, 0, True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "host h1: facts: these are not host facts; give what gpuops.fleet.gpu_info returns as 'facts'"),
        ({"gpus": []}, "host h1: facts: these are not host facts; give what gpuops.fleet.gpu_info returns as 'facts'"),
        (
            facts(schema=2),
            "host h1: facts.schema: host facts of schema 2 were given, and this collection reads schema 1; "
            "use the same version of gpuops.fleet everywhere",
        ),
        ({**facts(), "gpus": None}, "host h1: facts: 'gpus' is missing; give what gpuops.fleet.gpu_info returns as 'facts'"),
        ({**facts(), "host": []}, "host h1: facts: 'host' is missing; give what gpuops.fleet.gpu_info returns as 'facts'"),
        ({**facts(), "geometries": None}, "host h1: facts: 'geometries' is missing; give what gpuops.fleet.gpu_info returns as 'facts'"),
    ],
)
def test_what_are_no_facts_of_our_kind_is_refused(given: object, expected: str) -> None:
    with pytest.raises(FleetError) as caught:
        check_facts("h1", given)
    assert str(caught.value) == expected


def test_facts_of_our_kind_are_taken() -> None:
    given = facts()
    assert check_facts("h1", given) is given


ONE = gpu_facts(slices="1g.10gb@0")
ANEW = "gather the facts anew: give what gpuops.fleet.gpu_info returns as 'facts'"


def with_instance(**more: t.Any) -> dict[str, t.Any]:
    return facts([{**ONE, "mig": {**ONE["mig"], "instances": [{**ONE["mig"]["instances"][0], **more}]}}])


@pytest.mark.parametrize(
    ("damaged", "line"),
    [
        (facts([{**ONE, "mig": "on"}]), "gpus[0].mig: expected a mapping, found 'on'"),
        (facts(host={"cpus": "many"}), "host.cpus: expected a number, found 'many'"),
        (facts(host={"cpus": True}), "host.cpus: expected a number, found true"),
        (facts(host={"disk": {"total_mib": "2T"}}), "host.disk.total_mib: expected a whole number, found '2T'"),
        (facts(host={"ports_listening": ["ssh"]}), "host.ports_listening[0]: expected a whole number, found 'ssh'"),
        (facts([{**ONE, "memory_mib": "80G"}]), "gpus[0].memory_mib: expected a whole number, found '80G'"),
        (facts([{**ONE, "memory_mib": -5}]), "gpus[0].memory_mib: -5 is not right (it must be at least 0)"),
        (facts([{**ONE, "memory_mib": 2**41}]), "gpus[0].memory_mib: 2199023255552 is not right (it must be at most 1099511627776)"),
        (facts([ONE, "GPU-h1-1"]), "gpus[1]: expected a mapping, found 'GPU-h1-1'"),  # type: ignore[list-item]  # what is wrong with it
        (facts([ONE, gpu_facts(1), {**gpu_facts(2), "uuid": "GPU-h1-0"}]), "gpus[2].uuid: 'GPU-h1-0' is the UUID of gpus[0] already"),
        (facts([ONE, {**gpu_facts(1), "pci": ONE["pci"]}]), f"gpus[1].pci: '{ONE['pci']}' is the PCI address of gpus[0] already"),
        (with_instance(start=8), "gpus[0].mig.instances[0].start: the board has 8 memory slices, from 0"),
        (facts([{**ONE, "mig": {**ONE["mig"], "geometry": "a30"}}]), "gpus[0].mig.geometry: 'a30' is none of the geometries"),
        (with_instance(start="x"), "gpus[0].mig.instances[0].start: expected a whole number, found 'x'"),
        (with_instance(start=-1), "gpus[0].mig.instances[0].start: -1 is not right (it must be at least 0)"),
        (with_instance(profile=None), "gpus[0].mig.instances[0].profile: expected text, found nothing"),
        (with_instance(ci=[7]), "gpus[0].mig.instances[0].ci[0]: expected a mapping, found 7"),
        (facts([{**ONE, "nvlink": "all"}]), "gpus[0].nvlink: expected a list, found 'all'"),
        (facts([{**ONE, "drain": {"by": "lin", "reason": "fan", "until": None}}]), "gpus[0].drain: the field 'force' is missing"),
        (facts([{**ONE, "holders": [{"slice": 1}]}]), "gpus[0].holders[0].slice: expected a mapping, found 1"),
        (facts([ONE], geometries={"a": {"compute_slices": 7}}), None),
        (facts(containers=["web"]), "containers[0]: expected a mapping, found 'web'"),
        (facts(passthrough=[{"identity": "card"}]), "passthrough[0].identity: expected a mapping, found 'card'"),
        ({**facts(), "gpus": "none"}, "gpus: expected a list, found 'none'"),
        (facts(driver="580.105.08"), "driver: expected a mapping, found '580.105.08'"),
        (facts(engine={"docker": {"runtimes": "nvidia"}}), "engine.docker.runtimes: expected a list, found 'nvidia'"),
        (facts(host={"os": "debian"}), "host.os: expected a mapping, found 'debian'"),
        (facts(leases=[{"name": "hub-1", "ended": None}]), "leases[0]: the field 'ends' is missing"),
        (facts(plan={"serial": 3}), "plan: the field 'digest' is missing"),
        (facts([{**ONE, "virtualization": 3}]), "gpus[0].virtualization: expected text, found 3"),
    ],
)
def test_damaged_facts_name_host_and_field_and_are_to_be_gathered_anew(damaged: dict[str, t.Any], line: str | None) -> None:
    with pytest.raises(FleetError) as caught:
        check_facts("h1", damaged)
    said = str(caught.value).split("\n")
    assert all(each.startswith("host h1: facts.") and each.endswith(f"; {ANEW}") for each in said)
    assert line is None or said == [f"host h1: facts.{line}; {ANEW}"]


def test_facts_of_other_releases_are_read() -> None:
    newer = {**ONE, "spin": 0.5, "mig": {**ONE["mig"], "spare": {}}}
    older = {"uuid": "GPU-old", "pci": "0000:09:00.0", "memory_mib": 81920}
    lost = dict.fromkeys(ONE) | {"index": 3, "state": "lost", "holders": None}
    given = facts([newer, older, lost, {**lost, "index": 4}], future=[1])
    assert check_facts("h1", given) is given


@pytest.mark.parametrize(
    ("layout", "besides"),
    [
        ({"mode": "passthrough"}, "is kept for virtual machines (fleet_gpu_layouts: passthrough): give it another mode there"),
        ({"mode": "vgpu", "vgpus": [{"type": "A100D-10C", "count": 2}]}, "is kept for virtual machines (fleet_gpu_layouts: vgpu)"),
        ({"mode": "mig"}, "take h1 GPU-h1-0 out of fleet_gpu_layouts"),
        ({"mode": "mig", "slices": ["3g.40gb@0"]}, "take h1 GPU-h1-0 out of fleet_gpu_layouts"),
    ],
)
def test_what_is_lost_is_still_what_the_platform_has_decided_once_it_is_back(layout: dict[str, t.Any], besides: str) -> None:
    for more in ({}, {"mig": None}):
        lost = sensed(facts([gpu_facts(state="lost", **more)]), fleet_gpu_layouts=[{"gpu": 0, **layout}])
        asked = problem([lost], [need("new", isolation="exclusive")])
        (found,) = propose(asked, make_plan(asked))
        assert "bring h1 GPU-h1-0 back, which is lost" in found.sentence
        assert besides in found.sentence


def test_a_gpu_that_gives_vgpus_because_it_is_to_is_given_another_mode() -> None:
    giving = gpu_facts(vgpu={"vfs": 16, "vgpus": [{"type": "A100D-10C"}]})
    layout = {"gpu": 0, "mode": "vgpu", "vgpus": [{"type": "A100D-10C", "count": 1}]}
    asked = problem([sensed(facts([giving]), fleet_gpu_layouts=[layout])], [need("new", isolation="exclusive")])
    (found,) = propose(asked, make_plan(asked))
    assert "which is giving vGPUs (1 A100D-10C); and h1 GPU-h1-0 is kept for virtual machines (fleet_gpu_layouts: vgpu)" in found.sentence
