# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every write of module ``vgpu`` refused once, and its process killed before and after each: the next run repairs."""

from __future__ import annotations

import typing as t

import pytest
from vgpu_world import GPU, VFS, World, world

__all__ = ["world"]

Wish = dict[str, t.Any]


class Story:
    """A host, a wish, and how many writes it takes."""

    def __init__(self, begin: t.Callable[[World], None], wish: Wish, writes: int, after: t.Callable[[World], None]) -> None:
        self.begin, self.wish, self.writes, self.after = begin, wish, writes, after


def _functions(world: World) -> None:
    world.gpu()


def _vendor(world: World) -> None:
    world.gpu()
    world.switch_on("701")


def _mdev(world: World) -> None:
    world.mtty()
    world.give("mtty-2")


def _has_functions(world: World) -> None:
    assert world.vendor() == {VFS[0]: "A100D-40C"}
    assert (world.tree.device(VFS[0]) / "nvidia/vgpu_params").read_text() == "enable_uvm=1\n"
    assert world.tree.hidden["devices"][GPU]["vgpu"]["mixed"] is True


def _has_vendor(world: World) -> None:
    assert world.vendor() == {VFS[0]: "A100D-40C"}


def _has_mdev(world: World) -> None:
    assert list(world.mdevs().values()) == ["mtty-1"]


LARGE = {"type": "A100D-40C"}
STORIES = {
    "functions": Story(_functions, {"gpu": GPU, "vgpus": [{**LARGE, "params": {"enable_uvm": 1}}], "mixed": True}, 4, _has_functions),
    "vendor": Story(_vendor, {"gpu": GPU, "vgpus": [LARGE]}, 2, _has_vendor),
    "mdev": Story(_mdev, {"parent": "mtty", "vgpus": [{"type": "mtty-1"}]}, 2, _has_mdev),
}
CASES = [(name, number) for name, story in STORIES.items() for number in range(1, story.writes + 1)]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_write_that_is_refused_leaves_everything_as_it_was(world: World, name: str, number: int) -> None:
    story = STORIES[name]
    story.begin(world)
    before = world.all_vgpus()
    functions = sorted(world.tree.state())
    world.environment(KERNEL_FAIL=f"{number}=Input/output error")
    result = world.run(story.wish)
    assert result["failed"]
    assert "Input/output error" in result["msg"]
    assert result["msg"].endswith("what was there before was put back")
    assert world.all_vgpus() == before
    assert sorted(world.tree.state()) == functions
    assert world.journal() == "closed"
    world.environment()
    assert not world.run(story.wish)["failed"]
    story.after(world)
    assert len(world.tree.writes()) > story.writes


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_next_run_ends_what_a_killed_one_began(world: World, name: str, number: int, moment: str) -> None:
    story = STORIES[name]
    story.begin(world)
    world.environment(KERNEL_KILL=f"{moment} {number}")
    assert world.tree.dies(lambda: world.run(story.wish))
    assert world.journal() == "open"
    world.environment()
    result = world.run(story.wish)
    assert not result["failed"], result
    assert result["notes"][0].startswith("an earlier change did not come to its end; it had ")
    story.after(world)
    assert world.journal() == "closed"
    again = world.run(story.wish)
    assert (again["changed"], again["notes"]) == (False, [])


def test_what_cannot_be_put_back_is_named_and_the_next_run_repairs_it(world: World) -> None:
    story = STORIES["vendor"]
    story.begin(world)
    world.environment(KERNEL_FAIL=",".join(str(number) for number in range(2, 9)) + "=Input/output error")
    result = world.run(story.wish)
    assert f"{GPU} could not be put back: {GPU}: create A100D-20C on {VFS[0]}: " in result["msg"]
    assert result["msg"].endswith("the next run with this wish, or the host's agent, completes the change")
    assert (world.vendor(), world.journal()) == ({}, "open")
    world.environment()
    assert not world.run(story.wish)["failed"]
    story.after(world)
    assert world.journal() == "closed"


def test_a_repair_that_fails_goes_back_to_what_was_before_the_first_run(world: World) -> None:
    story = STORIES["vendor"]
    story.begin(world)
    before = world.vendor()
    world.environment(KERNEL_KILL="after 1")
    assert world.tree.dies(lambda: world.run(story.wish))
    assert world.vendor() == {}
    world.environment(KERNEL_FAIL="2=Input/output error")
    assert world.run(story.wish)["msg"].endswith("what was there before was put back")
    assert world.vendor() == before
