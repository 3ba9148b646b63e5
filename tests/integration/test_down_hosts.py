# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host goes down, its services move, it comes back: by real ansible-playbook processes, the host behind a port where nobody answers."""

from __future__ import annotations

import json
import re
import typing as t
from dataclasses import dataclass

import pytest

if t.TYPE_CHECKING:
    from pathlib import Path

    from fleet_site import MakeSite, Played, Site

LAB_1, LAB_2 = "lab-1", "lab-2"
DOWN = '{"fleet_down_hosts": ["lab-2"]}'
POLICY = {"fleet_gpu_modes": ["mig"]}


def cut_off(site: Site, host: str) -> None:
    """From now on the host is behind an SSH port of this machine on which nobody listens."""
    site.variables(host, **POLICY, ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1)


def folders(site: Site, host: str) -> list[str]:
    return sorted(path.name for path in (site.work / host / "services").iterdir())


@dataclass
class Story:
    """Two hosts, carried out; the second goes down, is called down, and comes back."""

    site: Site
    status: Played
    proposed: Played
    unchanged: bool
    planned: Played
    serials: dict[str, int]
    again: Played
    applied: Played
    mutations: tuple[t.Any, t.Any]
    returned: Played
    last: Played


@pytest.fixture(scope="module")
def served(make_site: MakeSite) -> Site:
    """Two replicas of two services, one on each host. An A100 has no room for a second 3g.40gb beside a 1g.10gb at its start."""
    site = make_site(lab_1="a100-80gb:1", lab_2="a100-80gb:1")
    for host in (LAB_1, LAB_2):
        site.variables(host, **POLICY)
    site.manifest("receipt-ocr", replicas=2)
    site.manifest("imaging", "30 GiB", replicas=2)
    site.done("plan")
    site.done("apply")
    assert site.planned(LAB_1) == ["imaging-1", "receipt-ocr-1"]
    assert site.planned(LAB_2) == ["imaging-2", "receipt-ocr-2"]
    return site


@pytest.fixture(scope="module")
def story(served: Site, tmp_path_factory: pytest.TempPathFactory) -> Story:
    site = served.copy(tmp_path_factory.mktemp("story") / "site")
    cut_off(site, LAB_2)
    files = site.files()
    status, proposed = site.play("status"), site.play("plan")
    unchanged = site.files() == files
    planned = site.play("plan", "-e", DOWN)
    serials = {host: site.plan(host)["serial"] for host in (LAB_1, LAB_2)}
    again = site.play("plan", "-e", "fleet_down_hosts=lab-2", "-e", '{"fleet_fail_unplaced": false}')
    applied = site.done("apply", "-e", DOWN)
    before = site.mutations()[LAB_2]
    site.variables(LAB_2, **POLICY)
    returned = site.done("apply")
    return Story(
        site, status, proposed, unchanged, planned, serials, again, applied, (before, site.mutations()[LAB_2]), returned, site.done("plan")
    )


def test_status_shows_what_is_on_the_host_that_is_down_and_why(story: Story) -> None:
    assert story.status.status != 0
    rows = [re.split(r"  +", line) for line in story.status.said()[1:]]
    assert [(row[0], row[3], row[4], row[6]) for row in rows[:-1]] == [
        (LAB_1, "1g.10gb@0", "receipt-ocr-1", "no engine"),
        (LAB_1, "3g.40gb@4", "imaging-1", "no engine"),
        (LAB_2, "1g.10gb@0", "receipt-ocr-2", "down"),
        (LAB_2, "3g.40gb@4", "imaging-2", "down"),
    ]
    (why,) = rows[-1]
    assert re.fullmatch(r"lab-2 is down: .*[Cc]onnection refused.*; shown by its plan and the facts published last", why)
    assert story.status.problems[-1].startswith("lab-2: lab-2 cannot be read: ")


def test_plan_proposes_where_its_services_would_go_and_writes_nothing(story: Story) -> None:
    assert story.proposed.status != 0
    assert story.unchanged
    why, moved, stuck = story.proposed.said()
    assert re.fullmatch(r"lab-2 cannot be read: .*[Cc]onnection refused", why)
    assert re.fullmatch(r"receipt-ocr-2 would go from lab-2 to lab-1 GPU-\w+ 1g\.10gb@1", moved)
    less = r"ask for 1g\.20gb \(19968 MiB\) or less: lab-1 GPU-\w+ has room for it"
    why = "lab-1: 1 GPU without room for 30 GiB; lab-2: down"
    assert re.fullmatch(rf"no place for imaging replica 2: {why}; what would help: {less}, or bring lab-2 back", stuck)
    assert story.proposed.problems[-1].endswith(f"lab-2 cannot be read: nothing was written. To plan as if it were gone: -e '{DOWN}'")


def test_a_host_that_is_called_down_loses_what_moves_and_is_not_contacted(story: Story) -> None:
    assert "UNREACHABLE" not in story.planned.output
    # What has no place fails the play after the plans are written, as ever.
    assert story.planned.problems[-1].startswith("lab-1: imaging replica 2: lab-1: ")
    assert story.serials == {LAB_1: 2, LAB_2: 2}
    changes = [line.split("  ")[-1].strip() for line in story.planned.said()[1:]]
    assert [re.sub(r"GPU-\w+", "GPU", change) for change in changes] == [
        "kept",
        "no place while lab-2 is down, stays on lab-2 GPU 3g.40gb@4",
        "kept",
        "moved from lab-2 GPU 1g.10gb@0: lab-2 is down",
    ]
    # ansible-core 2.16 breaks the lines of a warning.
    assert "lab-2 is down: imaging-2 stays in its plan and is lost until it is back" in " ".join(story.planned.output.split())
    assert (story.again.status, story.again.changed()) == (0, [])


def test_apply_leaves_a_host_alone_that_is_called_down(story: Story) -> None:
    assert "lab-2 is in fleet_down_hosts: left alone, its plan waits" in story.applied.output
    assert (story.applied.recap[LAB_2]["changed"], story.applied.recap[LAB_2]["unreachable"]) == (0, 0)
    assert folders(story.site, LAB_1) == ["imaging-1", "receipt-ocr-1", "receipt-ocr-2"]


def test_a_host_that_is_back_stops_what_has_moved_and_nothing_else(story: Story) -> None:
    assert folders(story.site, LAB_2) == ["imaging-2"]
    assert story.mutations[0] == story.mutations[1]
    assert {host for _task, host in story.returned.changed()} == {LAB_2}
    record = json.loads((story.site.work / LAB_2 / "state" / "plan.json").read_text(encoding="utf-8"))
    assert (record["serial"], record["state"]) == (2, "done")
    assert story.site.planned(LAB_2) == ["imaging-2"]
    # Only the file of what has no place changes: it has one again.
    assert story.last.changed() == [("Make the plan", LAB_1)]
    assert {host: story.site.plan(host)["serial"] for host in (LAB_1, LAB_2)} == story.serials


def test_the_first_host_of_all_may_be_the_one_that_is_down(served: Site, tmp_path: Path) -> None:
    site = served.copy(tmp_path / "site")
    cut_off(site, LAB_1)
    files = site.files()
    status = site.play("status")
    assert status.status != 0
    assert [line.split()[0] for line in status.said()[1:]] == [LAB_1, LAB_1, LAB_2, LAB_2, LAB_1]
    proposed = site.play("plan")
    assert proposed.status != 0
    assert re.fullmatch(r"receipt-ocr-1 would go from lab-1 to lab-2 GPU-\w+ 1g\.10gb@1", proposed.said()[1])
    checked = site.play("check")
    assert checked.said()[1:] == proposed.said()[1:]
    # Why is in Ansible's words, which are one or the other of two as ssh ends before or after it was given the module.
    sent = r"Data could not be sent to remote host (['\"])127\.0\.0\.1\1\. Make sure this host can be reached over ssh.*"
    why = f"lab-1 cannot be read: {sent}"
    assert all(re.fullmatch(why, play.said()[0], re.IGNORECASE) for play in (checked, proposed))
    assert checked.problems[-1].startswith("lab-1: it cannot be read: ")
    assert site.files() == files
    # The report is made from what was published, and so is a table of a host that is called down.
    calm = [site.done(playbook, "-e", "fleet_down_hosts=lab-1") for playbook in ("status", "check", "report")]
    assert "lab-1 is down: fleet_down_hosts names it, and it was not asked" in calm[0].output
    assert not any("UNREACHABLE" in run.output for run in calm)


def test_all_hosts_may_be_down_and_one_that_breaks_is_told_from_one_that_does_not_answer(served: Site, tmp_path: Path) -> None:
    site = served.copy(tmp_path / "site")
    cut_off(site, LAB_1)
    (site.work / LAB_2 / "bin" / "python").unlink()
    files = site.files()
    status = site.play("status")
    assert status.status != 0
    lines = status.said()
    assert [line.split("  ")[-1].strip() for line in lines[1:5]] == ["down", "down", "not read", "not read"]
    assert lines[5].startswith("lab-1 is down: ")
    assert re.match(r"lab-2 is not read: .*/bin/python.* not found", lines[6])
    proposed = site.play("plan")
    assert [line.split(":")[0] for line in proposed.said()] == ["lab-1 cannot be read", "lab-2 cannot be read"]
    assert proposed.problems[-1] == "lab-1: lab-1, lab-2 cannot be read, and no other host is left: nothing was written"
    assert site.files() == files


def test_a_name_that_no_host_has_is_refused_in_one_line(served: Site) -> None:
    for playbook, option in (("plan", '{"fleet_down_hosts": ["lab-2", "lab-9"]}'), ("apply", "fleet_down_hosts=lab-9")):
        message = served.play(playbook, "-e", option).message()
        assert message == "fleet_down_hosts: there is no host 'lab-9' in group gpu_hosts; it has lab-1, lab-2"
