# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report's numbers."""

from __future__ import annotations

import dataclasses
import random
import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report import Inputs, Policy, Report, build
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_gpu import KINDS, GpuView, Tenant
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_plan import Service
from ansible_collections.gpuops.fleet.tests.tools import report_fleet as world
from hypothesis import given
from hypothesis import strategies as st

Data = dict[str, t.Any]

SEVEN = [f"1g.10gb@{start}" for start in range(7)]
OCR = Service("ocr", "claims", "production", 7, 8192)
CHAT = Service("chat", "assistant", "production", 1, 65536)


def one_gpu(
    gpu: Data,
    layout: t.Sequence[Data] = (),
    services: t.Sequence[Data] = (),
    known: t.Sequence[Service] = (OCR, CHAT),
    policy: Policy | None = None,
    live: bool = False,
    **facts: t.Any,
) -> Report:
    plans = {"h": world.plan(1, layout, services)} if layout or services else {}
    policies = {"h": policy} if policy else {}
    return build(Inputs({"h": world.host(gpu, serial=1, **facts)}, plans, (), known, policies, live))


def only(report: Report) -> GpuView:
    (gpu,) = report.gpus
    return gpu


def shape(gpu: GpuView) -> list[tuple[str, int, int, int, str]]:
    return [(block.kind, block.start, block.size, block.mib, block.label) for block in gpu.blocks]


def covers_its_axis(gpu: GpuView) -> bool:
    at = 0
    for block in gpu.blocks:
        if block.start != at:
            return False
        at += block.size
    return at == gpu.units


# --- one GPU -----------------------------------------------------------------------------------------------------------------


def test_seven_small_slices_strand_one_memory_slice_and_the_layout_that_reaches_it_is_named() -> None:
    gpu = world.gpu(0, "a100", SEVEN)
    report = one_gpu(gpu, world.cut(gpu, *SEVEN), [world.on_slice("ocr", n + 1, gpu, SEVEN[n]) for n in range(7)])
    view = only(report)
    assert shape(view) == [*(("held", n, 1, 9856, f"1g.10gb@{n}") for n in range(7)), ("stranded", 7, 1, 11392, "stranded")]
    assert [block.tenant for block in view.blocks[:2]] == [Tenant("ocr", 1, "claims", 8192), Tenant("ocr", 2, "claims", 8192)]
    assert (view.mode, view.units, view.compute_slices, view.compute_used, view.stranded_slices) == ("mig", 8, 7, 7, 1)
    assert view.layout == "7x1g.10gb"
    assert view.better[0] == "6x1g.10gb + 1g.20gb"
    assert view.overhead_mib == 81920 - 7 * 9856 - 11392
    assert [dataclasses.astuple(row)[:5] for row in report.stranded] == [("A100-SXM4-80GB", "7x1g.10gb", 1, 1, 11392)]
    assert report.stranded[0].better == view.better


def test_a_slice_that_nobody_holds_is_unused_and_a_gap_that_a_slice_can_fill_is_free() -> None:
    gpu = world.gpu(0, "a100", ["2g.20gb@0", "1g.10gb@2"])
    view = only(one_gpu(gpu, world.cut(gpu, "2g.20gb@0", "1g.10gb@2"), [world.on_slice("ocr", 1, gpu, "2g.20gb@0")]))
    # 1g.10gb@3 and 3g.40gb@4 fit beside them: all the rest can be had
    assert shape(view) == [
        ("held", 0, 2, 19968, "2g.20gb@0"),
        ("unused", 2, 1, 9856, "1g.10gb@2"),
        ("free", 3, 5, 9856 + 40192, "free"),
    ]
    assert view.compute_used == 3
    assert view.better == ()


def test_slices_outside_any_plan_are_unused() -> None:
    view = only(one_gpu(world.gpu(0, "h100", ["3g.40gb@4"])))
    assert shape(view) == [("free", 0, 4, 40448, "free"), ("unused", 4, 4, 40448, "3g.40gb@4")]
    assert view.notes == ()


def test_free_gaps_share_their_memory_by_length() -> None:
    view = only(one_gpu(world.gpu(0, "a100", ["2g.20gb@2", "1g.10gb@6"])))
    free = [(block.start, block.size, block.mib) for block in view.blocks if block.kind == "free"]
    assert [(start, size) for start, size, _mib in free] == [(0, 2), (4, 2)]
    assert [mib for *_rest, mib in free] == [19968, 19968]
    assert [(block.start, block.size) for block in view.blocks if block.kind == "stranded"] == [(7, 1)]


def test_free_space_is_the_most_that_can_be_had_even_when_the_largest_slice_would_spoil_it() -> None:
    profiles = [
        {"name": "2g.40gb", "id": 1, "slices": 2, "size": 4, "memory_mib": 4000, "sm": 20, "max": 1, "starts": [0]},
        {"name": "2g.30gb", "id": 2, "slices": 2, "size": 3, "memory_mib": 3000, "sm": 20, "max": 2, "starts": [0, 3]},
    ]
    gpu = world.gpu(0, "a100", memory_mib=6100, mig={"current": True, "pending": True, "geometry": "odd", "instances": []})
    facts = world.host(gpu, geometries={"odd": {"compute_slices": 4, "memory_slices": 6, "profiles": profiles}})
    (view,) = build(Inputs({"h": facts})).gpus
    assert shape(view) == [("free", 0, 6, 6000, "free")]
    assert (view.overhead_mib, view.units, view.layout) == (100, 6, "")


def test_memory_that_no_layout_reaches_is_overhead_and_not_stranded() -> None:
    pair = {"name": "2g.20gb", "id": 1, "slices": 2, "size": 2, "memory_mib": 2000, "sm": 20, "max": 2, "starts": [0, 3]}
    gpu = world.gpu(0, "a100", memory_mib=6100, mig={"current": True, "pending": True, "geometry": "odd", "instances": []})
    facts = world.host(gpu, geometries={"odd": {"compute_slices": 4, "memory_slices": 6, "profiles": [pair]}})
    report = build(Inputs({"h": facts}))
    assert shape(report.gpus[0]) == [
        ("free", 0, 2, 2000, "free"),
        ("overhead", 2, 1, 0, "overhead"),
        ("free", 3, 2, 2000, "free"),
        ("overhead", 5, 1, 0, "overhead"),
    ]
    assert (report.gpus[0].stranded_slices, report.gpus[0].better, report.stranded) == (0, (), ())
    assert report.mib("overhead") == 2100


def test_a_place_in_the_plan_counts_where_the_layout_has_no_line_for_its_gpu() -> None:
    cut, bare = world.gpu(0, "a100"), world.gpu(1, "a100")
    services = [world.on_slice("ocr", 1, cut, "1g.10gb@0"), {"service": "chat", "replica": 1, "gpu": bare["uuid"]}]
    first, second = build(Inputs({"h": world.host(cut, bare)}, {"h": world.plan(1, [], services)})).gpus
    assert (first.mode, first.blocks[0].kind) == ("mig", "planned")
    assert (second.mode, second.blocks[0].kind) == ("whole", "held")


def test_gpus_come_by_index_and_those_without_one_last() -> None:
    gpus = [world.gpu(2, "l40s"), world.gpu(0, "l40s"), world.gpu(1, "l40s"), world.gpu(5, "l40s", index=None)]
    assert [gpu.index for gpu in build(Inputs({"h": world.host(*gpus)})).gpus] == [0, 1, 2, -1]


def test_a_board_with_twelve_memory_units_is_drawn_on_twelve() -> None:
    one = {"name": "1g.24gb", "id": 14, "slices": 1, "size": 3, "memory_mib": 24192, "sm": 46, "max": 4, "starts": [0, 3, 6, 9]}
    instances = [{"gi": 3, "profile": "1g.24gb", "start": 6, "ci": [{"id": 0, "profile": "1g.24gb", "uuid": "MIG-1"}]}]
    gpu = world.gpu(0, "a100", memory_mib=97887, mig={"current": True, "pending": True, "geometry": "rtx", "instances": instances})
    facts = world.host(gpu, geometries={"rtx": {"compute_slices": 4, "memory_slices": 12, "profiles": [one]}})
    (view,) = build(Inputs({"h": facts})).gpus
    assert shape(view) == [("free", 0, 6, 48384, "free"), ("unused", 6, 3, 24192, "1g.24gb@6"), ("free", 9, 3, 24192, "free")]


def test_compute_that_no_memory_is_left_for_is_not_counted_as_used() -> None:
    view = only(one_gpu(world.gpu(0, "h100", ["3g.40gb@0", "3g.40gb@4"])))
    assert (view.compute_used, view.compute_slices, view.stranded_slices) == (6, 7, 0)
    assert [block.sm for block in view.blocks] == [60, 60]


def test_a_whole_gpu_is_one_block() -> None:
    gpu = world.gpu(0, "h100")
    report = one_gpu(gpu, [world.mode(gpu, "whole")], [world.on_gpu("chat", 1, [gpu], http=18000)])
    view = only(report)
    assert shape(view) == [("held", 0, 81559, 81559, "whole GPU")]
    assert (view.mode, view.overhead_mib, view.units) == ("whole", 0, 81559)
    (row,) = report.replicas
    assert (row.part, row.given_mib, row.ports, row.place, row.gpus) == ("whole GPU", 81559, ("http 18000",), "ready", ("0",))


def test_a_whole_gpu_without_service_is_free() -> None:
    gpu = world.gpu(0, "l40s")
    view = only(one_gpu(gpu, [world.mode(gpu, "whole")]))
    assert (view.mode, shape(view)) == ("whole", [("free", 0, 46068, 46068, "free")])


def test_a_gpu_that_no_plan_touches_is_not_assigned() -> None:
    view = only(one_gpu(world.gpu(0, "l40s")))
    assert (view.mode, shape(view)) == ("unassigned", [("free", 0, 46068, 46068, "free")])


def test_a_replica_on_two_gpus_holds_both() -> None:
    first, second = world.gpu(0, "h100"), world.gpu(1, "h100")
    facts = {"h": world.host(first, second, serial=1)}
    plans = {"h": world.plan(1, [world.mode(first, "whole"), world.mode(second, "whole")], [world.on_gpu("chat", 1, [first, second])])}
    report = build(Inputs(facts, plans, (), (CHAT,)))
    assert report.mib("held") == 2 * 81559
    (row,) = report.replicas
    assert (row.gpus, row.given_mib) == (("0", "1"), 81559)
    assert (report.teams[0].gpus, report.teams[0].replicas, report.teams[0].mib) == (2, 1, 2 * 81559)


def test_sharers_stand_side_by_side_with_what_they_declare_then_what_is_free_then_the_reserve() -> None:
    gpu = world.gpu(0, "l40s")
    anna, boris = Service("anna", "health", "e", 1, 16384), Service("boris", "research", "e", 1, 12288)
    services = [world.on_gpu("boris", 1, [gpu], "shared"), world.on_gpu("anna", 1, [gpu], "shared")]
    report = one_gpu(gpu, [world.mode(gpu, "shared")], services, (anna, boris), Policy(shared_reserve_mib=2048))
    view = only(report)
    assert shape(view) == [
        ("held", 0, 16384, 16384, "share"),
        ("held", 16384, 12288, 12288, "share"),
        ("free", 28672, 46068 - 28672 - 2048, 46068 - 28672 - 2048, "free"),
        ("aside", 44020, 2048, 2048, "reserve"),
    ]
    assert [block.tenant.service for block in view.blocks if block.tenant] == ["anna", "boris"]
    assert view.blocks[-1].why == "kept free on shared GPUs by policy"
    assert [(row.part, row.given_mib) for row in report.replicas] == [("share", 16384), ("share", 12288)]
    assert [(team.name, team.shares, team.slices, team.gpus) for team in report.teams] == [("health", 1, 0, 0), ("research", 1, 0, 0)]


def test_sharers_that_declare_more_than_there_is_are_cut_off_and_said_so() -> None:
    gpu = world.gpu(0, "l40s")
    big, late, silent = Service("big", "a", "e", 1, 40000), Service("late", "a", "e", 1, 10000), Service("quiet", "a", "e", 1, None)
    services = [world.on_gpu(name, 1, [gpu], "shared") for name in ("big", "late", "quiet")]
    view = only(one_gpu(gpu, [world.mode(gpu, "shared")], services, (big, late, silent)))
    assert [(block.start, block.mib) for block in view.blocks] == [(0, 40000), (40000, 6068), (46068, 0)]
    assert view.notes == (
        "late-1 declares 10,000 MiB and only 6,068 MiB are left: this GPU is promised more than it has.",
        "quiet-1 shares this GPU and declares no memory.",
    )


def test_sharers_that_fill_a_gpu_to_the_reserve_leave_nothing_free() -> None:
    gpu = world.gpu(0, "l40s")
    view = only(one_gpu(gpu, [world.mode(gpu, "shared")], [world.on_gpu("big", 1, [gpu], "shared")], (Service("big", "a", "e", 1, 45044),)))
    assert [block.kind for block in view.blocks] == ["held", "aside"]
    assert view.notes == ()


@pytest.mark.parametrize(("state", "error", "words"), [("lost", "GPU is lost", "lost (NVML: GPU is lost)"), ("error", None, "in error")])
def test_a_gpu_that_is_lost_or_ill_is_out_of_service_and_whoever_is_on_it_is_named(state: str, error: str | None, words: str) -> None:
    gpu = world.gpu(0, "l40s", state=state, error=error)
    report = one_gpu(gpu, [world.mode(gpu, "whole")], [world.on_gpu("chat", 1, [gpu])])
    view = only(report)
    assert view.mode == "out"
    assert [(block.kind, block.mib, block.why) for block in view.blocks] == [("aside", 46068, words)]
    assert [(alert.grave, alert.where, alert.text) for alert in report.alerts] == [
        (True, "h, GPU 0", f"This GPU is {words}. On it: chat-1.")
    ]
    assert report.replicas[0].place == ("GPU lost" if state == "lost" else "GPU in error")
    assert report.replicas[0].given_mib is None


def test_a_lost_gpu_of_unknown_size_adds_nothing_to_the_memory() -> None:
    report = one_gpu({"uuid": "GPU-1", "pci": "0000:01:00.0", "state": "lost", "error": None, "index": None, "memory_mib": None})
    assert report.memory_mib == 0
    view = only(report)
    assert (view.name, view.index, view.health) == ("unknown board", -1, ())
    assert covers_its_axis(view)


@pytest.mark.parametrize(
    "by",
    [
        "0",
        "GPU-00000000-5c1f-4b2e-9d10-000000000000",
        "gpu-00000000-5C1F-4B2E-9D10-000000000000",
        "0000:07:00.0",
        "07:00.0",
        "00000000:07:00.0",
        " 0000:07:00.0 ",
    ],
)
def test_a_cordoned_gpu_keeps_its_services_and_offers_nothing(by: str) -> None:
    gpu = world.gpu(0, "a100", ["2g.20gb@0", "1g.10gb@2"])
    services = [world.on_slice("ocr", 1, gpu, "2g.20gb@0")]
    report = one_gpu(gpu, world.cut(gpu, "2g.20gb@0", "1g.10gb@2"), services, policy=Policy(cordoned=(by,)))
    view = only(report)
    assert view.cordoned
    assert [(block.kind, block.label) for block in view.blocks] == [("held", "2g.20gb@0"), ("aside", "1g.10gb@2"), ("aside", "cordoned")]
    assert ("h, GPU 0", "Cordoned: nothing new is placed here.") in [(alert.where, alert.text) for alert in report.alerts]


@pytest.mark.parametrize("whole_host", [False, True])
def test_a_drained_gpu_is_said_with_who_why_until_when_and_what_is_on_it_still(whole_host: bool) -> None:
    drain = {"by": "lin", "reason": "fan", "since": "2026-11-21T12:00:00Z", "until": "2026-12-01T23:59:59Z", "force": False}
    gpu = world.gpu(0, "a100", ["2g.20gb@0", "1g.10gb@2"], drain=None if whole_host else drain)
    services = [world.on_slice("ocr", 1, gpu, "2g.20gb@0")]
    known = world.host(gpu, serial=1)
    known["host"]["drain"] = drain if whole_host else None
    report = build(Inputs({"h": known}, {"h": world.plan(1, world.cut(gpu, "2g.20gb@0", "1g.10gb@2"), services)}))
    view = only(report)
    assert [(block.kind, block.label) for block in view.blocks] == [("held", "2g.20gb@0"), ("aside", "1g.10gb@2"), ("aside", "drained")]
    words = "rained by lin (fan) until 2026-12-01: nothing new is placed here"
    assert view.blocks[-1].why == f"d{words}"
    assert ("h, GPU 0", f"D{words}. On it still: ocr-1.") in [(alert.where, alert.text) for alert in report.alerts]


def test_a_gpu_that_is_not_named_is_not_cordoned() -> None:
    assert not only(one_gpu(world.gpu(0, "l40s"), policy=Policy(cordoned=("1", "GPU-0")))).cordoned


@pytest.mark.parametrize(
    ("resetless", "words"),
    [
        (False, "MIG mode on is pending: it waits for a GPU reset."),
        (True, "MIG mode on is pending: it needs no reset, only that nothing uses the GPU."),
    ],
)
def test_a_pending_mig_mode_is_said_with_what_it_waits_for(resetless: bool, words: str) -> None:
    mig = {"current": False, "pending": True, "resetless": resetless, "geometry": "a100", "instances": []}
    report = one_gpu(world.gpu(0, "a100", mig=mig))
    assert only(report).notes == (words,)
    assert [(alert.grave, alert.text) for alert in report.alerts] == [(False, words)]


def test_a_pending_switch_off_is_said_too() -> None:
    mig = {**world.gpu(0, "a100", [])["mig"], "pending": False}
    assert only(one_gpu(world.gpu(0, "a100", mig=mig))).notes == ("MIG mode off is pending: it waits for a GPU reset.",)


def test_a_pending_ecc_mode_is_said() -> None:
    view = only(one_gpu(world.gpu(0, "l40s", ecc={"current": True, "pending": False})))
    assert view.notes == ("ECC off is pending: it waits for a GPU reset or a reboot.",)


def test_planned_slices_are_drawn_where_they_will_be_and_count_as_planned() -> None:
    gpu = world.gpu(0, "a100")
    report = one_gpu(gpu, world.cut(gpu, "3g.40gb@0", "1g.10gb@4"), [world.on_slice("ocr", 1, gpu, "3g.40gb@0")])
    view = only(report)
    assert [(block.kind, block.label) for block in view.blocks[:2]] == [("planned", "3g.40gb@0"), ("planned", "1g.10gb@4")]
    assert view.notes == ("The plan is not carried out yet: MIG is not on.",)
    assert (report.mib("held"), report.mib("planned")) == (0, 40192 + 9856)
    assert report.replicas[0].place == "not there yet"
    assert report.replicas[0].given_mib == 40192
    assert report.teams[1].name == "claims"
    assert (report.teams[1].mib, report.teams[1].planned_mib, report.teams[1].slices) == (0, 40192, 1)


def test_a_plan_that_must_replace_slices_is_said_and_what_is_there_is_drawn() -> None:
    gpu = world.gpu(0, "a100", ["7g.80gb@0"])
    report = one_gpu(gpu, world.cut(gpu, "1g.10gb@2", "1g.10gb@4"), [world.on_slice("ocr", 1, gpu, "1g.10gb@4")])
    view = only(report)
    assert [(block.kind, block.label) for block in view.blocks] == [("unused", "7g.80gb@0")]
    assert view.notes == (
        "The plan is not carried out yet: 1g.10gb@2, 1g.10gb@4 must replace slices that are there now.",
        "The plan takes away 7g.80gb@0.",
    )
    assert (report.replicas[0].place, report.replicas[0].given_mib) == ("not there yet", None)


@pytest.mark.parametrize("word", ["whole", "shared"])
def test_a_gpu_that_is_to_be_whole_while_mig_is_on_is_said(word: str) -> None:
    gpu = world.gpu(0, "a100", ["1g.10gb@0"])
    view = only(one_gpu(gpu, [world.mode(gpu, word)], [world.on_gpu("chat", 1, [gpu], word)]))
    assert view.notes == (f"The plan is not carried out yet: it wants the GPU {word} and MIG is still on.",)
    assert view.mib("held") == 0


def test_a_plan_for_mig_on_a_board_of_unknown_geometry_draws_the_board_as_it_is() -> None:
    gpu = world.gpu(0, "a100")
    gpu["mig"]["geometry"] = None
    view = only(one_gpu(gpu, world.cut(gpu, "1g.10gb@0")))
    assert view.notes == ("The plan is not carried out yet: MIG is not on.",)
    assert [block.kind for block in view.blocks] == ["free"]


def test_slices_that_the_geometry_does_not_know_are_said_and_do_not_break_the_report() -> None:
    view = only(one_gpu(world.gpu(0, "a100", ["5g.60gb@0"])))
    assert [(block.kind, block.label, block.mib) for block in view.blocks] == [("aside", "unknown", 81920)]
    assert view.notes[0].startswith("Its slices cannot be drawn: ")
    assert "5g.60gb" in view.notes[0]


def test_a_gpu_instance_without_compute_instance_is_unused_and_says_why() -> None:
    gpu = world.gpu(0, "a100", ["1g.10gb@0", "1g.10gb@1"])
    gpu["mig"]["instances"][1]["ci"] = []
    view = only(one_gpu(gpu))
    assert [block.why for block in view.blocks[:2]] == ["", "a GPU instance without compute instance: nobody can use it yet"]
    assert view.blocks[1].kind == "unused"


# --- health ------------------------------------------------------------------------------------------------------------------


def test_readings_that_change_by_themselves_are_left_out_unless_asked_for() -> None:
    gpu = world.gpu(0, "l40s")
    assert only(one_gpu(gpu)).health == ("power limit 350 W", "ECC on", "persistence on")
    assert only(one_gpu(gpu, live=True)).health == ("39 °C", "83 W", "512 MiB in use now", "power limit 350 W", "ECC on", "persistence on")


def test_what_could_not_be_read_is_left_out_and_odd_modes_are_said() -> None:
    nothing = dict.fromkeys(("temperature_c", "power_w", "memory_used_mib", "power_limit_w", "ecc", "persistence", "compute_mode"))
    assert only(one_gpu(world.gpu(0, "l40s", **nothing), live=True)).health == ()
    odd = world.gpu(0, "l40s", ecc={"current": False, "pending": False}, persistence=False, compute_mode="exclusive_process")
    assert only(one_gpu(odd)).health == ("power limit 350 W", "ECC off", "persistence off", "compute mode exclusive process")


# --- hosts -------------------------------------------------------------------------------------------------------------------


def test_a_host_without_driver_without_gpu_and_without_facts_each_says_so() -> None:
    bare = world.host(driver={"present": False, "version": None, "cuda": None, "error": "NVML: Driver Not Loaded"})
    silent = world.host(driver={"present": False})
    report = build(
        Inputs({"a": bare, "b": world.host(), "d": silent, "e": world.host(errors=["docker: no socket."])}, {"c": world.plan(1, [], [])})
    )
    notes = {host.name: host.notes for host in report.hosts}
    assert notes["a"] == ("No driver: NVML: Driver Not Loaded.",)
    assert notes["b"] == ("This host has no GPU.",)
    assert notes["c"] == ("There are no facts of this host: it was not reached, and its GPUs are not in the figures.",)
    assert notes["d"] == ("No driver: the NVIDIA driver or its library is not there.",)
    assert notes["e"] == ("This host has no GPU.", "docker: no socket.")
    assert [(alert.where, alert.text) for alert in report.alerts if alert.grave and "a" in alert.where.split("; ")] == [
        ("a", notes["a"][0])
    ]
    assert [host.sensed for host in report.hosts] == [True, True, False, True, True]


def test_a_planned_gpu_that_is_not_on_the_host_is_said_and_its_replica_has_no_place() -> None:
    gone = world.gpu(5, "l40s")
    plans = {"h": world.plan(1, [world.mode(gone, "whole")], [world.on_gpu("chat", 1, [gone])])}
    report = build(Inputs({"h": world.host(serial=1)}, plans, (), (CHAT,)))
    assert report.hosts[0].notes == ("This host has no GPU.", f"{gone['uuid']} is in the plan and not on the host.")
    (row,) = report.replicas
    assert (row.place, row.gpus, row.given_mib) == ("GPU not found", (gone["uuid"],), None)


def test_a_replica_on_a_host_that_was_not_reached_says_so() -> None:
    gone = world.gpu(5, "l40s")
    report = build(Inputs({}, {"h": world.plan(1, [], [world.on_gpu("chat", 1, [gone])])}, (), (CHAT,)))
    assert report.replicas[0].place == "host not reached"
    assert "Plan" not in " ".join(alert.text for alert in report.alerts)


def test_a_host_that_is_down_is_said_with_who_is_on_it_and_has_nothing_to_give_away() -> None:
    gpus = [world.gpu(0, "l40s"), world.gpu(1, "l40s")]
    plans = {"h": world.plan(2, [world.mode(gpus[0], "whole")], [world.on_gpu("chat", 1, [gpus[0]])])}
    report = build(Inputs({"h": world.host(*gpus, serial=1)}, plans, (), (CHAT,), down={"h"}))
    words = "This host is down (fleet_down_hosts): what is said of it is from the facts of before. On it: chat-1."
    assert [(alert.grave, alert.where, alert.text) for alert in report.alerts] == [(True, "h", words)]
    assert (report.mib("free"), report.mib("aside"), report.modes()) == (0, 2 * 46068, {"out": 2})
    assert report.replicas[0].place == "host down"


@pytest.mark.parametrize(
    ("carried", "text"),
    [
        ({"serial": 1, "state": "started"}, "Plan 1 is not carried out: the host carries plan 1 started."),
        ({"serial": 0, "state": "done"}, "Plan 1 is not carried out: the host carries plan 0 done."),
        (None, "Plan 1 is not carried out: the host carries no plan."),
        ({"serial": 1, "state": "done"}, None),
    ],
)
def test_a_plan_that_the_host_does_not_carry_is_said(carried: Data | None, text: str | None) -> None:
    gpu = world.gpu(0, "l40s")
    plan = world.plan(1, [world.mode(gpu, "whole")], [world.on_gpu("ocr", 1, [gpu])])
    report = build(Inputs({"h": world.host(gpu, plan=carried)}, {"h": plan}))
    assert [(alert.grave, alert.text) for alert in report.alerts] == ([(False, text)] if text else [])
    assert report.hosts[0].plan == 1


def test_a_plan_of_an_adoption_that_asks_nothing_of_its_host_is_no_alert() -> None:
    gpu = world.gpu(0, "a100", ["1g.10gb@0"])
    line = {**world.on_slice("ocr", 1, gpu, "1g.10gb@0"), "lifecycle": "adopted"}

    def alerts(layout: t.Sequence[Data], services: t.Sequence[Data]) -> list[str]:
        plans = {"h": world.plan(1, layout, services)}
        return [alert.text for alert in build(Inputs({"h": {**world.host(gpu), "plan": None}}, plans, (), (OCR,))).alerts]

    as_found = world.cut(gpu, "1g.10gb@0")
    assert alerts(as_found, [line]) == []
    waits = "Plan 1 is not carried out: the host carries no plan."
    assert waits in alerts(world.cut(gpu, "1g.10gb@0", "1g.10gb@1"), [line])
    assert waits in alerts(as_found, [world.on_slice("ocr", 1, gpu, "1g.10gb@0")])


def test_hosts_show_what_runs_on_them() -> None:
    report = build(Inputs({"h": world.host(serial=3)}, policies={"h": Policy("production")}))
    (host,) = report.hosts
    assert (host.driver, host.cuda, host.flavour, host.os) == ("580.105.08", "13.0", "open", "debian 13")
    assert (host.environment, host.plan, host.carried) == ("production", None, "3 done")


def test_a_plan_in_which_two_replicas_hold_one_slice_or_one_whole_gpu_is_refused() -> None:
    gpu = world.gpu(0, "a100", ["1g.10gb@0"])
    services = [world.on_slice("ocr", 2, gpu, "1g.10gb@0"), world.on_slice("ocr", 1, gpu, "1g.10gb@0")]
    with pytest.raises(
        FleetError, match=r"^plan of h: ocr-1 and ocr-2 both hold slice 1g\.10gb@0 of GPU-00000000-\S+; give each its own place$"
    ):
        one_gpu(gpu, world.cut(gpu, "1g.10gb@0"), services)
    with pytest.raises(FleetError, match=r"chat-1 and ocr-1 both hold GPU-0"):
        one_gpu(gpu, [world.mode(gpu, "whole")], [world.on_gpu("ocr", 1, [gpu]), world.on_gpu("chat", 1, [gpu])])


def test_a_plan_entry_without_its_keys_is_refused() -> None:
    with pytest.raises(FleetError, match="plan of h: an entry lacks 'replica'; make the plan again"):
        one_gpu(world.gpu(0), [], [{"service": "ocr", "gpu": "GPU-1", "mode": "whole"}])


# --- services, teams, totals -------------------------------------------------------------------------------------------------


def test_unplaced_replicas_with_one_reason_are_one_row() -> None:
    unplaced: list[Data] = [
        {"service": "chat", "replica": 2, "reason": "too large"},
        {"service": "chat", "replica": 1, "reason": "too large"},
        {"service": "chat", "replica": 3, "reason": "no port"},
        {"service": "unknown"},
    ]
    report = build(Inputs({}, {}, unplaced, (CHAT, OCR)))
    assert [(row.service, row.replicas, row.team, row.environment, row.reason) for row in report.unplaced] == [
        ("chat", (3,), "assistant", "production", "no port"),
        ("chat", (1, 2), "assistant", "production", "too large"),
        ("unknown", (1,), None, None, "no reason given"),
    ]
    assert report.unplaced_services == ("chat", "unknown")
    assert report.waiting == ("ocr",)
    assert (report.services, report.placed_services) == (3, ())


def test_replicas_that_the_plans_do_not_know_yet_are_waiting() -> None:
    gpu = world.gpu(0, "l40s")
    plans = {"h": world.plan(1, [world.mode(gpu, "whole")], [world.on_gpu("chat", 1, [gpu])])}
    known = [Service("chat", "a", "e", 3), Service("idle", "a", "e", 2), Service("left", "a", "e", 1)]
    report = build(Inputs({"h": world.host(gpu)}, plans, [{"service": "left"}, {"service": "chat", "replica": 2}], known))
    assert report.waiting == ("chat (2 of 3 replicas planned)", "idle")


def test_a_replica_that_keeps_a_place_for_want_of_another_counts_once() -> None:
    gpu = world.gpu(0, "l40s")
    plans = {"h": world.plan(1, [world.mode(gpu, "whole")], [world.on_gpu("chat", 1, [gpu])])}
    report = build(Inputs({"h": world.host(gpu, serial=1)}, plans, [{"service": "chat", "replica": 1}], (Service("chat", "a", "e", 2),)))
    assert report.summary()["replicas"] == {"placed": 0, "unplaced": 1}
    assert report.waiting == ("chat (1 of 2 replicas planned)",)


def test_a_service_with_one_replica_left_over_is_not_placed() -> None:
    gpu = world.gpu(0, "l40s")
    plans = {"h": world.plan(1, [world.mode(gpu, "whole")], [world.on_gpu("chat", 1, [gpu])])}
    report = build(Inputs({"h": world.host(gpu, serial=1)}, plans, [{"service": "chat", "replica": 2, "reason": "full"}], (CHAT,)))
    assert (report.placed_services, report.unplaced_services) == ((), ("chat",))
    assert report.summary()["replicas"] == {"placed": 1, "unplaced": 1}


def test_a_placed_service_without_manifest_has_no_team_and_its_memory_is_still_allocated() -> None:
    gpu = world.gpu(0, "l40s")
    report = one_gpu(gpu, [world.mode(gpu, "whole")], [world.on_gpu("ghost", 1, [gpu])], known=(), policy=Policy("training"))
    (row,) = report.replicas
    assert (row.team, row.environment, row.asked_mib, row.asked_profile, row.adopted) == (None, "training", None, None, False)
    assert report.mib("held") == 46068
    assert report.teams == ()


def test_rows_carry_what_was_asked_for() -> None:
    gpu = world.gpu(0, "a100", ["1g.10gb@0"])
    service = Service("embed", "assistant", "staging", 1, None, "1g.10gb", adopted=True)
    plan = world.on_slice("embed", 1, gpu, "1g.10gb@0", http=18001, admin=18000)
    report = one_gpu(gpu, world.cut(gpu, "1g.10gb@0"), [plan], (service,))
    (row,) = report.replicas
    assert (row.name, row.asked_mib, row.asked_profile, row.given_mib, row.adopted) == ("embed-1", None, "1g.10gb", 9856, True)
    assert (row.part, row.ports, row.environment, row.host) == ("1g.10gb@0", ("admin 18000", "http 18001"), "staging", "h")


def test_the_small_fleet_adds_up() -> None:
    report = build(world.small())
    summary = report.summary()
    assert summary["gpus"] == 9
    assert summary["modes"] == {"mig": 3, "whole": 2, "shared": 1, "unassigned": 2, "out": 1}
    assert summary["memory_mib"]["total"] == 2 * 81920 + 3 * 81559 + 4 * 46068
    assert sum(summary["memory_mib"][kind] for kind in (*KINDS, "overhead")) == summary["memory_mib"]["total"]
    assert summary["memory_mib"]["stranded"] == 11392 + 10368
    assert summary["services"] == {"known": 11, "placed": 10, "unplaced": ["video-search"]}
    assert summary["replicas"] == {"placed": 16, "unplaced": 2}
    assert sum(team.mib for team in report.teams) == report.mib("held")
    claims = next(team for team in report.teams if team.name == "claims")
    assert (claims.services, claims.replicas, claims.slices, claims.mib) == (2, 7, 7, 7 * 9856)
    assert summary["stranded"][0]["better"][0] == "6x1g.10gb + 1g.20gb"
    assert summary["alerts"][0] == "gpu-train-01, GPU 2: This GPU is lost (NVML: GPU is lost)."
    prod = report.hosts[0]
    assert (prod.memory_mib, prod.held_mib) == (163840, 7 * 9856 + 40192 + 19968)


@pytest.mark.parametrize("inputs", [world.small(), world.large()], ids=["small", "large"])
def test_every_gpu_is_covered_without_gap_and_adds_up_to_its_memory(inputs: Inputs) -> None:
    for gpu in build(inputs).gpus:
        assert covers_its_axis(gpu), gpu
        assert gpu.mib(*KINDS) + gpu.overhead_mib == gpu.memory_mib


@given(st.lists(st.tuples(st.sampled_from(world.NAMES), st.integers(0, 7)), max_size=7), st.sampled_from(["a100", "h100"]))
def test_whatever_slices_are_there_the_drawing_covers_the_board_once(wanted: list[tuple[str, int]], board: str) -> None:
    slices = [f"{name}@{start}" for name, start in wanted]
    gpu = only(one_gpu(world.gpu(0, board, slices)))
    assert covers_its_axis(gpu)
    assert gpu.mib(*KINDS) + gpu.overhead_mib == gpu.memory_mib
    assert bool(gpu.better) == bool(gpu.stranded_slices)


def test_the_order_of_the_input_changes_nothing() -> None:
    inputs = world.small()
    expected = build(inputs)
    mixed = random.Random(3)
    for _turn in range(5):
        facts = {name: {**value, "gpus": mixed.sample(value["gpus"], len(value["gpus"]))} for name, value in inputs.facts.items() if value}
        plans = {
            name: {**value, "services": mixed.sample(value["services"], len(value["services"]))} for name, value in inputs.plans.items()
        }
        order = mixed.sample(sorted(facts), len(facts))
        shuffled = dataclasses.replace(
            inputs,
            facts={name: facts[name] for name in order},
            plans={name: plans[name] for name in reversed(order)},
            services=mixed.sample(inputs.services, len(inputs.services)),
            unplaced=mixed.sample(inputs.unplaced, len(inputs.unplaced)),
        )
        assert build(shuffled) == expected


def test_stranded_memory_is_summed_over_gpus_of_one_board_and_layout_the_most_first() -> None:
    facts = world.host(*(world.gpu(n, "a100", SEVEN) for n in range(3)), world.gpu(3, "h100", SEVEN))
    rows = build(Inputs({"h": facts})).stranded
    assert [(row.board, row.gpus, row.slices, row.mib) for row in rows] == [
        ("A100-SXM4-80GB", 3, 3, 3 * 11392),
        ("H100 80GB HBM3", 1, 1, 81152 - 7 * 9984),
    ]


def test_alerts_of_one_text_are_one_line_and_the_grave_come_first() -> None:
    lost = world.gpu(2, "l40s", state="lost")
    report = build(
        Inputs(
            {"a": world.host(world.gpu(0, "l40s"), world.gpu(1, "l40s")), "b": world.host(lost)},
            policies={"a": Policy(cordoned=("0", "1"))},
        )
    )
    assert [(alert.grave, alert.where, alert.text) for alert in report.alerts] == [
        (True, "b, GPU 2", "This GPU is lost."),
        (False, "a, GPU 0; a, GPU 1", "Cordoned: nothing new is placed here."),
    ]
