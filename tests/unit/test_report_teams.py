# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Colours, patterns and tags of teams in the report."""

from __future__ import annotations

from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_gpu import Block
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_teams import team_slots, team_tags

# --- teams -------------------------------------------------------------------------------------------------------------------


def test_teams_have_different_looks_and_colours_are_used_up_first() -> None:
    names = [f"team-{number}" for number in range(64)]
    slots = team_slots(names)
    assert len(set(slots.values())) == 64
    first = team_slots(names[:8])
    assert sorted(colour for colour, _pattern in first.values()) == list(range(8))
    assert all(colour == pattern for colour, pattern in first.values())
    assert team_slots(reversed(names)) == slots


def test_a_team_keeps_its_colour_when_another_comes_that_wishes_a_different_one() -> None:
    before = team_slots(["claims", "identity", "health"])
    after = team_slots(["claims", "identity", "health", "research"])
    assert {name: after[name] for name in before} == before


def test_more_teams_than_looks_still_get_one() -> None:
    slots = team_slots([f"t{number}" for number in range(70)])
    assert len(slots) == 70
    assert all(0 <= number < 8 for look in slots.values() for number in look)


def test_tags_are_short_and_unique() -> None:
    tags = team_tags(["claims", "clinic", "cl", "x", "7-up", "---"])
    assert tags["cl"] == "CL"
    assert tags["claims"] == "CA"
    assert tags["clinic"] == "CI"
    assert tags["x"] == "X0"
    assert tags["7-up"] == "7U"
    assert tags["---"] == "?0"
    many = team_tags([f"a{'a' * number}" for number in range(60)])
    assert len(set(many.values())) == 60


def test_a_block_without_tenant_has_no_team() -> None:
    assert Block("free", 0, 1, 1, "free").tenant is None
