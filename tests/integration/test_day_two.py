# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Day two by real ansible-playbook processes: drain and release, an exchanged board, layouts out and compared, GPUs explained."""

from __future__ import annotations

import json
import re
import typing as t
from dataclasses import dataclass

import pytest
import yaml

if t.TYPE_CHECKING:
    from pathlib import Path

    from fleet_site import MakeSite, Played, Site

pytestmark = pytest.mark.measured

LAB_1, LAB_2 = "lab-1", "lab-2"
HELD = {"holder": "bob", "purpose": "apply", "expires": 4102444800, "token": "x", "seconds": 60}
FAN = ("-e", "drain_reason=fan", "-e", "drain_until=2126-12-01", "-e", "fleet_holder=lin")


def slices(site: Site, host: str) -> list[str]:
    """Slices of the first GPU, as the simulator shows them."""
    gpu = json.loads(site.simctl(host, "show", "--json"))["gpus"][0]
    return sorted(f"{one['profile']}@{one['start']}" for one in gpu["mig"]["instances"])


def uuid(site: Site, host: str) -> str:
    """UUID of a host's first GPU."""
    return str(json.loads(site.simctl(host, "show", "--json"))["gpus"][0]["uuid"])


@pytest.fixture(scope="module")
def served(make_site: MakeSite) -> Site:
    """Two hosts with one A100 each, and two replicas of a service, one on each; nobody changes this site."""
    site = make_site(lab_1="a100-80gb:1", lab_2="a100-80gb:1")
    for host in (LAB_1, LAB_2):
        site.variables(host, fleet_gpu_modes=["mig"])
    site.manifest("ocr", replicas=2)
    site.done("plan")
    site.done("apply")
    return site


@pytest.fixture
def site(served: Site, tmp_path: Path) -> Site:
    """A copy of it, for a test that goes on from there."""
    return served.copy(tmp_path / "site")


@dataclass
class Story:
    """A GPU is drained, emptied and released."""

    site: Site
    gpu: str
    predicted: Played
    unchanged: bool
    drained: Played
    again: Played
    status: Played
    planned: Played
    applied: Played
    emptied: tuple[list[str], list[str], list[str]]
    refused: Played
    released: Played
    once_more: Played


@pytest.fixture(scope="module")
def story(served: Site, tmp_path_factory: pytest.TempPathFactory) -> Story:
    site = served.copy(tmp_path_factory.mktemp("story") / "site")
    site.done("plan")  # the facts of a copy name other paths: publish them
    gpu = uuid(site, LAB_2)
    files = site.files()
    arguments = ("--limit", LAB_2, "-e", "drain_gpu=0", *FAN)
    predicted = site.done("drain", "--check", "--diff", *arguments)
    unchanged = site.files() == files
    drained, again = site.done("drain", "--diff", *arguments), site.done("drain", *arguments)
    status, planned, applied = site.done("status"), site.done("plan"), site.done("apply")
    folder = site.work / LAB_2 / "services"
    emptied = (site.planned(LAB_1), site.planned(LAB_2), [path.name for path in folder.iterdir()])
    refused = site.play("release", "--limit", LAB_2, "-e", "drain_gpu=0", "-e", "fleet_holder=ann")
    release = ("release", "--limit", LAB_2, "-e", f"drain_gpu={gpu}", "-e", "fleet_holder=ann", "-e", "drain_over=lin")
    return Story(
        site,
        gpu,
        predicted,
        unchanged,
        drained,
        again,
        status,
        planned,
        applied,
        emptied,
        refused,
        site.done(*release),
        site.done(*release),
    )


def test_a_drain_says_who_is_there_and_what_comes_next_and_check_mode_promised_it(story: Story) -> None:
    assert story.unchanged
    promised = sorted(("Write what changed" if task == "Promise other facts" else task, host) for task, host in story.predicted.changed())
    assert promised == story.drained.changed() == [("Record it on the host", LAB_2), ("Write what changed", LAB_2)]
    for run in (story.predicted, story.drained):
        assert f"+{story.gpu}: drained by lin (fan) until 2126-12-01" in run.output
    assert story.again.changed() == []
    lines = story.drained.said()
    assert re.fullmatch(rf"{LAB_2} GPU \S+: drained by lin \(fan\) until 2126-12-01, since 20\S+Z", lines[0])
    assert re.split(r"  +", lines[2])[1:3] == ["1g.10gb@6", "ocr-2"]
    assert any("gpuops.fleet.plan --diff" in line for line in lines)
    assert not (story.site.work / LAB_2 / "state" / "lease.json").exists()


def test_status_shows_the_drain(story: Story) -> None:
    assert story.status.said()[-1].startswith(f"{LAB_2} GPU 0000:07:00.0: drained by lin (fan) until 2126-12-01")
    assert story.status.changed() == []


def test_plan_and_apply_empty_a_drained_gpu(story: Story) -> None:
    assert "it is drained" in story.planned.output
    assert story.emptied == (["ocr-1", "ocr-2"], [], [])


def test_another_person_releases_it_only_by_naming_who_drained_it(story: Story) -> None:
    assert story.refused.message().startswith(
        f"over: {story.gpu} is drained by lin (fan) until 2126-12-01; ask lin, or name whose drain it is"
    )
    assert ("Record it on the host", LAB_2) in story.released.changed()
    assert story.once_more.changed() == []
    assert not any("drained" in line for line in story.released.said())


def test_a_whole_host_and_no_place_elsewhere_what_is_there_stays_and_is_told(site: Site) -> None:
    for host in (LAB_1, LAB_2):
        site.done("drain", "--limit", host, *FAN)
    planned = site.play("plan")
    assert planned.status != 0
    assert f"ocr replica 1: its place, 1g.10gb@6 on {LAB_1} GPU-" in planned.message()
    assert "is drained by lin (fan) until 2126-12-01, and there is none elsewhere: " in planned.message()
    assert (site.planned(LAB_1), site.planned(LAB_2)) == (["ocr-1"], ["ocr-2"])
    assert site.done("apply").recap[LAB_1]["changed"] == 0
    report = site.done("report")
    assert report.status == 0
    assert "Drained by lin (fan) until 2126-12-01" in (site.work / "reports" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FAN, "name the host: --limit"),
        (("--limit", LAB_1), "say why: -e drain_reason='fan'"),
        (("--limit", LAB_1, *FAN, "-e", "drain_until=2020-01-01"), "until: 2020-01-01 is over: this host's clock says"),
        (("--limit", LAB_1, *FAN, "-e", "drain_gpu=7"), "gpu: there is no GPU '7' on this host"),
    ],
)
def test_a_drain_that_is_not_meant_so_is_refused_in_one_line(served: Site, options: tuple[str, ...], message: str) -> None:
    assert served.play("drain", *options).message().startswith(message)
    assert not (served.work / LAB_1 / "state" / "drains.json").exists()


def test_a_host_that_somebody_holds_is_not_drained(site: Site) -> None:
    (site.work / LAB_2 / "state" / "lease.json").write_text(json.dumps(HELD), encoding="utf-8")
    assert "this host is held by bob (apply)" in site.play("drain", "--limit", LAB_2, *FAN).message()
    assert not (site.work / LAB_2 / "state" / "drains.json").exists()


# An exchanged board


def exchange(site: Site, host: str, board: str = "a100-80gb:1") -> tuple[str, str]:
    """Take the host's board out and put a new one in; (old UUID, new UUID)."""
    old = uuid(site, host)
    site.simctl(host, "create", "--force", "--board", board, "--seed", "from the shop")
    new = uuid(site, host)
    assert old != new
    return old, new


def test_after_a_board_was_exchanged_replace_and_apply_make_slices_and_services_anew(site: Site) -> None:
    before = slices(site, LAB_2)
    untouched = site.mutations()[LAB_1]
    old, new = exchange(site, LAB_2)
    site.variables(LAB_2, fleet_gpu_modes=["mig"], fleet_cordoned_gpus=[old])
    variables = site.inventory / "host_vars" / f"{LAB_2}.yml"
    serial = site.plan(LAB_2)["serial"]
    refused = site.play("apply", "--limit", LAB_2)
    assert f"there is no GPU {old} on this host; nothing was changed" in refused.message()
    files = site.files()
    predicted = site.done("replace", "--check")
    assert site.files() == files
    replaced = site.done("replace")
    for run in (predicted, replaced):
        assert f"-  - {{gpu: {old}, pci: '0000:07:00.0', model: a100-sxm4-80gb, mode: mig}}" in run.output
        assert f"+  - {{gpu: {new}, pci: '0000:07:00.0', model: a100-sxm4-80gb, mode: mig}}" in run.output
        assert f"host_vars/{LAB_2}.yml:5: - {old} -> - {new}" in run.output
        assert run.changed() == [("Compare the hosts with their plans", LAB_1)]
    assert (site.plan(LAB_2)["serial"], old in variables.read_text(encoding="utf-8")) == (serial + 1, True)
    applied = site.done("apply")
    assert slices(site, LAB_2) == before == ["1g.10gb@6"]
    environment = (site.work / LAB_2 / "services" / "ocr-2" / ".env").read_text(encoding="utf-8")
    (device,) = re.findall(r"^GPU_0=(MIG-\S+)$", environment, re.MULTILINE)
    assert device in site.simctl(LAB_2, "show", "--json")
    assert {task for task, host in applied.changed() if host == LAB_1} <= {"Write what changed"}
    assert site.mutations()[LAB_1] == untouched
    site.variables(LAB_2, fleet_gpu_modes=["mig"])
    assert [run.changed() for run in (site.done("replace"), site.done("plan"), site.done("apply"))] == [[], [], []]


def test_the_inventory_is_rewritten_when_asked(site: Site) -> None:
    old, new = exchange(site, LAB_2)
    site.variables(LAB_2, fleet_gpu_modes=["mig"], fleet_cordoned_gpus=[old])
    site.done("replace", "-e", "replace_inventory=true")
    assert yaml.safe_load((site.inventory / "host_vars" / f"{LAB_2}.yml").read_text(encoding="utf-8"))["fleet_cordoned_gpus"] == [new]


def test_a_board_of_another_model_is_told_and_nothing_is_done(site: Site) -> None:
    old, _new = exchange(site, LAB_2, "h100-80gb:1")
    files = site.files()
    run = site.play("replace")
    assert run.message().startswith(f"{LAB_2} {old} (0000:07:00.0, a100-sxm4-80gb) is gone: in its slot is another model, NVIDIA H100")
    assert site.files() == files


# Layouts


def test_a_layout_goes_out_and_is_asserted_and_each_difference_is_told(site: Site) -> None:
    out = site.done("export", "-e", "label=before")
    assert ("Write the layout", LAB_1) in out.changed()
    file = site.work / "exports" / f"{LAB_2}.yaml"
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == {
        "version": "v1",
        "mig-configs": {"before": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 1}}]},
    }
    assert site.done("export", "-e", "label=before").changed() == []
    for host in (LAB_1, LAB_2):
        (site.work / host / "state" / "lease.json").write_text(json.dumps(HELD), encoding="utf-8")
    calls, files = site.mutations(), site.files()
    arguments = ("-e", f"assert_config={file}", "-e", "label=before")
    assert site.done("assert", *arguments).changed() == []
    gpu = uuid(site, LAB_2)
    (site.work / "wanted.yaml").write_text(
        "version: v1\nmig-configs:\n  'off':\n  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}}\n",
        encoding="utf-8",
    )
    files = site.files()
    run = site.play("assert", "-e", "assert_config=wanted.yaml", "-e", "label=off", "--limit", LAB_2)
    assert run.status != 0
    assert [line.rpartition(" ")[0] for line in run.said()] == [f"{gpu}: create {each} at memory slice" for each in ("3g.40gb", "1g.10gb")]
    assert run.message().startswith(f"{LAB_2} differs from off: {gpu}: create ")
    assert (site.mutations(), site.files()) == (calls, files)


def test_a_layout_file_or_label_that_is_not_there_is_told_in_one_line(served: Site) -> None:
    assert served.play("assert").message().startswith("name the file and one of its labels: -e assert_config=")
    assert "no such layout file" in served.play("assert", "-e", "assert_config=nowhere.yaml", "-e", "label=a").message()


# Explained


def test_a_gpu_and_a_layout_are_explained_without_touching_anything(served: Site) -> None:
    files, calls = served.files(), served.mutations()
    lines = served.done("explain", "--limit", LAB_2, "-e", "explain_gpu=0").said()
    assert re.split(r"  +", lines[2])[0::4] == ["1g.10gb@6", "ocr-2"]
    assert any(line.startswith("1 \u00d7 1g.10gb uses 1 of 8 memory slices: ") for line in lines)
    seven = served.done("explain", "-e", "explain_board=a100-80gb", "-e", '{"explain_layout": "7x1g.10gb"}').said()
    assert "7 \u00d7 1g.10gb uses 7 of 8 memory slices: 11.1 GiB out of reach; 6 \u00d7 1g.10gb + 1 \u00d7 1g.20gb reaches it" in seven
    impossible = served.play("explain", "--limit", LAB_2, "-e", '{"explain_gpu": "0", "explain_layout": "8x1g.10gb"}')
    assert "8x1g.10gb is more than the 7 that the board allows; the nearest that can: " in impossible.message()
    assert (served.files(), served.mutations()) == (files, calls)
