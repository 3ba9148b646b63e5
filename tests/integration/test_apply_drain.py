# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbook apply and a service that is in the way of new slices: refused and named, or with ``fleet_drain`` stopped first."""

from __future__ import annotations

import json
import typing as t

import pytest
from fleet_site import container, engine

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Site

HOST = "host-a"
OLD = {"gpuops.service": "old-ocr", "gpuops.replica": "1", "com.docker.compose.project": "old-ocr-1"}


@pytest.fixture(scope="module")
def site(make_site: MakeSite) -> Site:
    """A plan wants one slice where another one is that a stopped replica, in no plan, still asks for."""
    made = make_site(host_a="h100-80gb")
    made.by_hand(HOST, [{"gpu": "0", "instances": [{"profile": "1g.10gb", "start": 0}]}])
    made.variables(HOST, fleet_gpu_layouts=[{"gpu": 0, "mode": "mig", "slices": ["3g.40gb@0"]}])
    made.done("plan")
    return made


def slices(site: Site) -> list[dict[str, t.Any]]:
    found: list[dict[str, t.Any]] = json.loads(site.simctl(HOST, "show", "--json"))["gpus"][0]["mig"]["instances"]
    return found


def old(site: Site) -> dict[str, t.Any]:
    made = container(1, "old-ocr-1-app-1", slices(site)[0]["ci"][0]["uuid"], 18000)
    return {**made, "State": {"Status": "exited"}, "Config": {**made["Config"], "Labels": OLD}}


def test_who_is_in_the_way_is_named_and_only_stopped_when_that_is_allowed(site: Site) -> None:
    before = site.mutations()
    with engine(site.work / HOST / "docker.sock", [old(site)]):
        refused = site.play("apply").message()
        assert (
            "in use: service old-ocr (container old-ocr-1-app-1, exited) on 1g.10gb@0; 3g.40gb is wished at memory slices 0 to 3, "
            in refused
        )
        predicted = site.done("apply", "--check", "-e", "fleet_drain=true")
        assert ("Partition the GPUs", HOST) in predicted.changed()
        # This engine stops nothing, so that the replica is still there when the GPUs are to be partitioned.
        again = site.play("apply", "-e", "fleet_drain=true")
        assert again.message().startswith(
            "old-ocr-1 came back into the way. Apply again when that is over; nothing was started on this host"
        )
        assert (site.mutations(), [one["profile"] for one in slices(site)]) == (before, ["1g.10gb"])
    assert not (site.work / HOST / "state" / "lease.json").exists()
    (site.work / HOST / "docker.sock").unlink()
    with engine(site.work / HOST / "docker.sock", []):
        site.done("apply", "-e", "fleet_drain=true")
    assert [(one["profile"], one["start"]) for one in slices(site)] == [("3g.40gb", 0)]
