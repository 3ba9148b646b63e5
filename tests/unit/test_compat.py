# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate against its sources: every case of the table with the answer that a page gives, and what must hold for all of them."""

from __future__ import annotations

import copy
import re
import typing as t
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat import Gate, judge, named
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import CompatGpu, CompatHost, CompatImage, Verdict, host_of, image_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts, version
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_requires import Properties, Unreadable, holds
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, read_yaml
from hypothesis import given, settings
from hypothesis import strategies as st

TABLE: dict[str, t.Any] = yaml.safe_load((Path(__file__).parent / "compat_cases.yml").read_text(encoding="utf-8"))
TODAY = "2026-11-21"
QUICK = settings(max_examples=150, derandomize=True, database=None, deadline=None)
OF_HOST = {
    **{
        name: name
        for name in (
            "present",
            "driver",
            "flavour",
            "kernel",
            "gcc",
            "kernel_gcc",
            "engine",
            "docker",
            "cdi",
            "runtime",
            "specs",
            "vgpu_host",
        )
    },
    "toolkit": "container_toolkit",
}
OF_IMAGE = ("cuda", "capability", "forward", "mig", "runtime_capability", "runtime_driver")


@lru_cache(maxsize=1)
def located() -> Located:
    return door.read_data("compat.yml")


@lru_cache(maxsize=1)
def facts() -> CompatFacts:
    return CompatFacts(located())


def gpu_of(board: str, virtualization: str | None = None) -> CompatGpu:
    return CompatGpu(board, TABLE["boards"][board], virtualization)


def asked(case: dict[str, t.Any]) -> tuple[CompatHost, CompatGpu, CompatImage]:
    """A line of the table as what the gate is asked."""
    gpu = gpu_of(case["gpu"], case.get("virtualization"))
    system = case.get("os", [None, None])
    known = {there: case[here] for here, there in OF_HOST.items() if here in case}
    gpus = (gpu, gpu_of(case["beside"])) if "beside" in case else (gpu,)
    host = CompatHost("gpu-07", gpus, os_id=system[0], os_version=system[1], **known)
    declared = {name: case[name] for name in OF_IMAGE if name in case}
    variables = TABLE["images"][case["image"]] if "image" in case else None
    return host, gpu, image_of(facts(), case.get("reference", case.get("image", "image")), variables, **declared)


def answer_to(case: dict[str, t.Any], known: CompatFacts | None = None) -> Verdict:
    return judge(known or facts(), *asked(case), case.get("today"))


def rules(verdict: Verdict, effect: str) -> set[str]:
    return {each.rule for each in verdict.findings if each.effect == effect}


def line(case: dict[str, t.Any]) -> str:
    return "-".join(str(value) for key, value in case.items() if key not in ("source", "warns", "rule"))


# ---- the table


@pytest.mark.parametrize("case", TABLE["cases"], ids=line)
def test_each_case_has_the_answer_that_its_source_gives(case: dict[str, t.Any]) -> None:
    verdict = answer_to(case)
    assert verdict.answer == case["answer"], verdict.lines()
    if case["answer"] != "ok":
        assert case["rule"] in rules(verdict, case["answer"]), verdict.lines()
    if "warns" in case:
        # Whether CUDA is known is not what these cases are about.
        assert rules(verdict, "warn") - {"cuda-driver"} == set(case["warns"]), verdict.lines()


def test_the_table_is_large_has_no_case_twice_and_names_a_known_source_for_each() -> None:
    cases = TABLE["cases"]
    lines = [line(case) for case in cases]
    assert len(cases) >= 300
    assert len(set(lines)) == len(lines)
    assert {case["source"].partition(":")[0] for case in cases} <= set(located().data["sources"])
    assert {case["answer"] for case in cases} == {"ok", "limited", "no"}


def test_every_finding_names_its_source_and_whatever_blocks_says_what_to_do() -> None:
    for case in TABLE["cases"]:
        for each in answer_to(case).findings:
            assert each.source, each
            if each.effect == "no":
                assert each.remedy or each.rule == "cuda-driver", each


# ---- what holds for all


def with_confidence(confidence: str) -> CompatFacts:
    data = copy.deepcopy(located().data)
    for block in data.values():
        if isinstance(block, dict) and "conf" in block:
            block["conf"] = confidence
            for row in [*block.get("rows", []), *block.get("releases", [])]:
                if isinstance(row, dict) and "conf" in row:
                    row["conf"] = confidence
    return CompatFacts(read_yaml(yaml.safe_dump(data), "data/compat.yml"))


def test_what_nobody_has_verified_warns_and_blocks_nothing() -> None:
    unverified = with_confidence("U")
    own = {"driver", "image-floor", "engine"}  # of the host and of the image themselves, not of the facts
    for case in TABLE["cases"]:
        verdict = answer_to(case, unverified)
        assert rules(verdict, "no") | rules(verdict, "limited") <= own, verdict.lines()


# What each block of facts would say if it said nothing.
NOTHING: dict[str, tuple[str, t.Any]] = {
    **{name: ("rows", []) for name in ("families", "architectures", "systems", "gcc", "images")},
    "cuda_toolkits": ("releases", []),
    "vgpu": ("releases", {}),
    "branch_cuda": ("map", {}),
    "forward_compat": ("windows", {}),
    "mig": ("floors", {}),
}


@pytest.mark.parametrize("block", sorted(NOTHING))
def test_what_is_refused_or_limited_never_stands_on_the_one_block_that_nobody_has_verified(block: str) -> None:
    data = copy.deepcopy(located().data)
    data[block]["conf"] = "U"
    for row in [each for key in ("rows", "releases") for each in (data[block].get(key) or []) if isinstance(each, dict)]:
        row.pop("conf", None)
    unverified = CompatFacts(read_yaml(yaml.safe_dump(data), "data/compat.yml"))
    field, empty = NOTHING[block]
    data[block][field] = empty
    silent = CompatFacts(read_yaml(yaml.safe_dump(data), "data/compat.yml"))
    for case in TABLE["cases"]:
        verdict, without = answer_to(case, unverified), answer_to(case, silent)
        refused = rules(without, "no") | rules(without, "limited")
        assert rules(verdict, "no") | rules(verdict, "limited") <= refused, (verdict.lines(), without.lines())


def test_every_fact_names_where_it_was_read_and_how_sure_it_is() -> None:
    data = located().data
    blocks = {name: block for name, block in data.items() if name not in ("format", "sources")}
    assert len(blocks) >= 14
    used = set()
    for name, block in blocks.items():
        assert block["sources"], name
        used.update(block["sources"])
        for row in [block, *(each for key in ("rows", "releases") for each in (block.get(key) or []) if isinstance(each, dict))]:
            assert row.get("conf", block["conf"]) in ("A", "B", "C", "U"), (name, row)
    # A source is an address, or says that it is public and has none; none is listed for nothing.
    assert all(re.match(r"https://\S+|public source: ", text) for text in data["sources"].values())
    assert set(data["sources"]) - used <= {case["source"].partition(":")[0] for case in TABLE["cases"]} | {"openkm"}


@pytest.mark.parametrize("told", [True, False], ids=["nvml says it", "by the branch"])
def test_a_refusal_is_no_surer_than_what_the_driver_is_known_to_speak(told: bool) -> None:
    image = image_of(facts(), "image", ["CUDA_VERSION=13.0.2", "NVIDIA_REQUIRE_CUDA=cuda>=13.0"])
    host = CompatHost("gpu-07", (gpu_of("a100"),), present=True, driver="550.54.15", driver_cuda="12.4" if told else None)
    (found,) = [each for each in judge(facts(), host, gpu_of("a100"), image).findings if each.rule == "image-requires"]
    assert (found.effect, found.confidence) == ("no", "A" if told else "C")


RELEASES = sorted(
    {row["driver"] for row in located().data["cuda_toolkits"]["releases"]}
    | {row["floor"] for row in located().data["cuda_toolkits"]["releases"]}
    | set(located().data["mig"]["floors"].values())
    | {case["driver"] for case in TABLE["cases"] if "driver" in case},
    key=version,
)
CUDAS = [row["cuda"] for row in located().data["cuda_toolkits"]["releases"]]
ORDER = {"ok": 0, "limited": 1, "no": 2}


@st.composite
def images(draw: st.DrawFn) -> CompatImage:
    name = draw(st.sampled_from([None, *TABLE["images"]]))
    mig = draw(st.booleans())
    if name is not None:
        return image_of(facts(), name, TABLE["images"][name], mig=mig)
    return image_of(
        facts(), "image", cuda=draw(st.sampled_from([None, *CUDAS, "12.7", "13.9.1", "14.0"])), forward=draw(st.booleans()), mig=mig
    )


@st.composite
def hosts(draw: st.DrawFn) -> CompatHost:
    boards = draw(st.lists(st.sampled_from(sorted(TABLE["boards"])), min_size=1, max_size=3, unique=True))
    cdi, runtime = draw(st.sampled_from([(True, False), (False, True), (None, None), (False, False)]))
    return CompatHost(
        "gpu-07",
        tuple(gpu_of(board) for board in boards),
        present=True,
        driver=draw(st.sampled_from(RELEASES)),
        flavour=draw(st.sampled_from(["open", "proprietary", None])),
        cdi=cdi,
        runtime=runtime,
        container_toolkit=draw(st.sampled_from([None, "1.11.0", "1.17.8", "1.20.1"])),
    )


@QUICK
@given(host=hosts(), image=images(), data=st.data())
def test_a_newer_driver_of_the_same_branch_never_makes_an_answer_worse(host: CompatHost, image: CompatImage, data: st.DataObject) -> None:
    branch = version(host.driver)[0]
    newer = [each for each in RELEASES if version(each)[0] == branch and version(each) >= version(host.driver)]
    later = replace(host, driver=data.draw(st.sampled_from([*newer, f"{branch}.999.99"])))
    for gpu in host.gpus:
        before, after = judge(facts(), host, gpu, image), judge(facts(), later, gpu, image)
        assert ORDER[after.answer] <= ORDER[before.answer], (before.lines(), after.lines())


@QUICK
@given(host=hosts(), image=images(), driver=st.sampled_from(RELEASES))
def test_a_newer_branch_makes_no_of_ok_only_for_gpus_that_it_drops(host: CompatHost, image: CompatImage, driver: str) -> None:
    if version(driver) < version(host.driver):
        return
    for gpu in host.gpus:
        if judge(facts(), host, gpu, image).answer == "ok":
            after = judge(facts(), replace(host, driver=driver), gpu, image)
            assert after.answer == "ok" or rules(after, "no") == {"gpu-branch"}, after.lines()


@QUICK
@given(host=hosts(), image=images())
def test_what_is_not_known_blocks_nothing(host: CompatHost, image: CompatImage) -> None:
    for gpu in host.gpus:
        full = judge(facts(), host, gpu, image)
        for name in ("driver", "flavour", "cdi", "runtime", "container_toolkit"):
            less = judge(facts(), replace(host, **{name: None}), gpu, image)
            # With the flavour goes the knowledge that one of two GPUs is driven.
            assert rules(less, "no") - {"host-mix"} <= rules(full, "no"), (name, less.lines())
    unknown = CompatGpu("h900-sxm", None)
    assert judge(facts(), CompatHost("gpu-07", (unknown,)), unknown, CompatImage("image")).answer == "ok"


@QUICK
@given(host=hosts(), image=images())
def test_the_remedy_of_a_driver_that_is_too_old_is_one_that_every_gpu_of_the_host_has(host: CompatHost, image: CompatImage) -> None:
    for gpu in host.gpus:
        for each in judge(facts(), host, gpu, image, TODAY).findings:
            found = re.match(r"upgrade to R(\d+)(?:: (\S+) or newer)?", each.remedy)
            if not found or each.rule == "end-of-life":
                continue
            release = found[2] or f"{found[1]}.999"
            cured = replace(host, driver=release)
            assert each.rule not in rules(judge(facts(), cured, gpu, image, TODAY), "no"), (release, each)
            for other in host.gpus:
                ended = [one for one in judge(facts(), cured, other, image).findings if "any more: R" in one.message]
                assert version(host.driver) > version(release) or not ended, (release, ended)


@QUICK
@given(found=st.lists(hosts(), min_size=1, max_size=4), wanted=st.lists(images(), min_size=1, max_size=3))
def test_many_at_once_get_the_answers_that_each_would_get_alone(found: list[CompatHost], wanted: list[CompatImage]) -> None:
    fleet = [replace(host, name=f"gpu-{number:02}") for number, host in enumerate(found)]
    names = {host.name: host for host in fleet}
    for name, answers in Gate(facts(), TODAY).answers(fleet, wanted):
        host = names[name]
        for number, image in enumerate(wanted):
            alone = {
                gpu.board: judge(facts(), replace(host, gpus=tuple(sorted(host.gpus, key=lambda each: each.board))), gpu, image, TODAY)
                for gpu in host.gpus
            }
            found = {verdict.board: named(verdict, name, image.name) for verdict, numbers in answers if number in numbers}
            assert found == alone


# ---- words


def test_the_remedy_names_the_branch_the_release_and_the_gpu_that_ends_there() -> None:
    host = CompatHost("gpu-07", (gpu_of("v100"), gpu_of("h100")), driver="515.48.07")
    verdict = judge(facts(), host, gpu_of("v100"), CompatImage("image", cuda="12.4.1"), TODAY)
    assert verdict.findings[0].remedy == "upgrade to R580: 580.65.06 or newer; it is the last branch for the v100 in gpu-07"
    newer = judge(facts(), host, gpu_of("h100"), CompatImage("image", cuda="13.2.1"), TODAY)
    assert newer.findings[0].remedy == "upgrade to R580: 580.65.06 or newer; it is the last branch for the v100 in gpu-07"


def test_a_gpu_that_no_driver_helps_is_not_told_to_upgrade() -> None:
    host = CompatHost("gpu-07", (gpu_of("v100"),), driver="550.54.15")
    verdict = judge(facts(), host, gpu_of("v100"), CompatImage("image", cuda="13.0.2"), TODAY)
    remedies = [each.remedy for each in verdict.findings if each.effect == "no"]
    assert remedies == ["take an image with CUDA 12.9 or older, or another GPU", ""]


def test_a_verdict_as_lines_and_as_data() -> None:
    host = CompatHost("gpu-07", (gpu_of("b200"),), driver="580.95.05", flavour="proprietary")
    verdict = judge(facts(), host, gpu_of("b200"), CompatImage("ocr", cuda="13.0.2"))
    source = located().data["sources"]["openkm"]
    assert verdict.lines() == [
        f"gpu-07: b200: no: the proprietary kernel modules do not drive Blackwell: it needs the open ones (modules; {source})",
        "gpu-07: b200: remedy: install the open kernel modules on gpu-07",
    ]
    data = verdict.data()
    assert (data["host"], data["gpu"], data["image"], data["answer"]) == ("gpu-07", "b200", "ocr", "no")
    assert data["findings"][0]["rule"] == "modules"
    assert data["findings"][0]["confidence"] == "A"


# ---- images and hosts as they are read


def test_cuda_is_that_of_the_image_then_of_its_requirement_then_of_its_tag() -> None:
    tag = "nvcr.io/nvidia/tritonserver:25.10-vllm-python-py3@sha256:" + "a" * 64
    both = ["CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.3 brand=tesla,driver>=470,driver<471"]
    assert image_of(facts(), tag, both).cuda == "12.4.1"
    assert image_of(facts(), tag, both[1:]).cuda == "12.3"
    assert image_of(facts(), tag, []).cuda == "13.0.2"
    assert image_of(facts(), tag, both, cuda="12.9").cuda == "12.9"
    assert image_of(facts(), "example.com/ocr@sha256:" + "a" * 64).cuda is None


def test_requirements_are_and_between_variables_and_or_within_one() -> None:
    have = Properties((12, 2), (535, 104, 5), (8,), frozenset({"tesla"}))
    assert holds("cuda>=12.2", have)
    assert not holds("cuda>12.2", have)
    assert holds("cuda>=12.4 brand=tesla,driver>=535,driver<536", have)
    assert not holds("cuda>=12.4 brand=geforce,driver>=535,driver<536", have)
    assert holds("brand!=geforce,arch=8.0", have)
    assert holds("colour=green", have)
    assert holds("", have)
    for broken in ("cuda=>12", "cuda>=x", "brand>tesla", "tesla"):
        with pytest.raises(Unreadable):
            holds(broken, have)
    two = image_of(facts(), "image", ["NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_REQUIRE_ARCH=arch>=9.0"])
    host = CompatHost("gpu-07", (gpu_of("a100"),), driver="550.54.15")
    assert judge(facts(), host, gpu_of("a100"), two).answer == "no"
    broken_image = image_of(facts(), "image", ["CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda=>12"])
    verdict = judge(facts(), host, gpu_of("a100"), broken_image)
    assert verdict.answer == "ok"
    assert "image-requires" in rules(verdict, "warn")


def test_a_host_is_read_from_its_facts() -> None:
    catalogue = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
    sensed = {
        "host": {
            "os": {"id": "debian", "version": "13"},
            "kernel": "6.12.107",
            "gcc": {"installed": "14.2.0", "kernel": "14.2.0", "matching": True},
        },
        "driver": {"present": True, "version": "580.105.08", "cuda": "13.0", "flavour": "open", "vgpu_host": None},
        "engine": {
            "docker": {"present": True, "version": "28.3.0", "cdi": True, "runtimes": ["nvidia", "runc"]},
            "cdi_specs": [],
            "container_toolkit": "1.11.0",
        },
        "gpus": [{"device_id": None, "name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0", "virtualization": "none"}],
    }
    host = host_of("gpu-01", sensed, catalogue, {"container_toolkit": "1.20.1"})
    assert host.gpus == (CompatGpu("a100-sxm4-80gb", "8.0", "none"),)
    assert (host.driver, host.driver_cuda, host.flavour, host.docker, host.cdi, host.runtime, host.specs, host.container_toolkit) == (
        *("580.105.08", "13.0", "open", "28.3.0", True, True, False, "1.20.1"),
    )
    assert host_of("gpu-01", sensed, catalogue).container_toolkit == "1.11.0"
    assert (host.gcc, host.kernel_gcc, host.vgpu_host) == ("14.2.0", None, None)
    sensed["host"]["gcc"] = {"installed": "11.4.0", "kernel": "12.3.0", "matching": False}
    assert (host_of("gpu-01", sensed, catalogue).gcc, host_of("gpu-01", sensed, catalogue).kernel_gcc) == ("11.4.0", "12.3.0")
    # What a guest sees itself is what runs below it; the inventory is asked where it sees nothing.
    assert host_of("gpu-01", sensed, catalogue, {"vgpu_host": "595.71.03"}).vgpu_host == "595.71.03"
    sensed["driver"]["vgpu_host"] = "580.105.06"
    assert host_of("gpu-01", sensed, catalogue, {"vgpu_host": "595.71.03"}).vgpu_host == "580.105.06"
    assert host_of("gpu-02", {}, catalogue) == CompatHost("gpu-02")


# ---- the file of facts


def broken_facts(before: str, after: str) -> str:
    text = door.read_text(door.DATA / "compat.yml")
    assert before in text
    with pytest.raises(FleetError) as caught:
        CompatFacts(read_yaml(text.replace(before, after, 1), "data/compat.yml"))
    return str(caught.value)


def test_a_fact_that_cannot_be_one_is_named_with_its_line() -> None:
    wrong_version = broken_facts("first_cuda: '12.8'", "first_cuda: 'twelve'")
    assert re.fullmatch(
        r"data/compat\.yml:\d+: architectures\.rows\[12\]\.first_cuda: 'twelve' is not a version; write numbers with dots between, "
        r"as text, such as '535\.104\.05'",
        wrong_version,
    )
    assert "sources" in broken_facts("sources: [cuda_rn, mvc, cudnn]", "sources: []")
    assert "'nobody' is not among the sources" in broken_facts("sources: [cuda_rn, mvc, cudnn]", "sources: [nobody]")
    assert "colour" in broken_facts("{cuda: '13.0.2',", "{colour: red, cuda: '13.0.2',")


def test_the_paper_lists_every_rule_and_no_other() -> None:
    root = Path(__file__).resolve().parents[2]
    paper = (root / "docs" / "compat.md").read_text(encoding="utf-8").partition("## Rules")[2].partition("## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", paper, re.MULTILINE)
    listed = {word for cell in cells for word in re.findall(r"`([a-z-]+)`", cell)}
    code = "".join((root / "plugins" / "plugin_utils" / f"compat_{name}.py").read_text(encoding="utf-8") for name in ("rules", "around"))
    assert listed == set(re.findall(r'finding\((?:effect|"[a-z]+"), "([a-z-]+)"', code))
