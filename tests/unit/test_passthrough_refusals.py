# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What module ``passthrough`` refuses, each in one line and before the first write."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.device_users import users
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import look
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Sysfs
from kernel.tree import AUDIO, BIN, Tree, join, put
from passthrough_world import BUS, CARD, CONTROLLER, DISK, World, gpu_world, world

__all__ = ["gpu_world", "world"]
UNTOUCHED = "; nothing was changed"


def test_a_host_without_a_working_iommu(world: World) -> None:
    shutil.rmtree(world.tree.sys / "class/iommu")
    message = world.refused((DISK, "vfio"))
    assert message.startswith(f"the IOMMU of this host does not work, so {DISK} cannot be given to a virtual machine{UNTOUCHED}; ")
    # Coming back needs none.
    assert not world.run((DISK, "host"))["failed"]


def test_a_device_in_no_group(world: World) -> None:
    world.tree.add("0000:05:00.0", ("1234", "11e8", "1af4", "1100"), "00ff00")
    assert world.refused(("0000:05:00.0", "vfio")).startswith("0000:05:00.0 is in no IOMMU group")


def test_a_device_that_is_not_there(gpu_world: World) -> None:
    known = ", ".join(f"{pci} ({uuid})" for pci, uuid in zip(gpu_world.gpus, gpu_world.uuids, strict=True))
    assert gpu_world.refused(("0000:99:00.0", "vfio")) == (
        f"there is no PCI device 0000:99:00.0 on this host{UNTOUCHED}; GPUs of this host: {known}"
    )
    assert gpu_world.refused(("GPU-nobody", "host")) == f"there is no GPU GPU-nobody on this host{UNTOUCHED}; GPUs of this host: {known}"


def test_a_device_that_is_named_twice_in_two_spellings(gpu_world: World) -> None:
    message = gpu_world.refused((gpu_world.gpus[0].upper(), "vfio"), (gpu_world.uuids[0], "vfio"))
    assert message.startswith(f"devices: {gpu_world.gpus[0]} is named twice{UNTOUCHED}")


def test_a_bridge(world: World) -> None:
    assert world.refused(("0000:00:1c.0", "vfio")).startswith("0000:00:1c.0 is a bridge")


def test_a_group_whose_other_devices_stay_names_them_with_their_drivers(world: World) -> None:
    assert world.refused((BUS, "vfio")) == (
        f"{BUS} shares IOMMU group 8 with {CONTROLLER} (ahci), so no virtual machine could be given it{UNTOUCHED};"
        " companions: true takes them along"
    )
    assert not world.tree.viable(8) or world.tree.driver(BUS) is None


def test_devices_of_one_group_cannot_go_apart(world: World) -> None:
    assert not world.run((BUS, "vfio"), companions=True)["failed"]
    assert world.refused((BUS, "vfio"), (CONTROLLER, "host")) == (
        f"{BUS} and {CONTROLLER} share IOMMU group 8 and are wished apart{UNTOUCHED}"
    )


def test_a_virtual_function_of_nvidias_framework(world: World) -> None:
    world.tree.load("vfio-pci")
    world.tree.gpu("0000:3b:00.0", vfs=4, vf_device="20b5", vgpu={"types": {"500": {"name": "NVIDIA A100D-10C", "cost": 10}}, "room": 80})
    from kernel.acts import make_vfs

    make_vfs(world.tree.root, world.tree.device("0000:3b:00.0").resolve(), 2)
    function = sorted(path.name for path in world.tree.device("0000:3b:00.0").glob("virtfn*"))
    address = os.path.basename(os.readlink(world.tree.device("0000:3b:00.0") / function[0]))
    message = world.refused((address, "vfio"))
    assert message.startswith(f"{address} is a virtual function of NVIDIA's own framework, and vfio-pci cannot have it{UNTOUCHED}; ")
    assert "managed='no'" in message
    assert world.refused(("0000:3b:00.0", "vfio")).startswith("0000:3b:00.0 has 2 virtual functions (")


def test_a_card_whose_virtual_functions_are_on(world: World) -> None:
    with_functions(world, 2)
    message = world.refused((CARD, "vfio"))
    assert message.startswith(f"{CARD} has 2 virtual functions (0000:04:10.0, 0000:04:10.2), which go when its driver does{UNTOUCHED}; ")


def with_functions(world: World, count: int) -> list[str]:
    """So many virtual functions of the card, as somebody else makes them."""
    Sysfs(str(world.tree.sys)).write("bus/pci/devices", CARD, "sriov_numvfs", text=str(count))
    world.tree.forget()
    return ["0000:04:10.0", "0000:04:10.2", "0000:04:10.4"][:count]


def test_a_mounted_disk(world: World) -> None:
    name = disk_node(world)
    put(world.tree.proc / "1/mountinfo", f"36 35 259:1 / /srv rw,noatime - ext4 /dev/{name}p1 rw\n")
    assert world.refused((DISK, "vfio")) == f"{DISK} is in use: /dev/{name}p1 is mounted on /srv{UNTOUCHED}; stop them first"


def test_a_disk_that_is_swap_or_a_part_of_another(world: World) -> None:
    name = disk_node(world)
    put(world.tree.proc / "swaps", f"Filename Type Size Used Priority\n/dev/{name}p1 partition 1000 0 -2\n")
    (world.tree.device(DISK) / f"nvme/nvme0/{name}/holders/dm-0").mkdir(parents=True)
    message = world.refused((DISK, "vfio"))
    assert message == f"{DISK} is in use: /dev/{name}p1 is swap, /dev/{name} is a part of dm-0{UNTOUCHED}; stop them first"


def disk_node(world: World) -> str:
    """The block devices of the disk, as nvme shows them."""
    block = world.tree.sys / "class/block"
    block.mkdir()
    for name, numbers, under in (("nvme0n1", "259:0", ""), ("nvme0n1p1", "259:1", "nvme0n1/")):
        place = world.tree.device(DISK).resolve() / f"nvme/nvme0/{under}{name}"
        put(place / "dev", f"{numbers}\n")
        put(place / "uevent", f"MAJOR=259\nDEVNAME={name}\n")
        join(place / "subsystem", block)
    return "nvme0n1"


def test_a_disk_behind_nvmes_multipath(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "host", loaded=())
    tree.add(DISK, ("1b36", "0010", "1af4", "1100"), "010802", group=14, driver="nvme")
    (tree.device(DISK) / "nvme/nvme0/nvme0c0n1").mkdir(parents=True)
    place = tree.sys / "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
    put(place / "dev", "259:0\n")
    put(place / "uevent", "DEVNAME=nvme0n1\n")
    (tree.sys / "class/block").mkdir()
    join(tree.sys / "class/block/nvme0n1", place)
    join(place / "subsystem", tree.sys / "class/block")
    put(tree.proc / "1/mountinfo", "22 1 0:31 / / rw - btrfs /dev/nvme0n1 rw\n")
    sysfs = Sysfs(str(tree.sys))
    assert users(sysfs, str(tree.proc), look(sysfs, DISK, str(tree.proc))) == ["/dev/nvme0n1 is mounted on /"]


def test_an_open_node_and_an_interface_that_is_up(world: World) -> None:
    place = world.tree.device(CARD).resolve()
    put(place / "net/enp4s0/flags", "0x1003\n")
    put(place / "ptp/ptp0/dev", "248:0\n")
    put(place / "ptp/ptp0/uevent", "DEVNAME=ptp0\n")
    world.tree.hold(700, "/dev/ptp0", name="ptp4l")
    assert world.refused((CARD, "vfio")) == (
        f"{CARD} is in use: process 700 (ptp4l) has /dev/ptp0 open, network interface enp4s0 is up{UNTOUCHED}; stop them first"
    )


def test_a_virtual_machine_that_has_it(world: World) -> None:
    world.done((DISK, "vfio"))
    world.tree.hold(4711, "/dev/vfio/14", name="qemu-system-x86")
    put(world.tree.proc / "4711/cmdline", "/usr/bin/qemu-system-x86_64\0-name\0guest=web,debug-threads=on\0-S\0")
    assert world.refused((DISK, "host")) == (
        f"{DISK} is in use: process 4711 (qemu-system-x86, virtual machine web) has /dev/vfio/14 open{UNTOUCHED};"
        " shut the virtual machine down first"
    )
    assert not world.run((DISK, "vfio"))["changed"]  # it is as wished, whoever has it


def test_a_gpu_with_a_process(gpu_world: World) -> None:
    assert gpu_world.host is not None
    gpu_world.host.simctl("hold", "--gpu", "0", "--pid", "4242")
    gpu_world.tree.hold(4242, "/dev/nvidia0")
    message = gpu_world.refused((gpu_world.gpus[0], "vfio"))
    name = f"{gpu_world.gpus[0]} ({gpu_world.uuids[0]})"
    assert message == f"{name} is in use: process 4242 (python3){UNTOUCHED}; stop them first"
    gpu_world.done((gpu_world.gpus[1], "vfio"))  # its neighbour is not


def test_a_gpu_whose_node_somebody_has_open(gpu_world: World) -> None:
    gpu_world.tree.hold(99, "/dev/nvidia1", name="dcgm-exporter")
    assert "is in use: process 99 (dcgm-exporter)" in gpu_world.refused((gpu_world.gpus[1], "vfio"))


def test_a_gpu_with_mig_instances(gpu_world: World) -> None:
    gpu = {"gpu": gpu_world.uuids[0], "instances": [{"profile": "1g.10gb", "start": 2}]}
    paths = {"proc_root": str(gpu_world.tree.proc), "sys_root": str(gpu_world.tree.sys), "docker_socket": ""}
    args = {"layout": [gpu], "state_dir": str(gpu_world.state_dir), "reset": True, **paths}
    assert not gpu_world._run("mig", {**args, "nvidia_smi": str(Path("build/simulator/nvidia-smi-reset").resolve())})["failed"]
    assert gpu_world.refused((gpu_world.gpus[0], "vfio")) == (
        f"{gpu_world.gpus[0]} ({gpu_world.uuids[0]}) has MIG instances (1g.10gb@2){UNTOUCHED};"
        " take them away first: module mig with mig: false for this GPU"
    )


def test_a_gpu_where_the_plan_has_a_service(gpu_world: World) -> None:
    line = {"service": "receipt-ocr", "replica": 1, "gpu": gpu_world.uuids[0]}
    record = {"serial": 3, "digest": "sha256:0", "state": "done", "services": [line], "standing": []}
    put(gpu_world.state_dir / "plan.json", json.dumps(record))
    message = gpu_world.refused((gpu_world.gpus[0], "vfio"))
    assert message.startswith(f"{gpu_world.gpus[0]} ({gpu_world.uuids[0]}) is where the plan has service receipt-ocr-1{UNTOUCHED}; ")
    assert not gpu_world.run((gpu_world.gpus[0], "vfio"), check=True, drained=["receipt-ocr-1"])["failed"]
    gpu_world.done((gpu_world.gpus[1], "vfio"))


def test_an_engine_that_does_not_answer(gpu_world: World, tmp_path: Path) -> None:
    put(tmp_path / "docker.sock", "")
    message = gpu_world.refused((gpu_world.gpus[0], "vfio"), docker_socket=str(tmp_path / "docker.sock"))
    assert message.startswith("docker_socket: cannot see which containers hold a slice (")
    assert UNTOUCHED[2:] in message


def test_a_kernel_without_vfio_pci(world: World) -> None:
    hidden = world.tree.hidden
    hidden["modules"].remove("vfio-pci")
    world.tree.save(hidden)
    assert world.refused((DISK, "vfio")).startswith(f"this host's kernel has no module vfio-pci{UNTOUCHED}; ")


def test_one_refusal_stops_all(world: World) -> None:
    assert world.refused((DISK, "vfio"), (BUS, "vfio")).startswith(f"{BUS} shares IOMMU group 8")


def test_a_host_that_another_holds(world: World) -> None:
    from ansible_collections.gpuops.fleet.plugins.module_utils import lease

    taken, _over = lease.acquire(world.state_dir, "lin", "deploy", 600)
    assert world.run((DISK, "vfio"))["msg"].startswith("this host is held by lin (deploy)")
    assert not world.run((DISK, "vfio"), check=True)["failed"]
    assert not world.run((DISK, "vfio"), lease=taken.token)["failed"]
    assert world.record()[DISK]["by"] == "lin"


def test_a_record_that_is_damaged(world: World) -> None:
    put(world.state_dir / "passthrough.json", json.dumps({"format": 9, "devices": {}}))
    message = world.refused((DISK, "vfio"))
    assert message.startswith(f"{world.state_dir}/passthrough.json: these are not devices that were given away, in format 1; ")


def test_a_companion_that_is_in_use_is_named_with_the_reason(world: World) -> None:
    world.tree.gpu("0000:65:00.0", group=40, driver=None, ids=("10de", "2230", "10de", "1459"))
    world.tree.add("0000:65:00.1", ("10de", "1aef", "10de", "1459"), AUDIO, group=40, driver="snd_hda_intel")
    place = world.tree.device("0000:65:00.1").resolve()
    put(place / "sound/card1/controlC1/dev", "116:7\n")
    put(place / "sound/card1/controlC1/uevent", "DEVNAME=snd/controlC1\n")
    world.tree.hold(800, "/dev/snd/controlC1", name="pipewire")
    assert world.refused(("0000:65:00.0", "vfio"), companions=True) == (
        "0000:65:00.1, which shares the IOMMU group of 0000:65:00.0, is in use: process 800 (pipewire) has /dev/snd/controlC1 open"
        f"{UNTOUCHED}; stop them first"
    )


@pytest.mark.parametrize("name", ["tee", "modprobe"])
def test_the_stand_ins_can_be_run(name: str) -> None:
    assert os.access(BIN / name, os.X_OK)
