# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan documents: their text, reading them back, and when a serial grows."""

from __future__ import annotations

import copy
import re
import typing as t

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import (
    HostPlan,
    fleet_text,
    make_host_plan,
    read_plan,
    to_text,
    unplaced_lines,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Solution, Unplaced
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu, gpu_facts, host, l40s, need, place, problem
from hypothesis import given
from hypothesis import strategies as st

MANIFEST = "sha256:" + "e" * 64
WORLD = host(gpu(0), gpu(1), gpu(2), l40s(3), modes=("mig", "whole", "shared"))
NEEDS = [
    need("ocr", replicas=2, ports=(("http", None),)),
    need("train", "exclusive", 60000, count=2),
    need("face", "shared", ports=(("http", None), ("metrics", 9400))),
]
SOLUTION = make_plan(problem([WORLD], NEEDS))
FACTS = facts([gpu_facts(0), gpu_facts(1), gpu_facts(2, slices="3g.40gb@4"), {**gpu_facts(3), "mig": None}])


def plan(previous: HostPlan | None = None, solution: Solution = SOLUTION, **more: t.Any) -> HostPlan:
    sensed = {**FACTS, **more}
    return make_host_plan(WORLD, solution, sensed, dict.fromkeys(("ocr", "train", "face"), MANIFEST), [], previous)


def test_the_text_has_one_decision_a_line() -> None:
    text = re.sub(r"sha256:[0-9a-f]{64}", "sha256:0", plan().text)
    assert text == (
        "plan: 1\n"
        "host: h1\n"
        "serial: 1\n"
        "digest: sha256:0\n"
        "base:\n"
        "  digest: sha256:0\n"
        "  gpus:\n"
        "    - {gpu: GPU-h1-0, mig: false, instances: []}\n"
        "    - {gpu: GPU-h1-1, mig: false, instances: []}\n"
        "    - {gpu: GPU-h1-2, mig: true, instances: [3g.40gb@4]}\n"
        "    - {gpu: GPU-h1-3, mig: false, instances: []}\n"
        "layout:\n"
        "  - {gpu: GPU-h1-0, pci: '0000:01:00.0', model: a100-sxm4-80gb, mode: whole}\n"
        "  - {gpu: GPU-h1-1, pci: '0000:02:00.0', model: a100-sxm4-80gb, mode: whole}\n"
        "  - {gpu: GPU-h1-2, pci: '0000:03:00.0', model: a100-sxm4-80gb, mode: mig}\n"
        "  - {gpu: GPU-h1-2, profile: 1g.10gb, start: 4}\n"
        "  - {gpu: GPU-h1-2, profile: 1g.10gb, start: 6}\n"
        "  - {gpu: GPU-h1-3, pci: '0000:04:00.0', model: l40s, mode: shared}\n"
        "services:\n"
        "  - {service: face, replica: 1, gpu: GPU-h1-3, mode: shared, ports: {http: 18000, metrics: 9400}, manifest: sha256:0}\n"
        "  - {service: ocr, replica: 1, gpu: GPU-h1-2, profile: 1g.10gb, start: 6, ports: {http: 18001}, manifest: sha256:0}\n"
        "  - {service: ocr, replica: 2, gpu: GPU-h1-2, profile: 1g.10gb, start: 4, ports: {http: 18002}, manifest: sha256:0}\n"
        "  - {service: train, replica: 1, gpus: [GPU-h1-0, GPU-h1-1], mode: whole, ports: {}, manifest: sha256:0}\n"
    )


def test_every_yaml_reader_reads_the_same_from_it() -> None:
    made = plan()
    assert read_yaml(made.text, "p").data == yaml.safe_load(made.text) == made.data
    assert read_plan("p", made.text) == made


def test_its_digests_are_those_that_the_host_computes() -> None:
    made = plan()
    plan_record.check_plan(made.data)
    assert made.data["base"]["digest"] == plan_record.digest_of_state(FACTS["gpus"])
    assert plan_record.begin(made.data, None, {gpu["uuid"]: plan_record.state_of(gpu) for gpu in FACTS["gpus"]}).needed


def test_placements_come_back_as_they_were_made() -> None:
    assert tuple(read_plan("p", plan().text).placements) == SOLUTION.placements


def test_an_adopted_service_is_marked() -> None:
    solution = make_plan(problem([WORLD], [need(adopted=True)], [place("ocr", "0:1g.10gb@1", http=80)]))
    made = make_host_plan(WORLD, solution, FACTS, {"ocr": MANIFEST}, ["ocr"], None)
    line = {
        "service": "ocr",
        "replica": 1,
        "gpu": "GPU-h1-0",
        "profile": "1g.10gb",
        "start": 1,
        "ports": {"http": 80},
        "lifecycle": "adopted",
    }
    assert made.data["services"] == [{**line, "manifest": MANIFEST}]
    assert read_plan("p", made.text).data == made.data
    assert not plan_record.managed(made.data["services"][0])


def test_only_what_decisions_touch_is_in_it() -> None:
    solution = make_plan(problem([WORLD], [need()]))
    made = make_host_plan(WORLD, solution, FACTS, {"ocr": MANIFEST}, [], None)
    assert [line["gpu"] for line in made.data["base"]["gpus"]] == ["GPU-h1-0"]
    elsewhere = make_plan(problem([WORLD], [need()], [place("ocr", "0:1g.10gb@1", on="h9")]))
    assert make_host_plan(WORLD, elsewhere, FACTS, {"ocr": MANIFEST}, [], None).data["services"] == []


def test_a_host_without_decisions_has_a_plan_that_says_so() -> None:
    made = plan(solution=Solution(()))
    assert made.data["layout"] == made.data["services"] == made.data["base"]["gpus"] == []
    assert made.text.endswith("  gpus: []\nlayout: []\nservices: []\n")
    assert read_plan("p", made.text).data == made.data


# Serial


def carried(made: HostPlan, **changes: t.Any) -> dict[str, t.Any]:
    return {"serial": made.data["serial"], "digest": made.data["digest"], "state": "done", **changes}


OTHER = "sha256:" + "f" * 64


def test_a_plan_whose_decisions_are_the_same_stays_byte_for_byte() -> None:
    first = plan()
    written = HostPlan(first.data, "# as the last run wrote it\n" + first.text)
    assert plan(written) is written
    assert plan(written, plan=carried(first)) is written
    assert plan(written, plan=carried(first, state="started")) is written
    assert plan(written, plan=carried(first, serial=0, digest=OTHER)) is written


def test_a_decision_that_changes_makes_the_serial_grow() -> None:
    first = plan()
    second = plan(first, solution=Solution(()))
    assert (second.data["serial"], second.data["layout"]) == (2, [])
    assert plan(second).data["serial"] == 3


def test_a_plan_that_its_host_has_carried_out_stays_though_the_host_has_changed() -> None:
    first = plan()
    rebooted = [{**gpu, "mig": {**gpu["mig"], "instances": []} if gpu["mig"] else None} for gpu in FACTS["gpus"]]
    assert plan(first, gpus=rebooted, plan=carried(first)) is first


def test_a_plan_that_no_host_has_begun_is_made_anew_when_its_base_has_changed() -> None:
    first = plan()
    changed = [{**gpu, "mig": {**gpu["mig"], "instances": []} if gpu["mig"] else None} for gpu in FACTS["gpus"]]
    for record in (None, carried(first, serial=0, digest=OTHER)):
        second = plan(first, gpus=changed, plan=record)
        assert (second.data["serial"], second.data["digest"]) == (2, first.data["digest"])
        assert second.data["base"]["gpus"][2]["instances"] == []


def test_a_plan_is_never_older_than_what_its_host_carries() -> None:
    first = plan()
    assert plan(None, plan=carried(first, serial=7, digest=OTHER)).data["serial"] == 8
    assert plan(first, plan=carried(first, serial=7, digest=OTHER)).data["serial"] == 8
    assert plan(first, plan=carried(first, serial=1, digest=OTHER)).data["serial"] == 2
    assert plan(first, solution=Solution(()), plan=carried(first, serial=0, digest=OTHER)).data["serial"] == 2


def test_a_lost_plan_file_comes_back_as_the_plan_that_the_host_carries() -> None:
    first = plan()
    assert plan(None, plan=carried(first, serial=7)).data["serial"] == 7
    assert plan(first, plan=carried(first, serial=7)).data["serial"] == 7
    assert plan(plan(first, solution=Solution(())), plan=carried(first, serial=2)).data["serial"] == 3


# Reading


def broken(**changes: t.Any) -> str:
    data = copy.deepcopy(dict(plan().data))
    data.update(changes)
    return to_text(data)


def refused(text: str) -> str:
    with pytest.raises(FleetError) as caught:
        read_plan("plans/h1.yml", text)
    return str(caught.value)


def test_a_plan_edited_by_hand_is_refused() -> None:
    assert refused(plan().text.replace("start: 6, ports", "start: 5, ports")) == (
        "plans/h1.yml:4: digest: the plan's layout or services are not those that its digest was made from; "
        "take it back from Git, or remove it and run playbook adopt; plans are not edited by hand"
    )
    assert refused(plan().text.replace("instances: [3g.40gb@4]", "instances: []")) == (
        "plans/h1.yml:6: base.digest: the plan's base is not the one that its digest was made from; "
        "take it back from Git, or remove it and run playbook adopt; plans are not edited by hand"
    )


@pytest.mark.parametrize(
    ("service", "wrong"),
    [
        ({"gpu": "GPU-1"}, True),
        ({"gpu": "GPU-1", "profile": "1g.10gb"}, True),
        ({"gpu": "GPU-1", "start": 0}, True),
        ({"gpu": "GPU-1", "mode": "whole"}, True),
        ({"gpus": ["GPU-1"], "mode": "shared"}, True),
        ({"gpus": ["GPU-1"], "profile": "1g.10gb", "start": 1}, True),
        ({"gpu": "GPU-1", "gpus": ["GPU-1"], "mode": "whole"}, True),
        ({"gpu": "GPU-1", "gpus": ["GPU-1"], "mode": "shared"}, True),
        ({"gpu": "GPU-1", "gpus": ["GPU-1"], "profile": "1g.10gb", "start": 1}, True),
        ({"gpu": "GPU-1", "profile": "1g.10gb", "start": 1, "mode": "whole"}, True),
        ({"gpu": "GPU-1", "profile": "1g.10gb", "mode": "shared"}, True),
        ({"gpu": "GPU-1", "start": 0, "mode": "shared"}, True),
        ({"gpu": "GPU-1", "profile": "1g.10gb", "start": 0}, False),
        ({"gpu": "GPU-1", "mode": "shared"}, False),
        ({"gpus": ["GPU-1"], "mode": "whole"}, False),
    ],
)
def test_a_service_names_exactly_one_place(service: dict[str, t.Any], wrong: bool) -> None:
    line = {"service": "ocr", "replica": 1, **service, "ports": {}, "manifest": MANIFEST}
    data = {**plan().data, "services": [line]}
    data["digest"] = plan_record.digest_of_plan(data["layout"], data["services"])
    text = to_text(data)
    if wrong:
        hint = "write gpu, profile and start; or gpu and 'mode: shared'; or gpus and 'mode: whole'"
        assert refused(text) == f"plans/h1.yml:20: services[0]: it names no place; {hint}"
    else:
        assert read_plan("p", text).data == data


def test_a_plan_of_another_form_is_refused() -> None:
    hint = "plan with the release of gpuops.fleet that wrote it, or a newer one"
    assert refused(broken(plan=2)) == f"plans/h1.yml:1: plan: form 2 of plans is of a newer release; {hint}"
    assert refused(broken(plan=0)) == "plans/h1.yml:1: plan: unknown value 0; write 1"
    assert refused("hello: 1\n") == "plans/h1.yml: this is no plan; move it elsewhere: this directory is for plans alone"
    assert refused(broken(serial=0)) == "plans/h1.yml:3: serial: 0 is not right; it must be at least 1"
    assert "plans/h1.yml:4: digest: 'x' does not have the right form" in refused(broken(digest="x"))
    assert refused(plan().text + "more: 1\n").startswith("plans/h1.yml:24: more: unknown field 'more'")
    assert refused("").startswith("plans/h1.yml:1: the file is empty")


# What has no place


def test_what_has_no_place_is_written_with_its_reason_and_help() -> None:
    lines = unplaced_lines([Unplaced("ocr", 2, "h1: it's full", "move 'x'")])
    assert lines == [{"service": "ocr", "replica": 2, "reason": "h1: it's full; what would help: move 'x'"}]
    text = fleet_text(lines)
    assert text == "plan: 1\nunplaced:\n  - {service: ocr, replica: 2, reason: 'h1: it''s full; what would help: move ''x'''}\n"
    assert yaml.safe_load(text)["unplaced"] == lines
    assert fleet_text([]) == "plan: 1\nunplaced: []\n"


@given(st.text())
def test_any_text_comes_back_from_yaml_as_it_was(reason: str) -> None:
    text = fleet_text([{"service": "a", "replica": 1, "reason": reason}])
    assert yaml.safe_load(text)["unplaced"][0]["reason"] == reason


@pytest.mark.parametrize(
    "word", ["yes", "No", "~", "null", "1", "1.5", "1e3", "0x1f", "0o7", "1:30", "2026-01-01", "a: b", "- a", "#x", "", "-", "a:"]
)
def test_words_that_could_be_taken_for_something_else_are_quoted(word: str) -> None:
    text = fleet_text([{"service": word, "replica": 1, "reason": word}])
    assert yaml.safe_load(text)["unplaced"][0] == {"service": word, "replica": 1, "reason": word}
    assert read_yaml(text, "f").data["unplaced"][0]["service"] == word
