# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module images: what images say of themselves is recorded by digest, once, and the gate reads it there."""

from __future__ import annotations

import typing as t
from functools import lru_cache
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.action import compat
from ansible_collections.gpuops.fleet.plugins.action.images import run
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat import judge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import CompatGpu, CompatHost, CompatImage, Verdict, image_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_table import image_of_service
from ansible_collections.gpuops.fleet.plugins.plugin_utils.images import read_record
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import to_text as plan_text

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")
OCR, CHAT, FORM = f"registry.example.com/ocr:1.4@{A}", f"registry.example.com/chat@{B}", f"registry.example.com/form@{C}"
SAYS = ["CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535,driver<536"]
GPU = "GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e"


def manifest(service: str, image: str, *more: str) -> str:
    head = f"schema: 1\nservice: {service}\nteam: claims\nenvironment: production\nimage: {image}\n"
    return "\n".join([head + "gpu: {isolation: exclusive, memory: 8 GiB}", *more, ""])


def found(variables: t.Any, *images: str, architecture: str | None = "amd64") -> dict[str, t.Any]:
    return {"changed": False, "found": {image: {"variables": variables, "architecture": architecture} for image in images}, "missing": {}}


class Site:
    """Manifests, plans and the record of a test."""

    def __init__(self, home: Path) -> None:
        self.home, self.record = home, home / "images.yml"
        for name in ("manifests", "plans"):
            (home / name).mkdir()
        for service, image in (("ocr", OCR), ("chat", CHAT), ("form", FORM)):
            self.describe(service, manifest(service, image))

    def describe(self, service: str, text: str) -> None:
        (self.home / "manifests" / f"{service}.yml").write_text(text, encoding="utf-8")

    def plan(self, host: str, *services: str) -> None:
        lines = [
            {"service": name, "replica": 1, "gpus": [GPU], "mode": "whole", "ports": {}, "manifest": "sha256:" + "0" * 64}
            for name in services
        ]
        data = {
            "plan": 1,
            "host": host,
            "serial": 1,
            "digest": plan_record.digest_of_plan([], lines),
            "base": {"digest": plan_record.digest_of_base([]), "gpus": []},
            "layout": [],
            "services": lines,
        }
        (self.home / "plans" / f"{host}.yml").write_text(plan_text(data), encoding="utf-8")

    def run(self, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        asked = {"path": str(self.record), "manifests": str(self.home / "manifests"), "plans": str(self.home / "plans"), "templates": []}
        return run({**asked, "again": False, "engines": {}, "registry": {}, "drop": False, "record": True, **more}, check, True)

    def recorded(self) -> dict[str, t.Any]:
        return read_record(str(self.record), self.record.read_text(encoding="utf-8"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# ---- the record


def test_images_that_are_not_recorded_are_wanted_and_hosts_whose_plan_has_them_are_named(site: Site) -> None:
    site.plan("gpu-01", "ocr", "chat")
    site.plan("gpu-02", "gone")
    result = site.run(record=False)
    assert result["wanted"] == [OCR, CHAT, FORM]
    assert result["hosts"] == {"gpu-01": [OCR, CHAT]}
    assert (result["changed"], result["images"], result["recorded"]) == (False, 3, 0)
    assert not site.record.exists()


def test_what_was_learnt_is_written_once_sorted_by_digest_and_read_back(site: Site) -> None:
    engines = {"gpu-01": found(SAYS, OCR), "gpu-02": {"skipped": True, "changed": False}, "gpu-03": {}}
    learnt: dict[str, t.Any] = {"engines": engines, "registry": found([], FORM, CHAT)}
    predicted = site.run(check=True, **learnt)
    assert not site.record.exists()
    result = site.run(**learnt)
    assert {**result, "diff": 0} == {**predicted, "diff": 0}
    assert (
        result["diff"]
        == predicted["diff"]
        == [{"before": "", "after": site.record.read_text(), "before_header": str(site.record), "after_header": str(site.record)}]
    )
    assert [line for line in site.record.read_text().splitlines() if not line.startswith("#")] == [
        "---",
        "format: 1",
        "images:",
        f"  {A}:",
        '    seen: "registry.example.com/ocr"',
        "    variables:",
        f'      - "{SAYS[0]}"',
        f'      - "{SAYS[1]}"',
        f"  {B}:",
        '    seen: "registry.example.com/chat"',
        "    variables: []",
        f"  {C}:",
        '    seen: "registry.example.com/form"',
        "    variables: []",
    ]
    assert result["lines"][:2] == [
        f"registry.example.com/ocr@{A[:19]} (ocr): CUDA 12.4.1, 1 more variable (told by gpu-01)",
        f"registry.example.com/chat@{B[:19]} (chat): no CUDA (told by its registry)",
    ]
    again = site.run(**learnt)
    assert (again["changed"], again["diff"], again["wanted"], again["lines"]) == (False, [], [], [])


def test_an_image_that_nobody_could_read_is_one_line_that_names_everybody_who_was_asked(site: Site) -> None:
    engines: dict[str, t.Any] = {f"gpu-0{number}": {"missing": {OCR: "the engine does not have it"}} for number in range(1, 7)}
    engines["gpu-07"] = {"unreachable": True, "msg": "Failed to connect\nvia ssh"}
    result = site.run(engines=engines, registry={"found": {}, "missing": {OCR: "registry.example.com: no whole answer in 20 s"}})
    assert result["missing"][0] == (
        f"registry.example.com/ocr@{A[:19]} (ocr): gpu-01, gpu-02, gpu-03, gpu-04 and 2 more: the engine does not have it; "
        "gpu-07: Failed to connect via ssh; its registry: registry.example.com: no whole answer in 20 s"
    )
    assert result["missing"][2] == f"registry.example.com/form@{C[:19]} (form): gpu-07: Failed to connect via ssh"
    assert site.run()["missing"][2] == f"registry.example.com/form@{C[:19]} (form): nobody was asked"
    assert not result["changed"]
    assert not site.record.exists()


def test_an_image_that_every_manifest_declares_is_no_unknown_one_and_is_asked_about_all_the_same(site: Site) -> None:
    site.describe("ocr", manifest("ocr", OCR, "needs: {cuda: '12.4'}"))
    site.describe("forms", manifest("forms", OCR, "needs: {cuda: '12.6'}"))
    down = {"found": {}, "missing": dict.fromkeys((OCR, CHAT, FORM), "registry.example.com: no whole answer in 20 s")}
    result = site.run(registry=down)
    assert result["wanted"] == [OCR, CHAT, FORM]
    assert [line.partition(": ")[0] for line in result["missing"]] == [
        f"registry.example.com/{name}@{digest[:19]} ({name})" for name, digest in (("chat", B), ("form", C))
    ]
    assert result["lines"][0] == (
        f"registry.example.com/ocr@{A[:19]} (forms, ocr): declared: CUDA 12.4 and 12.6; "
        "its registry: registry.example.com: no whole answer in 20 s"
    )
    # One that does not declare it leaves it unknown.
    site.describe("forms", manifest("forms", OCR, "needs: {capability: '8.0'}"))
    assert len(site.run(registry=down)["missing"]) == 3
    site.run(registry=found(SAYS, OCR))
    assert site.run(registry=down)["wanted"] == [CHAT, FORM]


def test_asked_again_another_answer_takes_the_place_of_the_old_and_none_leaves_it(site: Site) -> None:
    site.run(registry=found(SAYS, OCR, CHAT, FORM))
    assert site.run(registry=found(["CUDA_VERSION=11.8.0"], OCR))["changed"] is False
    result = site.run(again=True, registry=found(["CUDA_VERSION=11.8.0"], OCR))
    assert result["wanted"] == [CHAT, FORM]
    assert {digest: list(image.variables) for digest, image in site.recorded().items()} == {A: ["CUDA_VERSION=11.8.0"], B: SAYS, C: SAYS}


def test_what_no_manifest_uses_any_more_stays_until_it_is_to_be_dropped(site: Site) -> None:
    site.run(registry=found(SAYS, OCR, CHAT, FORM))
    (site.home / "manifests" / "form.yml").unlink()
    assert site.run()["changed"] is False
    assert site.run(drop=True)["recorded"] == 2
    assert sorted(site.recorded()) == [A, B]


def test_one_digest_under_two_names_is_one_entry_and_either_name_will_do(site: Site) -> None:
    site.describe("more", manifest("more", f"mirror.example.com/ocr@{A}"))
    assert site.run()["wanted"][:2] == [f"mirror.example.com/ocr@{A}", OCR]
    result = site.run(registry={"found": {OCR: {"variables": SAYS}}, "missing": {f"mirror.example.com/ocr@{A}": "no"}})
    assert result["lines"][0].startswith(f"mirror.example.com/ocr@{A[:19]} (more, ocr): CUDA 12.4.1")
    (site.home / "manifests" / "more.yml").unlink()
    assert site.run(again=True, registry=found(SAYS, OCR))["changed"] is False


def test_of_two_architectures_that_of_amd64_counts_whichever_host_comes_first(site: Site) -> None:
    arm, amd = found(["CUDA_VERSION=12.6.0"], OCR, architecture="arm64"), found(SAYS, OCR)
    for order in ({"a": arm, "b": amd}, {"a": amd, "b": arm}):
        site.run(again=True, engines=order)
        assert list(site.recorded()[A].variables) == SAYS


def test_nothing_but_what_the_gate_reads_comes_from_a_host_into_the_record(site: Site) -> None:
    engines = {"gpu-01": found([*SAYS, "API_KEY=secret"], OCR), "gpu-02": found("CUDA_VERSION=1", CHAT), "gpu-03": {"found": {FORM: 7}}}
    result = site.run(engines=engines)
    assert "API_KEY" not in site.record.read_text() + str(result)
    assert list(site.recorded()) == [A]
    assert result["missing"][0] == f"registry.example.com/chat@{B[:19]} (chat): gpu-02: its variables (Env) are not a list of text"


def test_labels_that_nobody_can_read_are_recorded_and_said(site: Site) -> None:
    result = site.run(registry=found(["CUDA_VERSION=banana", "NVIDIA_REQUIRE_CUDA=cuda=>12 whatever"], OCR))
    assert result["lines"][1:3] == [
        f"registry.example.com/ocr@{A[:19]} (ocr): its CUDA_VERSION 'banana' is not a release of CUDA, so the gate can only warn",
        f"registry.example.com/ocr@{A[:19]} (ocr): its NVIDIA_REQUIRE_CUDA cannot be read at 'cuda=>12', so the gate can only warn",
    ]
    assert A in site.recorded()


def test_an_adopted_image_without_a_digest_is_said_and_asks_nobody(site: Site) -> None:
    site.describe("old", manifest("old", "vllm/vllm-openai:latest", "lifecycle: adopted"))
    site.describe("none", manifest("none", "x", "lifecycle: adopted").replace("image: x\n", ""))
    result = site.run()
    assert result["images"] == 3
    assert result["lines"][-1] == "old: 'vllm/vllm-openai:latest' is not an image that is pinned by its digest: nothing is recorded of it"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format: 2\nimages: {}\n", "images.yml:1: format: unknown value 2; write 1"),
        (
            "format: 1\nimages:\n  sha256:abc: {seen: x, variables: []}\n",
            "images.yml:3: images.sha256:abc: 'sha256:abc' does not have the right form",
        ),
        (
            f"format: 1\nimages:\n  {A}:\n    seen: x\n    variables: [API_KEY=secret]\n",
            f"images.yml:5: images.{A}.variables: it has more than the gate reads; leave CUDA_VERSION",
        ),
        (
            f'format: 1\nimages:\n  {A}:\n    seen: x\n    variables: ["CUDA_VERSION=1\\n2"]\n',
            f"images.yml:5: images.{A}.variables: its variable CUDA_VERSION has a line break",
        ),
        ("format: 1\nimages:\n  - x\n", "images.yml:2: images: expected a mapping, found a list"),
    ],
)
def test_a_record_that_is_none_is_named_with_its_line_and_left_alone(site: Site, text: str, words: str) -> None:
    site.record.write_text(text, encoding="utf-8")
    with pytest.raises(FleetError) as caught:
        site.run(registry=found(SAYS, OCR))
    assert f"{site.home}/{words}" in str(caught.value)
    assert site.record.read_text(encoding="utf-8") == text


# ---- what the gate makes of it


@lru_cache(maxsize=1)
def facts() -> CompatFacts:
    return CompatFacts(door.read_data("compat.yml"))


def image_with(variables: t.Any, *needs: str) -> CompatImage:
    """As a service's manifest with this ``needs`` has it."""
    data = read_manifest("m.yml", manifest("ocr", OCR, *needs)).data()
    return image_of_service(facts(), data, door.read_data("runtimes.yml").data, {} if variables is None else {A: variables})


def verdict(image: CompatImage, driver: str, board: str = "l40s", capability: str = "8.9", **host: t.Any) -> Verdict:
    gpu = CompatGpu(board, capability)
    return judge(facts(), CompatHost("gpu-01", (gpu,), driver=driver, **host), gpu, image)


def warnings(judged: Verdict) -> list[str]:
    return [each.message for each in judged.findings if each.effect == "warn" and each.rule in ("image-variables", "cuda-driver")]


def test_the_gate_reads_the_record_and_what_it_is_given_goes_before(site: Site) -> None:
    site.run(registry=found(["CUDA_VERSION=13.0.2"], OCR, CHAT, FORM))
    gpu = {"device_id": None, "name": "NVIDIA L40S", "compute_capability": "8.9", "virtualization": "none"}
    hosts = {"gpu-01": {"facts": {"driver": {"present": True, "version": "550.54.15"}, "host": {}, "engine": {}, "gpus": [gpu]}}}
    asked = {"manifests": str(site.home / "manifests"), "hosts": hosts, "templates": [], "today": None}
    images = {FORM: ["CUDA_VERSION=12.4.1"]}
    for record, answers in ((site.record, ["no", "ok", "no"]), (site.home / "none.yml", ["ok", "ok", "ok"])):
        result = compat.run({**asked, "images": images, "images_file": str(record)})
        assert [each["answer"] for each in result["verdicts"]] == answers


def test_a_declared_cuda_rules_where_the_image_says_nothing() -> None:
    assert image_with(None, "needs: {cuda: '13.0'}").cuda == "13.0"
    assert verdict(image_with(None, "needs: {cuda: '13.0.2'}"), "550.54.15").answer == "no"
    judged = verdict(image_with([], "needs: {cuda: '12.4.1'}"), "550.54.15")
    assert (judged.answer, warnings(judged)) == ("ok", [])


def test_a_declared_cuda_that_is_newer_than_the_images_own_is_what_counts_with_a_warning() -> None:
    judged = verdict(image_with(SAYS, "needs: {cuda: '13.0.2'}"), "550.54.15")
    assert judged.answer == "no"
    assert warnings(judged) == ["CUDA 13.0.2 is declared, and its own variables say 12.4.1: the declared one is judged"]


@pytest.mark.parametrize(
    "variables", [["CUDA_VERSION=13.0.2"], ["CUDA_VERSION=13.0.2", "NVIDIA_REQUIRE_CUDA=cuda>=11.0"], ["NVIDIA_REQUIRE_CUDA=cuda>=13.0"]]
)
def test_a_declared_cuda_that_is_older_than_the_images_own_turns_no_no_into_an_ok(variables: list[str]) -> None:
    plain = verdict(image_with(variables), "550.54.15")
    judged = verdict(image_with(variables, "needs: {cuda: '12.4.1'}"), "550.54.15")
    assert plain.answer == judged.answer == "no"
    assert any("both are judged" in message for message in warnings(judged))
    # Nor does it hide what is wrong with itself: Blackwell has been known since 12.8.
    older = verdict(image_with(["CUDA_VERSION=12.8.1"], "needs: {cuda: '12.4.1'}"), "580.95.05", "b200", "10.0")
    assert verdict(image_with(["CUDA_VERSION=12.8.1"]), "580.95.05", "b200", "10.0").answer == "ok"
    assert older.answer == "no"


def test_every_declared_cuda_gives_at_best_the_answer_that_an_older_one_than_the_images_own_may_have() -> None:
    rank = {"no": 0, "limited": 1, "ok": 2}
    for own in ("11.8.0", "12.4.1", "12.8.1", "13.0.2"):
        for declared in ("10.2", "11.4.0", "12.2.0", "12.6.3"):
            for driver in ("450.80.02", "525.60.13", "550.54.15", "570.124.06", "580.95.05"):
                for board, capability in (
                    ("v100-sxm2-32gb", "7.0"),
                    ("a100-sxm4-80gb", "8.0"),
                    ("h100-pcie-80gb", "9.0"),
                    ("b200", "10.0"),
                ):
                    plain, both = (image_of(facts(), "x", [f"CUDA_VERSION={own}"], **more) for more in ({}, {"cuda": declared}))
                    if [int(part) for part in declared.split(".")] < [int(part) for part in own.split(".")]:
                        answers = [verdict(each, driver, board, capability).answer for each in (plain, both)]
                        assert rank[answers[1]] <= rank[answers[0]], (own, declared, driver, board)


@pytest.mark.parametrize("declared", ["12.4", "12.4.1"])
def test_a_declaration_that_agrees_with_the_image_is_no_contradiction(declared: str) -> None:
    image = image_with(SAYS, f"needs: {{cuda: '{declared}'}}")
    assert (image.cuda, image.doubts, image.undeclared) == ("12.4.1", (), None)


def test_an_older_tag_or_least_requirement_does_not_contradict_what_is_declared() -> None:
    image = image_with(["NVIDIA_REQUIRE_CUDA=cuda>=12.0"], "needs: {cuda: '12.8.1'}")
    assert (image.cuda, image.doubts, image.undeclared) == ("12.8.1", (), None)


def test_an_image_without_a_requirement_is_held_to_its_own_cuda_by_the_legacy_hook_whatever_is_declared() -> None:
    old = {"runtime": True, "cdi": False, "container_toolkit": "1.13.5", "engine": True}
    image = image_of(facts(), "x", ["CUDA_VERSION=12.4.1"], cuda="12.6.0")
    judged = verdict(image, "525.60.13", **old)
    assert judged.answer == "no"
    assert any(each.rule == "image-requires" and "'cuda>=12.4'" in each.message for each in judged.findings)


def test_a_cuda_version_that_is_none_blocks_nothing_and_is_said() -> None:
    judged = verdict(image_with(["CUDA_VERSION=banana"]), "550.54.15", "h100-pcie-80gb", "9.0")
    assert judged.answer == "ok"
    assert "its CUDA_VERSION 'banana' is not a release of CUDA" in warnings(judged)
    assert image_with(["CUDA_VERSION=banana", "NVIDIA_REQUIRE_CUDA=cuda>=... cuda>=12.2"]).cuda == "12.2"
    assert image_with(["CUDA_VERSION=12.6.0.022"]).cuda == "12.6.0.022"


def test_a_declared_capability_refuses_a_gpu_below_it_and_cuda_compat_helps_on_a_branch_that_has_it() -> None:
    assert verdict(image_with(SAYS, "needs: {capability: '9.0'}"), "550.54.15").answer == "no"
    assert verdict(image_with(SAYS, "needs: {capability: '8.9'}"), "550.54.15").answer == "ok"
    old = ["CUDA_VERSION=12.4.1"]
    a100 = ("470.256.02", "a100-sxm4-80gb", "8.0")
    assert verdict(image_with(old), *a100).answer == "no"
    assert verdict(image_with(old, "needs: {forward_compat: true}"), *a100).answer == "limited"


def test_a_change_of_what_is_declared_touches_no_replica() -> None:
    plain = read_manifest("m.yml", manifest("ocr", OCR)).digest()
    assert (
        read_manifest("m.yml", manifest("ocr", OCR, "needs: {cuda: '12.4.1', capability: '8.0', forward_compat: true}")).digest() == plain
    )


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ("{cuda: 12.4}", 'm.yml:7: needs.cuda: expected text, found 12.4; write it in quotes: "12.4"'),
        ("{cuda: 'twelve'}", "m.yml:7: needs.cuda: 'twelve' is not a release of CUDA; write it as in CUDA_VERSION of the image, in quotes"),
        ("{cuda: '12'}", "m.yml:7: needs.cuda: '12' is not a release of CUDA"),
        ("{cuda: '12.4.1 '}", "m.yml:7: needs.cuda: '12.4.1 ' is not a release of CUDA"),
        ("{capability: sm_90}", "m.yml:7: needs.capability: 'sm_90' is not a compute capability; write it in quotes: '8.0'"),
        ("{capability: 8.0}", "m.yml:7: needs.capability: expected text, found 8.0"),
        ("{forward_compat: 'yes'}", "m.yml:7: needs.forward_compat: expected true or false"),
        ("{driver: '535'}", "m.yml:7: needs.driver: unknown field 'driver'; known here: cuda, capability, forward_compat"),
        ("[]", "m.yml:7: needs: expected a mapping, found a list"),
    ],
)
def test_a_declaration_that_is_none_is_named_with_what_would_be_right(needs: str, words: str) -> None:
    with pytest.raises(FleetError) as caught:
        read_manifest("m.yml", manifest("ocr", OCR, f"needs: {needs}"))
    assert str(caught.value).startswith(words)
