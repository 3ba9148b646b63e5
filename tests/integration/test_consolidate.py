# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbook plan with ``fleet_consolidate``: what was left of two hosts after a week comes together on one, and stays there."""

from __future__ import annotations

import json
import typing as t

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Site

HOSTS = ("host-a", "host-b")


def slices(site: Site) -> dict[str, list[str]]:
    """The slices that each host's one GPU has."""
    shown = {host: json.loads(site.simctl(host, "show", "--json"))["gpus"] for host in HOSTS}
    return {host: [one["profile"] for each in gpus for one in each["mig"]["instances"]] for host, gpus in shown.items()}


def test_two_half_empty_gpus_become_one(make_site: MakeSite) -> None:
    site = make_site(host_a="h100-80gb", host_b="h100-80gb")
    for service in ("ocr-a", "ocr-b", "ocr-c", "ocr-d"):
        site.manifest(service, memory="30 GiB")
    site.done("plan")
    site.done("apply")
    assert slices(site) == {host: ["3g.40gb", "3g.40gb"] for host in HOSTS}
    for gone in (site.planned(host)[0] for host in HOSTS):
        (site.manifests / f"{gone.rpartition('-')[0]}.yml").unlink()
    assert "becomes empty" not in site.done("plan").output
    left = [site.planned(host) for host in HOSTS]
    assert [len(each) for each in left] == [1, 1]

    refused = site.play("plan", "-e", "fleet_consolidate=-1").message()
    assert "consolidate: -1 replicas cannot move; write how many may at most, or 0" in refused
    predicted = site.done("plan", "--check", "-e", "fleet_consolidate=3")
    assert [site.planned(host) for host in HOSTS] == left
    made = site.done("plan", "-e", "fleet_consolidate=3")
    for told in (predicted, made):
        assert "1 of 2 GPUs in use becomes empty by 1 move, which counts as 1 of at most 3" in told.output
        assert "3 moves of these among them leave no fewer than 1 while each slice stays as large (proven by HiGHS" in told.output
    assert made.said()[0].startswith("1. move ocr-")
    assert sorted(len(site.planned(host)) for host in HOSTS) == [0, 2]

    again = site.done("plan")
    assert again.changed() == []
    site.done("apply")
    after = slices(site)
    full, empty = sorted(HOSTS, key=lambda host: -len(site.planned(host)))
    assert after[full] == ["3g.40gb", "3g.40gb"]
    assert "no GPU becomes empty by at most 3 moves" in site.done("plan", "-e", "fleet_consolidate=3").output
    assert site.planned(empty) == []
