# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report and those who use a GPU without being in a plan: who is named, and who is not counted."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.report import Inputs, build
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_plan import Service
from ansible_collections.gpuops.fleet.tests.tools import report_fleet as world

Data = dict[str, t.Any]

OCR = Service("ocr", "claims", "production", 7, 8192)


def test_a_slice_and_a_gpu_used_outside_the_plan_are_set_aside_and_the_user_is_named() -> None:
    cut, bare = world.gpu(0, "a100", ["1g.10gb@0", "1g.10gb@1"]), world.gpu(1, "l40s")
    cut["holders"] = [{"pid": 9, "process": "python", "container": None, "slice": {"gi": 7, "ci": 0}, "kind": "compute"}]
    bare["holders"] = [
        {"pid": 5, "process": "train", "container": "lab", "slice": None, "kind": "mps"},
        {"pid": 6, "process": "dcgm", "container": None, "slice": None, "kind": "open_file"},
        {"pid": 7, "process": None, "container": None, "slice": None, "kind": "graphics"},
    ]
    report = build(Inputs({"h": world.host(cut, bare)}))
    first, second = report.gpus
    assert [(block.kind, block.why) for block in first.blocks[:2]] == [("aside", "used outside the plan by python"), ("unused", "")]
    assert [(block.kind, block.why) for block in second.blocks] == [("aside", "used outside the plan by an unknown process, lab")]
    assert [(alert.where, alert.text) for alert in report.alerts] == [
        ("h, GPU 0", "1g.10gb@0: used outside the plan by python."),
        ("h, GPU 1", "whole GPU: used outside the plan by an unknown process, lab."),
    ]


def test_containers_outside_the_plan_hold_what_their_device_requests_name_even_when_stopped() -> None:
    gpu, bare = world.gpu(0, "a100", ["1g.10gb@0", "1g.10gb@1"]), world.gpu(1, "l40s")
    containers = [
        {"name": "old", "state": "exited", "project": "lab", "devices": ["MIG-0000-1"]},
        {"name": "ours", "state": "running", "project": "ocr-1", "devices": [bare["uuid"]]},
        {"name": "away", "state": "removed", "project": "lab", "devices": [bare["uuid"]]},
    ]
    plans = {"h": world.plan(1, world.cut(gpu, "1g.10gb@0"), [world.on_slice("ocr", 1, gpu, "1g.10gb@0")])}
    first, second = build(Inputs({"h": world.host(gpu, bare, containers=containers)}, plans, (), (OCR,))).gpus
    assert [(block.kind, block.why) for block in first.blocks[:2]] == [("held", ""), ("aside", "used outside the plan by container old")]
    assert second.blocks[0].kind == "free"


def test_a_holder_in_the_containers_of_a_planned_replica_is_its_own() -> None:
    gpu = world.gpu(0, "l40s")
    gpu["holders"] = [{"pid": 5, "process": "x", "container": "ocr-1", "slice": None, "kind": "compute"}]
    other = world.gpu(1, "l40s")
    plans = {"h": world.plan(1, [world.mode(other, "whole")], [world.on_gpu("ocr", 1, [other])])}
    assert build(Inputs({"h": world.host(gpu, other)}, plans)).gpus[0].blocks[0].kind == "free"


def test_a_process_in_a_container_is_known_by_the_project_of_its_container() -> None:
    gpu = world.gpu(0, "l40s")
    gpu["holders"] = [{"pid": 5, "process": "x", "container": "4f1c5c1f77ab", "slice": None, "kind": "compute"}]
    other = world.gpu(1, "l40s")
    plans = {"h": world.plan(1, [world.mode(other, "whole")], [world.on_gpu("ocr", 1, [other])])}
    box = {"id": "4f1c5c1f77ab", "name": "ocr-1-server-1", "project": "ocr-1", "state": "running", "devices": []}

    def first(container: Data) -> tuple[str, str]:
        block = build(Inputs({"h": world.host(gpu, other, containers=[container])}, plans)).gpus[0].blocks[0]
        return block.kind, block.why

    assert first(box) == ("free", "")
    lab = {**box, "name": "lab", "project": None, "devices": [gpu["uuid"]]}
    assert first(lab) == ("aside", "used outside the plan by container lab")


def test_a_container_that_only_watches_sets_nothing_aside() -> None:
    gpu, cut = world.gpu(0, "l40s"), world.gpu(1, "a100", ["1g.10gb@0"])
    exporter = {
        "id": "1",
        "name": "exporter",
        "image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3-4.1.3-ubuntu22.04",
        "state": "running",
        "project": "monitoring",
        "devices": [gpu["uuid"], cut["uuid"], "MIG-0001-0"],
    }
    report = build(Inputs({"h": world.host(gpu, cut, containers=[exporter])}))
    assert report.mib("aside") == 0
    assert report.alerts == ()
