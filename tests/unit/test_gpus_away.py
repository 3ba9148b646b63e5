# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that virtual machines have, or have parts of: plans leave them out and say who has them, drains and reports name the guests."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.filter.fleet import fleet_hosts
from ansible_collections.gpuops.fleet.plugins.module_utils import vgpu_facts
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, parents
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draining import who_is_on
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import host_table
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text
from vgpu_world import GPU, World, world

if t.TYPE_CHECKING:
    from pathlib import Path

__all__ = ["world"]

CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
VGPUS = [{"type": "A100D-10C", "place": "0000:01:00.4", "uuid": None}, {"type": "A100D-10C", "place": "0000:01:00.5", "uuid": None}]


def held(uuid: str | None = "GPU-h1-9", **more: t.Any) -> dict[str, t.Any]:
    return {"pci": "0000:3b:00.0", "uuid": uuid, "identity": {"vendor": "0x10de"}, **more}


def planned(known: dict[str, t.Any], *manifests: str, last: Planned | None = None, **policy: t.Any) -> Planned:
    known["host"]["drain"] = None
    texts = {} if last is None else {name: (f"{name}.yml", each.text) for name, each in last.plans.items()}
    hosts = {"h1": {"facts": known, "policy": {"fleet_environment": "production", **policy}}}
    return plan_fleet([(f"m/{number}.yml", text) for number, text in enumerate(manifests)], texts, hosts, CATALOGUE, ["http"])


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (facts([], passthrough=[held(guest="vm-01")]), "held by vfio for guest vm-01"),
        (facts([], passthrough=[held(uuid=None)]), "held by vfio for virtual machines"),
        (facts([gpu_facts(0, vgpu={"vfs": 12, "vgpus": VGPUS})]), "giving vGPUs (2 A100D-10C)"),
        (facts([gpu_facts(0, vgpu={"vfs": 12, "vgpus": []})]), "made ready for vGPUs"),
    ],
)
def test_a_plan_leaves_out_what_virtual_machines_have_and_says_why(known: dict[str, t.Any], words: str) -> None:
    done = planned(known, manifest_text("ocr"))
    assert done.unplaced[0]["reason"].startswith(f"h1: 1 GPU {words}")
    assert [note for note in done.notes if words in note] == [
        f"h1: left to virtual machines: {known['gpus'][0]['pci'] if known['gpus'] else '0000:3b:00.0'} {words}"
    ]


def test_a_device_that_is_no_gpu_is_none_of_the_planners() -> None:
    disk = {"pci": "0000:02:00.0", "uuid": None, "identity": {"vendor": "0x1b36"}}
    assert planned(facts([], passthrough=[disk]), manifest_text("ocr")).unplaced[0]["reason"].startswith("h1: no GPU")


@pytest.mark.parametrize("name", ["GPU-h1-9", "0000:3b:00.0"])
def test_policy_may_name_a_gpu_that_was_given_away(name: str) -> None:
    layouts = [{"gpu": name, "mode": "passthrough"}]
    assert planned(facts([], passthrough=[held()]), fleet_gpu_layouts=layouts, fleet_cordoned_gpus=[name]).unplaced == []


def test_what_is_on_a_gpu_that_is_wanted_for_virtual_machines_moves_or_stays_and_nothing_new_comes() -> None:
    ocr = manifest_text("ocr", gpu="{isolation: exclusive, memory: 60 GiB}")
    before = planned(facts([gpu_facts(0), gpu_facts(1)]), ocr)
    (was,) = before.plans["h1"].data["services"]
    kept = [{"gpu": was["gpus"][0], "mode": "passthrough"}]
    moved = planned(facts([gpu_facts(0), gpu_facts(1)]), ocr, last=before, fleet_gpu_layouts=kept)
    assert moved.plans["h1"].data["services"][0]["gpus"] != was["gpus"]
    alone = planned(facts([gpu_facts(int(was["gpus"][0][-1]))]), ocr, last=before, fleet_gpu_layouts=kept)
    assert alone.plans["h1"].data["services"][0]["gpus"] == was["gpus"]
    assert "is kept for virtual machines (fleet_gpu_layouts: passthrough), and there is none elsewhere" in alone.unplaced[0]["reason"]
    new = planned(facts([gpu_facts(0)]), ocr, fleet_gpu_layouts=[{"gpu": 0, "mode": "vgpu", "vgpus": [{"type": "A100D-10C"}]}])
    assert "give it another mode there, and run playbook mode" in new.unplaced[0]["reason"]


def test_mig_without_slices_is_a_mode_and_the_planner_cuts() -> None:
    kept = [{"gpu": 0, "mode": "mig"}]
    empty = planned(facts([gpu_facts(0)]), fleet_gpu_layouts=kept, fleet_gpu_modes=["whole"])
    assert [line["mode"] for line in empty.plans["h1"].data["layout"]] == ["mig"], "it is in MIG mode also when nobody needs it"
    cut = planned(facts([gpu_facts(0)]), manifest_text("ocr"), fleet_gpu_layouts=kept, fleet_gpu_modes=["whole"])
    assert [line.get("profile") for line in cut.plans["h1"].data["layout"]] == [None, "1g.10gb"]
    none = planned(facts([gpu_facts(0)]), manifest_text("ocr"), fleet_gpu_layouts=[{**kept[0], "slices": []}])
    assert "without a free pinned slice" in none.unplaced[0]["reason"]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"mode": "vgpu"}, "vgpus: no vGPU is wished; write such as 'vgpus: [{type: A100D-10C, count: 4}]'"),
        ({"mode": "mig", "vgpus": [{"type": "a"}]}, "vgpus: vgpus is given for mode 'mig'; write 'mode: vgpu', or leave it out"),
        ({"mode": "vgpu", "vgpus": [{"type": "a"}], "companions": True}, "companions: companions is given for mode 'vgpu'; write"),
        ({"mode": "passthrough", "slices": ["1g.10gb@0"]}, "slices: slices are given for mode 'passthrough'; write 'mode: mig'"),
    ],
)
def test_a_field_of_another_mode_is_refused(layout: dict[str, t.Any], words: str) -> None:
    with pytest.raises(FleetError) as caught:
        planned(facts([gpu_facts(0)]), fleet_gpu_layouts=[{"gpu": 0, **layout}])
    assert str(caught.value).startswith(f"host h1: fleet_gpu_layouts[0].{words}")


# Who has it


def fleet(tmp_path: Path, names: t.Sequence[str]) -> dict[str, t.Any]:
    """What playbooks know of hosts: kvm-01 gave a card away, and parts of another; two guests are linked to it."""
    known = facts([{**gpu_facts(0), "drain": None, "vgpu": {"vfs": 12, "vgpus": VGPUS}}], passthrough=[held()], drains_idle=[])
    known["host"]["drain"] = None
    hostvars: dict[str, t.Any] = {
        "kvm-01": {"ansible_facts": {"gpuops_fleet": known}},
        "vm-01": {"fleet_parent": {"host": "kvm-01", "gpus": ["GPU-00000000-0000-4000-8000-000000000009"]}},
        "vm-02": {"fleet_parent": {"host": "kvm-01", "gpus": ["0000:01:00.5"]}},
        "elsewhere": {},
    }
    known["passthrough"][0]["uuid"] = "GPU-00000000-0000-4000-8000-000000000009"
    return fleet_hosts(names, hostvars, str(tmp_path))


def test_a_drain_of_a_host_names_the_guests_on_its_cards_whoever_is_in_the_play(tmp_path: Path) -> None:
    seen = fleet(tmp_path, ["kvm-01"])["kvm-01"]["facts"]
    assert [line.split() for line in who_is_on(seen, None, None)] == [
        ["GPU", "SLICE", "SERVICE", "CONTAINER", "PIDS"],
        ["0000:3b:00.0", "vfio", "guest", "vm-01", "-", "-"],
        ["0000:01:00.0", "A100D-10C", "0000:01:00.4", "virtual", "machines", "-", "-"],
        ["0000:01:00.0", "A100D-10C", "0000:01:00.5", "guest", "vm-02", "-", "-"],
    ]
    assert "guest" not in " ".join(who_is_on(seen, None, "GPU-other"))


def test_status_and_report_show_them(tmp_path: Path) -> None:
    hosts = fleet(tmp_path, ["kvm-01"])
    table = host_table(hosts)
    assert table[1].endswith("ok, 2 vGPUs")
    assert table[2].endswith("with vm-01")
    assert parents.chain_lines(hosts["kvm-01"]["facts"]) == [
        "Card 0000:3b:00.0 is given to vm-01.",
        "GPU 0000:01:00.0 gives vGPUs: A100D-10C, A100D-10C for vm-02.",
    ]


# Facts


def read(world: World) -> t.Any:
    return vgpu_facts.read(str(world.state_dir), str(world.tree.sys))


def test_a_gpu_that_gives_nothing_is_no_fact(world: World) -> None:
    world.gpu()
    assert read(world) == {}


def test_vgpus_of_the_vendors_framework_are_known_by_name_as_long_as_the_host_knows_it(world: World) -> None:
    world.gpu()
    world.switch_on("700")
    (one,) = read(world)[GPU]["vgpus"]
    assert (read(world)[GPU]["vfs"], one) == (12, {"type": "A100D-10C", "place": "0000:3b:00.4", "uuid": None})


def test_mediated_devices_are_known_by_their_names(world: World) -> None:
    world.gpu("mdev")
    world.done({"gpu": GPU, "vgpus": [{"type": "A100D-10C"}]})
    (one,) = read(world)[GPU]["vgpus"]
    assert (one["type"], len(one["uuid"])) == ("A100D-10C", 36)


def test_what_is_cleared_before_counts_as_gone_in_check_mode_alone(world: World) -> None:
    world.gpu()
    world.tree.hold(77, "/dev/nvidia0")
    wish = {"gpu": GPU, "vgpus": [{"type": "A100D-10C"}]}
    assert "it is in use by process 77" in world.refused(wish)
    assert world.run(wish, check=True, cleared=True)["steps"][0] == f"{GPU}: virtual functions on (sriov-manage -e)"
    assert "it is in use by process 77" in world.run(wish, cleared=True)["msg"]
