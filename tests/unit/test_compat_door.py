# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module compat: all services on all hosts in one table, by its door and by a real ansible-playbook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.action.compat import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_table import drivers_below

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "inventories" / "example" / "manifests"
DIGEST = "a" * 64
OCR = f"registry.example.com/ocr@sha256:{DIGEST}"
CHAT = f"registry.example.com/chat@sha256:{DIGEST}"


def manifest(service: str, image: str, isolation: str = "exclusive") -> str:
    return (
        f"schema: 1\nservice: {service}\nteam: claims\nenvironment: production\nruntime: http\nimage: {image}\n"
        f"gpu: {{isolation: {isolation}, memory: 8 GiB}}\nhost: {{cpus: 2, memory: 4 GiB}}\n"
    )


def facts(driver: str, *gpus: tuple[str, str], flavour: str = "open") -> dict[str, t.Any]:
    return {
        "driver": {"present": True, "version": driver, "cuda": None, "flavour": flavour, "error": None},
        "host": {"os": {"id": "debian", "version": "13"}, "kernel": "6.12.107"},
        "engine": {
            "docker": {"present": True, "version": "28.3.0", "cdi": True, "runtimes": ["runc"]},
            "cdi_specs": ["/etc/cdi/nvidia.yaml"],
        },
        "gpus": [
            {"device_id": None, "name": name, "compute_capability": capability, "virtualization": "none"} for name, capability in gpus
        ],
    }


def fleet() -> dict[str, t.Any]:
    v100, h100 = ("Tesla V100-SXM2-32GB", "7.0"), ("NVIDIA H100 PCIe", "9.0")
    return {
        "gpu-07": {"facts": facts("570.124.06", v100, h100, h100, flavour="proprietary")},
        "gpu-08": {"facts": facts("580.95.05", h100)},
        "gpu-09": {"facts": None, "unread": "no route to host"},
        "gpu-10": {"facts": facts("580.95.05")},
    }


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    directory = tmp_path / "manifests"
    directory.mkdir()
    (directory / "chat.yml").write_text(manifest("chat", CHAT), encoding="utf-8")
    (directory / "ocr.yml").write_text(manifest("ocr", OCR, "slice"), encoding="utf-8")
    return directory


def judged(manifests: Path, **more: t.Any) -> dict[str, t.Any]:
    images = {CHAT: ["CUDA_VERSION=13.0.2"], OCR: ["CUDA_VERSION=12.8.1"]}
    return run({"manifests": str(manifests), "hosts": fleet(), "templates": [], "images": images, "today": "2026-11-21", **more})


def test_the_table_has_a_line_for_each_kind_of_gpu_and_a_column_for_each_service(manifests: Path) -> None:
    lines = judged(manifests)["table"]
    assert [line.split() for line in lines[:6]] == [
        ["HOST", "GPU", "chat", "ocr"],
        ["gpu-07", "h100-pcie-80gb", "no", "ok"],
        ["gpu-07", "v100-sxm2-32gb", "no", "ok"],
        ["gpu-08", "h100-pcie-80gb", "ok", "ok"],
        ["gpu-09", "was", "not", "judged:", "no", "route", "to", "host"],
        ["gpu-10", "was", "not", "judged:", "it", "has", "no", "GPU", "that", "can", "be", "seen"],
    ]
    needs = next(number for number, line in enumerate(lines) if "needs driver 580.65.06" in line)
    assert lines[needs].startswith("no: gpu-07 h100-pcie-80gb: chat: CUDA 13.0.2 needs driver 580.65.06 or newer, here is 570.124.06 (")
    assert lines[needs + 1] == "  remedy: upgrade to R580: 580.65.06 or newer; it is the last branch for the v100-sxm2-32gb in gpu-07"
    assert any(line.startswith("warn: gpu-07 h100-pcie-80gb, gpu-07 v100-sxm2-32gb: every service: R570 gets no fixes") for line in lines)


def test_hosts_that_are_told_the_same_share_a_line(manifests: Path) -> None:
    one = facts("580.95.05", ("NVIDIA H100 PCIe", "9.0"))
    one["engine"]["docker"]["present"] = False
    lines = judged(manifests, hosts={"gpu-01": {"facts": one}, "gpu-02": {"facts": one}})["table"]
    (number,) = [number for number, line in enumerate(lines) if "engine does not answer" in line]
    assert lines[number].startswith("no: gpu-01 h100-pcie-80gb, gpu-02 h100-pcie-80gb: every service: the container engine does not answer")
    assert lines[number + 1] == "  remedy: install and start Docker on that host"


def test_a_slice_is_refused_on_a_board_that_has_none(manifests: Path) -> None:
    machine = facts("580.95.05", ("NVIDIA L40S", "8.9"))
    machine["gpus"][0]["mig"] = None
    verdicts = judged(manifests, hosts={"gpu-01": {"facts": machine}})["verdicts"]
    assert {each["service"]: each["answer"] for each in verdicts} == {"chat": "ok", "ocr": "no"}
    assert any(one["message"] == "l40s has no MIG, and the service wants a slice" for each in verdicts for one in each["findings"])


def test_the_same_is_there_as_data(manifests: Path) -> None:
    verdicts = judged(manifests)["verdicts"]
    answers = {(each["host"], each["gpu"], each["service"]): each["answer"] for each in verdicts}
    assert len(verdicts) == 6
    assert answers["gpu-07", "h100-pcie-80gb", "chat"] == "no"
    assert answers["gpu-08", "h100-pcie-80gb", "chat"] == "ok"
    assert all("\0" not in json.dumps(each) and "\\u0000" not in json.dumps(each) for each in verdicts)


def test_an_image_whose_variables_nobody_gave_blocks_nothing(manifests: Path) -> None:
    verdicts = judged(manifests, images={})["verdicts"]
    assert {each["answer"] for each in verdicts} == {"ok"}
    assert all(any("CUDA of the image is not known" in one["message"] for one in each["findings"]) for each in verdicts)


def test_the_paper_beside_is_the_same_and_is_written_again_only_when_something_changes(manifests: Path, tmp_path: Path) -> None:
    paper = tmp_path / "reports" / "compat.json"
    table = tmp_path / "reports" / "compat.txt"
    given = {"hosts": fleet(), "templates": [], "images": {}, "today": "2026-11-21", "manifests": str(manifests)}
    arguments = {**given, "dest": str(paper), "table_dest": str(table)}
    assert run(arguments, check_mode=True, diff=True)["changed"]
    assert not paper.parent.exists()
    first = run(arguments)
    assert first["changed"]
    assert table.read_text(encoding="utf-8").splitlines() == first["table"]
    told = json.loads(paper.read_text(encoding="utf-8"))
    assert (told["schema"], told["today"], told["verdicts"]) == (1, "2026-11-21", first["verdicts"])
    assert told["unread"] == {"gpu-09": "no route to host", "gpu-10": "it has no GPU that can be seen"}
    again = run(arguments, diff=True)
    assert (again["changed"], again["diff"]) == (False, [])


def test_more_services_than_a_screen_is_wide_share_columns_where_they_are_alike(tmp_path: Path) -> None:
    for number in range(20):
        text = manifest(f"ocr-{number:02d}", CHAT if number == 7 else OCR, "slice")
        (tmp_path / f"{number}.yml").write_text(text, encoding="utf-8")
    lines = judged(tmp_path)["table"]
    assert "ocr-00, ocr-01, ocr-02, ocr-03 and 15 more" in lines[0]
    assert lines[0].rstrip().endswith("ocr-07")
    assert lines[1].split() == ["gpu-07", "h100-pcie-80gb", "ok", "no"]


@pytest.mark.parametrize("today", ["soon", "2026-13-01", "2026-11-21T00:00"])
def test_a_date_that_is_none_is_refused_in_one_line(manifests: Path, today: str) -> None:
    with pytest.raises(FleetError) as caught:
        judged(manifests, today=today)
    assert str(caught.value) == f"today: '{today}' is not a date; write it as 2026-11-21"


def test_the_examples_services_are_judged_by_a_playbook(tmp_path: Path) -> None:
    play = tmp_path / "judge.yml"
    task = {
        "gpuops.fleet.compat": {
            "manifests": str(EXAMPLE),
            "hosts": fleet(),
            "today": "{{ now(utc=true).strftime('%Y-%m-%d') }}",
        },
        "register": "judged",
    }
    told = {"ansible.builtin.debug": {"msg": "{{ judged.table }} changed={{ judged.changed }}"}}
    play.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [task, told]}]), encoding="utf-8")
    program = str(Path(sys.executable).parent / "ansible-playbook")
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_LOCALHOST_WARNING": "false"}
    done = subprocess.run(
        [program, "-i", "localhost,", str(play)], env=environment, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "llm-chat" in done.stdout
    assert "changed=False" in done.stdout


# ---- the host below a vGPU


def vgpu_fleet(parent: t.Any, sensed: str | None = None) -> dict[str, dict[str, t.Any]]:
    """A virtual machine with a vGPU, and the host below it."""
    guest = facts("580.159.03", ("NVIDIA A10-24Q", "8.6"))
    guest["gpus"][0]["virtualization"] = "vgpu"
    guest["driver"]["vgpu_host"] = sensed
    below = facts("570.172.07", ("NVIDIA A10", "8.6"))
    return {"vm-01": {"facts": guest, "policy": {"fleet_parent": parent}}, "kvm-01": {"facts": below, "policy": {}}}


@pytest.mark.parametrize(
    ("parent", "sensed", "effect", "words"),
    [
        (
            {"host": "kvm-01"},
            None,
            "no",
            "guest of vGPU 19 (580.159.03) on a host of vGPU 18 (570.172.07): the guest is newer than its host",
        ),
        # What the guest sees is what runs below it.
        ({"host": "kvm-01"}, "580.159.01", None, ""),
        (None, "570.172.07", "no", "the guest is newer than its host"),
        (None, None, "warn", "whether a host with driver that is not known takes this guest is not known"),
        ({"host": "gone"}, None, "warn", "that is not known"),
        ("kvm-01", None, "warn", "that is not known"),
    ],
)
def test_the_driver_below_a_vgpu_is_the_guests_own_word_or_that_of_the_host_that_the_inventory_names(
    manifests: Path, parent: t.Any, sensed: str | None, effect: str | None, words: str
) -> None:
    hosts = vgpu_fleet(parent, sensed)
    verdicts = judged(manifests, hosts=hosts)["verdicts"]
    found = [
        one
        for each in verdicts
        if (each["host"], each["service"]) == ("vm-01", "chat")
        for one in each["findings"]
        if one["rule"] == "vgpu"
    ]
    assert [one["effect"] for one in found] == ([effect] if effect else [])
    assert all(words in one["message"] for one in found)
    read = {name: host["facts"] for name, host in hosts.items()}
    manifest = {"service": "chat", "image": None, "runtime": "http", "gpu": {"isolation": "exclusive"}}
    barred = door.judge({}).bars(door.catalogue(), read, [manifest], drivers_below(hosts)).get("chat", {})
    assert {name for name, _board in barred} == ({"vm-01"} if effect == "no" else set())
