# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module ``vgpu`` on a kernel that is a tree of files: both of NVIDIA's frameworks, and the kernel's own sample driver."""

from __future__ import annotations

import json
import os
import time
import typing as t

import pytest
from vgpu_world import GPU, UUID, VFS, World, world

__all__ = ["world"]

TEN = {"type": "A100D-10C"}
ON = f"{GPU}: virtual functions on (sriov-manage -e)"


def parent(*vgpus: t.Any, **more: t.Any) -> dict[str, t.Any]:
    return {"parent": "mtty", "vgpus": list(vgpus), **more}


def card(*vgpus: t.Any, **more: t.Any) -> dict[str, t.Any]:
    return {"gpu": GPU, "vgpus": list(vgpus), **more}


# Any parent of mediated devices


def test_three_are_made_one_goes_and_comes_back_under_its_old_name(world: World) -> None:
    world.mtty()
    assert world.done(parent({"type": "mtty-2", "count": 3})) == ["mtty: create mtty-2 on mtty"] * 3
    three = world.mdevs()
    assert sorted(three.values()) == ["mtty-2"] * 3
    assert world.done(parent({"type": "Dual port serial", "count": 2})) == ["mtty: remove mtty-2 on mtty"]
    assert set(world.mdevs()) < set(three)
    assert world.done(parent({"type": "mtty-2", "count": 3})) == ["mtty: create mtty-2 on mtty"]
    assert world.mdevs() == three


def test_more_than_there_is_room_for_is_refused_before_the_first_write(world: World) -> None:
    world.mtty()
    assert world.refused(parent({"type": "mtty-2", "count": 13})).startswith(
        "mtty: 13 more mtty-2 are wished, and there is room for 12; wish fewer"
    )
    assert world.refused(parent({"type": "mtty-3"})) == "mtty: there is no vGPU type mtty-3; did you mean mtty-2? it has mtty-1, mtty-2"
    assert world.mdevs() == {}


def test_what_only_the_kernel_knows_to_be_too_much_is_put_back(world: World) -> None:
    world.mtty()
    world.done(parent({"type": "mtty-2", "count": 1}))
    before = world.mdevs()
    hidden = world.tree.hidden
    hidden["mdev"]["mtty"]["room"] = 3  # its types share what the files show of each alone
    world.tree.save(hidden)
    result = world.run(parent({"type": "mtty-2"}, {"type": "mtty-1", "count": 2}))
    assert result["failed"]
    assert "No space left on device; what was there before was put back" in result["msg"]
    assert world.mdevs() == before


def test_one_that_a_guest_uses_stays_and_others_go(world: World) -> None:
    world.mtty()
    world.done(parent({"type": "mtty-1", "count": 2}))
    used = sorted(world.mdevs())[0]
    world.hold(4242, world.group(used), "ocr")
    assert world.done(parent({"type": "mtty-1"})) == ["mtty: remove mtty-1 on mtty"]
    assert list(world.mdevs()) == [used]
    words = world.refused(parent())
    assert words.startswith("mtty: mtty-1 on mtty is in use by process 4242 (qemu-system-x86, virtual machine ocr), and it would")
    assert list(world.mdevs()) == [used]


def test_a_guest_that_is_defined_keeps_its_vgpu(world: World) -> None:
    world.mtty()
    world.done(parent({"type": "mtty-1"}))
    (world.where / "libvirt").mkdir()
    source = f"<source><address uuid='{next(iter(world.mdevs()))}'/></source>"
    (world.where / "libvirt/ocr.xml").write_text(
        f"<domain><name>ocr</name><devices><hostdev mode='subsystem' type='mdev'>{source}</hostdev></devices></domain>"
    )
    (world.where / "libvirt/torn.xml").write_text("<domain>")
    assert "in use by virtual machine ocr (defined, not running)" in world.refused(parent())


def test_a_parent_that_is_not_there_is_refused_with_those_that_are(world: World) -> None:
    world.mtty()
    words = world.refused({"parent": "mdpy", "vgpus": []})
    assert words == "gpus: there is no GPU and no parent of mediated devices mdpy; here are mtty"


def test_a_removal_that_the_kernel_does_not_answer_is_left_and_named(world: World) -> None:
    world.mtty()
    world.done(parent({"type": "mtty-1"}))
    place = (world.tree.sys / "bus/mdev/devices" / next(iter(world.mdevs()))).resolve()
    world.environment(KERNEL_HANG=str(len(world.tree.writes()) + 1))
    result = world.run(parent(), deadline=1.0)
    assert result["failed"]
    assert "has not answered in 1 s; process " in result["msg"]
    assert " waits there until whoever has it open lets go of it" in result["msg"]
    assert json.loads((world.state_dir / "vgpu-journal.json").read_text())["state"] == "open"
    (world.tree.root / "go").touch()
    while place.exists():
        time.sleep(0.01)
    world.environment()
    assert world.run(parent())["notes"] != []
    assert json.loads((world.state_dir / "vgpu-journal.json").read_text())["state"] == "closed"


# NVIDIA's frameworks


def test_functions_are_switched_on_and_types_made_in_the_vendors_framework(world: World) -> None:
    world.gpu()
    assert world.done(card({**TEN, "count": 3})) == [ON, *(f"{GPU}: create A100D-10C on {name}" for name in VFS[:3])]
    assert world.vendor() == dict.fromkeys(VFS[:3], "A100D-10C")
    assert world.tree.writes()[0] == f"sriov-manage -e {GPU}"


def test_a_gpu_that_is_full_lists_no_type_and_is_still_known(world: World) -> None:
    world.gpu()
    world.done(card({"type": "A100D-40C", "count": 2}))
    assert (world.tree.device(VFS[4]) / "nvidia/creatable_vgpu_types").read_text() == ""
    assert world.done(card({"type": "A100D-40C", "count": 1})) == [f"{GPU}: remove A100D-40C on {VFS[1]}"]
    assert world.done({"gpu": UUID, "vgpus": [{"type": "NVIDIA A100D-40C", "count": 1}]}) == []


def test_the_numbers_of_types_may_be_others_after_the_next_boot(world: World) -> None:
    world.gpu()
    world.done(card(TEN))
    world.tree.reboot()
    hidden = world.tree.hidden
    vgpu = hidden["devices"][GPU]["vgpu"]
    vgpu["types"] = {f"1{ident}": kind for ident, kind in vgpu["types"].items()}
    world.tree.save(hidden)
    world.tree.forget()
    world.done(card(TEN))
    assert world.tree.writes()[1:] == [f"bus/pci/devices/{VFS[0]}/nvidia/current_vgpu_type 1700"]


def test_mediated_devices_on_virtual_functions(world: World) -> None:
    world.gpu("mdev")
    steps = world.done(card({**TEN, "count": 2, "params": {"enable_uvm": True}}))
    each = [
        f"{GPU}: {what}" for name in VFS[:2] for what in (f"create A100D-10C on {name}", f"parameters of A100D-10C on {name}: enable_uvm=1")
    ]
    assert steps == [ON, *each]
    assert [world.mdevs(name) for name in VFS[:2]] == [{next(iter(world.mdevs(name))): "nvidia-700"} for name in VFS[:2]]
    again = world.run(card({**TEN, "count": 2}))["gpus"][0]
    assert (again["framework"], [one["place"] for one in again["vgpus"]]) == ("mdev", VFS[:2])
    assert {one["uuid"] for one in again["vgpus"]} == {*world.mdevs(VFS[0]), *world.mdevs(VFS[1])}
    words = world.refused(card({**TEN, "count": 9}))
    assert words.startswith(f"{GPU}: 9 A100D-10C are wished, and one GPU has 8 at most (the driver); wish fewer")


def test_parameters_are_written_when_they_differ_and_cleared_when_none_are_wished(world: World) -> None:
    world.gpu()
    world.done(card({**TEN, "params": {"enable_uvm": 1, "frame_rate_limiter": 0}}))
    params = world.tree.device(VFS[0]) / "nvidia/vgpu_params"
    assert params.read_text() == "enable_uvm=1,frame_rate_limiter=0\n"
    assert world.done(card(TEN)) == []
    assert world.done(card({**TEN, "params": {}})) == [f"{GPU}: parameters of A100D-10C on {VFS[0]}: none"]
    world.hold(4242, world.group(VFS[0]))
    words = world.refused(card({**TEN, "params": {"enable_uvm": 1}}))
    assert "is in use by process 4242 (qemu-system-x86), and its parameters cannot be written then" in words


def test_sizes_side_by_side_need_mixed_size_mode_which_is_set_before_the_first(world: World) -> None:
    world.gpu()
    both = [{"type": "A100D-40C"}, {"type": "A100D-20C", "placement": 4}]
    assert "vGPUs of 20 GB and 40 GB need mixed-size mode" in world.refused(card(*both))
    assert world.done(card(*both, mixed=True)) == [
        ON,
        f"{GPU}: mixed-size mode on (nvidia-smi vgpu -shm 1)",
        f"{GPU}: create A100D-40C on {VFS[0]}",
        f"{GPU}: create A100D-20C on {VFS[1]}",
        f"{GPU}: parameters of A100D-20C on {VFS[1]}: vgpu-placement-id=4",
    ]
    assert world.vendor() == {VFS[0]: "A100D-40C", VFS[1]: "A100D-20C"}


def test_a_scheduler_is_set_while_the_gpu_has_no_vgpu(world: World) -> None:
    world.gpu()
    world.done(card(TEN))
    share = {"policy": "equal-share", "frequency_hz": 480}
    assert world.done(card(TEN, scheduler=share)) == [
        f"{GPU}: remove A100D-10C on {VFS[0]}",
        f"{GPU}: scheduler equal-share 480 Hz",
        f"{GPU}: create A100D-10C on {VFS[0]}",
    ]
    assert f"nvidia-smi vgpu set-scheduler-state -i {GPU} --policy 2 --arr-mode 1 --arr-sched-frequency 480" in world.tree.writes()
    world.hold(4242, world.group(VFS[0]))
    words = world.refused(card(TEN, scheduler={"policy": "fixed-share", "slice_ms": 4}))
    assert "and the mode or policy that is wished cannot be set while it is there" in words
    assert world.vendor() == {VFS[0]: "A100D-10C"}


def test_functions_go_with_the_last_vgpu_where_that_is_wished(world: World) -> None:
    world.gpu()
    world.done(card(TEN))
    assert world.done(card(vfs="off")) == [f"{GPU}: remove A100D-10C on {VFS[0]}", f"{GPU}: virtual functions off (sriov-manage -d)"]
    assert not (world.tree.sys / "bus/pci/devices" / VFS[0]).exists()


def test_a_program_on_the_gpu_keeps_its_functions_from_being_switched(world: World) -> None:
    world.gpu()
    world.tree.hold(77, "/dev/nvidia0", name="python3")
    assert "it is in use by process 77 (python3), and sriov-manage needs it idle" in world.refused(card(TEN))


@pytest.mark.parametrize(("locked", "fails"), [(2, False), (9, True)])
def test_a_lock_that_passes_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch, locked: int, fails: bool) -> None:
    from ansible_collections.gpuops.fleet.plugins.module_utils import vgpu_smi

    monkeypatch.setattr(vgpu_smi, "PAUSE_SECONDS", 0.01)
    world.gpu()
    (world.tree.root / "unbind_lock").write_text(str(locked))
    result = world.run(card(TEN))
    assert result["failed"] is fails
    if fails:
        assert f"`sriov-manage -e {GPU}` did not get the GPU's unbindLock in 5 attempts: Cannot obtain unbindLock" in result["msg"]
    assert world.vendor() == ({} if fails else {VFS[0]: "A100D-10C"})


def test_programs_that_are_missing_are_told_before_the_first_write(world: World) -> None:
    world.gpu()
    words = world.refused(card(TEN), sriov_manage=str(world.where / "no-such"))
    assert words.startswith(
        f"sriov_manage: {GPU} needs the program {world.where / 'no-such'}, which is not on this host; nothing was changed"
    )


def test_one_refusal_leaves_every_gpu_as_it_is(world: World) -> None:
    world.gpu()
    world.mtty()
    assert "there is room for 24" in world.refused(card(TEN), parent({"type": "mtty-1", "count": 25}))
    assert world.all_vgpus() == []


def test_a_card_without_vgpus_says_so(world: World) -> None:
    world.tree.gpu()
    assert f"{GPU}: it offers no vGPUs and has no virtual functions to switch on" in world.refused(card(TEN))
    assert world.done(card()) == []


def test_a_virtual_function_is_not_a_gpu(world: World) -> None:
    world.gpu()
    world.done(card(TEN))
    assert world.refused({"gpu": VFS[0], "vgpus": []}) == f"gpus: {VFS[0]} is a virtual function; name its GPU, {GPU}"


def test_what_is_there_and_what_there_is_room_for(world: World) -> None:
    world.gpu()
    world.mtty()
    world.done(card(TEN))
    world.hold(4242, world.group(VFS[0]), "ocr")
    first, second = world.info()
    assert (first["gpu"], first["uuid"], first["index"], first["framework"], first["vfs"], first["total_vfs"]) == (
        GPU,
        UUID,
        0,
        "vendor",
        12,
        12,
    )
    users = ["process 4242 (qemu-system-x86, virtual machine ocr)"]
    assert first["vgpus"] == [{"type": "A100D-10C", "place": VFS[0], "uuid": None, "params": {}, "users": users}]
    assert {"type": "A100D-10C", "available": 11, "most": None} in first["types"]
    assert (second["gpu"], second["index"], second["types"][1]) == ("mtty", None, {"type": "mtty-2", "available": 12, "most": None})


def test_functions_of_another_card_count_when_they_are_vgpus(world: World) -> None:
    world.gpu(ids=("8086", "10c9", "8086", "0000"), kind="020000", driver="igb")
    assert f"there is no GPU and no parent of mediated devices {GPU}" in world.refused(card(TEN)), "it could be any card"
    world.switch_on()
    assert world.done(card(TEN)) == [f"{GPU}: create A100D-10C on {VFS[0]}"]
    assert [one["index"] for one in world.info()] == [None]


def test_entries_of_a_file_name_gpus_by_index_and_identity(world: World) -> None:
    world.gpu()
    entries = [
        {"devices": "all", "device_filter": ["0x20B510DE"], "types": [{"type": "A100D-10C", "count": 2}], "source": "vgpu.yaml:4"},
        {"devices": [3], "device_filter": ["0x233110DE"], "types": [], "source": "vgpu.yaml:8"},
    ]
    world.done(selectors=entries)
    assert world.vendor() == dict.fromkeys(VFS[:2], "A100D-10C")
    words = world.refused(selectors=[{**entries[0], "types": [{"type": "A100D-10C", "count": 20}]}], limits={"A100D-10C": {"most": 8}})
    assert words.startswith(f"vgpu.yaml:4: vgpu-devices: {GPU}: ")
    assert os.path.exists(world.state_dir / "vgpus.json")
