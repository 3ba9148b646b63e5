# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input ends a real ansible-playbook with one clear line; no file is written and no host is touched."""

from __future__ import annotations

import re
import typing as t

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.written import Origin

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Site

pytestmark = pytest.mark.measured

OCR = "ocr.yml"


@pytest.fixture(scope="module")
def planned(make_site: MakeSite) -> Site:
    """One host with two A100, one service planned on it."""
    site = make_site(host_a="a100-80gb:2")
    site.variables("host-a", fleet_gpu_modes=["mig"])
    site.manifest("ocr")
    site.done("plan")
    return site


def refused(site: Site, playbook: str = "plan", *, early: bool = False) -> str:
    """Run a playbook that must fail and change nothing, ``early``: before a host is read; returns its message."""
    files, calls = site.files(), site.mutations()
    run = site.play(playbook)
    message = run.message()
    assert site.files() == files, "a file was written"
    read = "Read the facts of the host" in run.output
    assert not (early and read), "hosts were read first"
    assert site.mutations() == calls == {host: [] for host in site.hosts}, "a GPU was touched"
    assert all(counts["changed"] == 0 for counts in run.recap.values())
    return message


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("gpu:", "gqu:"), "6: gqu: unknown field 'gqu'; did you mean 'gpu'?"),
        (("memory: 8 GiB", "memory: 8"), "8: gpu.memory: 8 has no unit; write '8 MiB' or '8 GiB'"),
        (("schema: 1", "schema: 1\nreplicas: two"), "2: replicas: expected a whole number, found 'two'; write a number such as 2"),
        (("team: claims", "team: [claims"), None),
    ],
    ids=["unknown field", "no unit", "wrong type", "not YAML"],
)
def test_a_bad_manifest_is_refused_with_its_line(planned: Site, change: tuple[str, str], line: str | None) -> None:
    path = planned.manifest("ocr")
    good = path.read_text(encoding="utf-8")
    assert change[0] in good
    path.write_text(good.replace(*change), encoding="utf-8")
    try:
        message = refused(planned, early=True)
    finally:
        path.write_text(good, encoding="utf-8")
    assert "\n" not in message
    if line is not None:
        assert message == f"{path}:{line}"
    else:
        assert re.match(rf"{re.escape(str(path))}:\d+: not YAML", message), message


def test_two_services_of_one_name_are_refused_with_both_places(planned: Site) -> None:
    other = planned.manifests / "zweite.yml"
    other.write_text((planned.manifests / OCR).read_text(encoding="utf-8"), encoding="utf-8")
    try:
        message = refused(planned, early=True)
    finally:
        other.unlink()
    first = planned.manifests / OCR
    assert message == (
        f"{other}:2: service: 'ocr' is already described in {first}:2; give one of them another name, or remove one of the files"
    )


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"fleet_gpu_layouts": [{"gpu": 0, "mode": "mig", "slices": ["3g.40gb@1"]}]},
            "host host-a: fleet_gpu_layouts[0].slices: an impossible layout: ",
        ),
        (
            {"fleet_gpu_layouts": [{"gpu": "GPU-none", "mode": "whole"}]},
            "host host-a: fleet_gpu_layouts[0]: there is no GPU 'GPU-none'; this host has ",
        ),
        ({"fleet_gpu_modes": "mig"}, "host host-a: fleet_gpu_modes: expected a list, found 'mig'; "),
        (
            {"fleet_cordoned_gpu": []},
            "host host-a: fleet_cordoned_gpu: unknown variable 'fleet_cordoned_gpu'; did you mean 'fleet_cordoned_gpus'?",
        ),
    ],
    ids=["impossible layout", "unknown GPU", "wrong type", "unknown variable"],
)
def test_a_bad_policy_is_refused_with_its_host_and_variable(planned: Site, variables: dict[str, t.Any], line: str) -> None:
    planned.variables("host-a", **variables)
    try:
        message = refused(planned, early="host-a: fleet_gpu_layouts" not in line)
    finally:
        planned.variables("host-a", fleet_gpu_modes=["mig"])
    assert message.startswith(line)
    assert "\n" not in message
    if Origin is not None:
        assert re.search(r" \(/\S+:[0-9]+\)$", message), message


def test_check_refuses_what_plan_refuses(planned: Site) -> None:
    path = planned.manifest("ocr", gpus={"memory": "8 GiB"})
    try:
        message = refused(planned, "check", early=True)
    finally:
        planned.manifest("ocr")
    assert message.startswith(f"{path}:")
    assert "unknown field 'gpus'; did you mean 'gpu'?" in message


def test_apply_refuses_a_manifest_that_changed_since_the_plan(planned: Site) -> None:
    path = planned.manifest("ocr", env={"LOG_LEVEL": "debug"})
    try:
        message = refused(planned, "apply")
    finally:
        planned.manifest("ocr")
    plan = planned.plans / "host-a.yml"
    assert message == f"{plan}: ocr: {path} has changed since plan 1 was made; run playbook plan again"


def test_apply_refuses_a_plan_that_was_edited_by_hand(planned: Site) -> None:
    path = planned.plans / "host-a.yml"
    good = path.read_text(encoding="utf-8")
    plan = yaml.safe_load(good)
    plan["layout"][1]["start"] = (plan["layout"][1]["start"] + 1) % 7
    path.write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    try:
        message = refused(planned, "apply")
    finally:
        path.write_text(good, encoding="utf-8")
    assert message.startswith(f"{path}:4: digest: ")
    assert message.endswith("; take it back from Git, or remove it and run playbook adopt; plans are not edited by hand")


def test_a_wrong_setting_is_refused_before_a_host_is_read(planned: Site) -> None:
    planned.variables("host-a", fleet_gpu_access="usb")
    try:
        message = refused(planned, early=True)
    finally:
        planned.variables("host-a", fleet_gpu_modes=["mig"])
    # These words are ansible-core's, which checks a role's arguments.
    assert message.endswith("value of fleet_gpu_access must be one of: auto, nvidia, cdi, got: usb")
