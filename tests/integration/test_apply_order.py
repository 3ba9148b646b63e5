# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbook apply where replicas go from host to host: they serve in their new places before they leave the old ones."""

from __future__ import annotations

import re
import typing as t

import pytest

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Played

pytestmark = pytest.mark.measured

HOSTS = ("lab-1", "lab-2", "lab-3")
HELD = '{"holder": "bob", "purpose": "apply", "expires": 4102444800, "token": "x", "seconds": 60}'


def begun(played: Played) -> list[str]:
    """The hosts in the order in which they began their plans."""
    tasks = re.split(r"^TASK \[", played.output, flags=re.MULTILINE)
    return [
        host
        for task in tasks
        if task.startswith("Begin the plan]")
        for host in re.findall(r"^(?:changed|ok): \[(\S+?)\]", task, re.MULTILINE)
    ]


def test_replicas_serve_in_their_new_places_before_they_leave_the_old_ones(make_site: MakeSite) -> None:
    site = make_site(**{name.replace("-", "_"): "a100-80gb:1" for name in HOSTS})
    for name, environment in zip(HOSTS, ("staging", "production", "testing"), strict=True):
        site.variables(name, fleet_environment=environment)
    site.manifest("ocr", environment="staging")
    site.manifest("face", environment="production")
    site.done("plan")
    site.done("apply")
    assert [site.planned(name) for name in HOSTS] == [["ocr-1"], ["face-1"], []]
    # That of the second host goes to the third, and that of the first to the second.
    for name, environment in zip(HOSTS, ("testing", "staging", "production"), strict=True):
        site.variables(name, fleet_environment=environment)
    site.done("plan")
    assert [site.planned(name) for name in HOSTS] == [[], ["ocr-1"], ["face-1"]]
    assert begun(site.done("apply", "--check")) == ["lab-3", "lab-2", "lab-1"]

    lease = site.work / "lab-3" / "state" / "lease.json"
    lease.write_text(HELD, encoding="utf-8")
    refused = site.play("apply")
    assert (refused.status, begun(refused)) == (2, [])
    left = "is left as it is: {} would stop before serving on {}. Apply again when that is mended"
    assert f"lab-2 {left.format('face-1', 'lab-3')}" in refused.output
    assert f"lab-1 {left.format('ocr-1', 'lab-2')}" in refused.output

    lease.unlink()

    # Ansible calls a host unreachable on which it can make no directory; with pipelining, most modules need none.
    (folder := site.work / "lab-3" / "tmp").rename(folder.with_name("tmp-before"))
    folder.touch()
    lost = site.play("apply")
    assert (lost.status, begun(lost)) == (4, ["lab-3"])
    assert f"lab-2 {left.format('face-1', 'lab-3')}" in lost.output
    folder.unlink()
    folder.with_name("tmp-before").rename(folder)
    lease.unlink()  # as an engineer gives it back by force
    assert begun(site.done("apply")) == ["lab-3", "lab-2", "lab-1"]
    again = site.done("apply")
    assert (again.changed(), sorted(begun(again))) == ([], list(HOSTS))
