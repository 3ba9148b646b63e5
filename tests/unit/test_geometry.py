# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Geometry against numbers known from real boards and, on invented boards, against a checker that shares no code with it."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import geometry as g
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, Slice
from hypothesis import given, settings
from hypothesis import strategies as st

EVEN, LOW = (0, 2, 4, 6), (0, 2, 4)
# NVIDIA A100-SXM4-80GB, as nvidia-smi mig -lgip and -lgipp print it
A100 = Geometry(
    7,
    8,
    (
        Profile("1g.10gb", 19, 1, 1, 9856, 14, 7, tuple(range(7))),
        Profile("1g.10gb+me", 20, 1, 1, 9856, 14, 1, tuple(range(7))),
        Profile("1g.20gb", 15, 1, 2, 19968, 14, 4, EVEN),
        Profile("2g.20gb", 14, 2, 2, 19968, 28, 3, LOW),
        Profile("3g.40gb", 9, 3, 4, 40192, 42, 2, (0, 4)),
        Profile("4g.40gb", 5, 4, 4, 40192, 56, 1, (0,)),
        Profile("7g.80gb", 0, 7, 8, 80384, 98, 1, (0,)),
    ),
)
A30 = Geometry(
    4,
    4,
    (
        Profile("1g.6gb", 14, 1, 1, 5952, 14, 4, (0, 1, 2, 3)),
        Profile("2g.12gb", 5, 2, 2, 11968, 28, 2, (0, 2)),
        Profile("4g.24gb", 0, 4, 4, 24000, 56, 1, (0,)),
    ),
)
# RTX PRO 6000: a memory axis of twelve units
PRO = Geometry(
    4,
    12,
    (
        Profile("1g.24gb", 14, 1, 3, 24192, 46, 4, (0, 3, 6, 9)),
        Profile("1g.24gb+me", 21, 1, 3, 24192, 46, 1, (0, 3, 6, 9)),
        Profile("1g.24gb+gfx", 47, 1, 3, 24192, 46, 4, (0, 3, 6, 9)),
        Profile("1g.24gb+me.all", 65, 1, 3, 24192, 46, 1, (0, 3, 6, 9)),
        Profile("1g.24gb-me", 67, 1, 3, 24192, 46, 4, (0, 3, 6, 9)),
        Profile("2g.48gb", 5, 2, 6, 48512, 94, 2, (0, 6)),
        Profile("4g.96gb", 0, 4, 12, 97280, 188, 1, (0,)),
    ),
)
SEVEN = [Slice(start, "1g.10gb") for start in range(7)]


def only(board: Geometry, *names: str) -> Geometry:
    return Geometry(board.compute_slices, board.memory_slices, tuple(profile for profile in board.profiles if profile.name in names))


BASE = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


@pytest.mark.parametrize(
    ("board", "valid", "maximal", "kinds"),
    [
        pytest.param(only(A100, *BASE), 298, 19, 14, id="A100, five base profiles: NVIDIA's own table has 19 rows"),
        pytest.param(only(A100, *BASE, "1g.20gb"), 723, 78, 38, id="A100 with the double-memory slice"),
        pytest.param(A100, 2319, 239, 64, id="A100 with the media-engine slice too"),
        pytest.param(A30, 26, 5, 4, id="A30"),
    ],
)
def test_all_layouts_of_known_boards_are_found(board: Geometry, valid: int, maximal: int, kinds: int) -> None:
    layouts = g.maximal_layouts(board)
    multisets = {tuple(sorted(one.profile for one in layout)) for layout in layouts}
    assert (len(g.valid_layouts(board)), len(layouts), len(multisets)) == (valid, maximal, kinds)
    assert g.valid_layouts(board)[0] == ()
    assert len(set(g.valid_layouts(board))) == valid
    assert list(g.valid_layouts(board)) == sorted(g.valid_layouts(board))


def test_a_board_without_profiles_has_one_layout_and_nothing_maximal() -> None:
    nothing = Geometry(7, 8, ())
    assert g.valid_layouts(nothing) == ((),)
    assert g.maximal_layouts(nothing) == ()
    assert g.free_and_stranded(nothing, []) == g.Room(0, 0, 8, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("1g.10gb", "1g.10gb"),
        ("1g.20gb", "1g.20gb"),
        ("1g.10gb+me", "1g.10gb+me"),
        ("3g.39gb", "3g.40gb"),
        ("3g.41gb", "3g.40gb"),
        ("4g.39gb", "4g.40gb"),
        ("7g.79gb", "7g.80gb"),
        ("7g.80gb", "7g.80gb"),
        ("7g.86gb", "7g.80gb"),
        ("1g.19gb", "1g.20gb"),
        (" 7G.80GB ", "7g.80gb"),
    ],
)
def test_a_profile_is_found_by_any_spelling_of_its_gb(written: str, found: str) -> None:
    assert g.find_profile(A100, written).name == found


@pytest.mark.parametrize(
    "written", ["7g.87gb", "7g.73gb", "1g.11gb", "1g.9gb", "1g.15gb", "1g.20gb+me", "1g.10gb+gfx", "3g.40gb-me", "6g.70gb"]
)
def test_another_profile_is_not_taken_for_one_that_the_board_has(written: str) -> None:
    with pytest.raises(FleetError) as error:
        g.find_profile(A100, written)
    assert str(error.value) == (
        f"this board has no MIG profile {written}; it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"
    )


@pytest.mark.parametrize("name", [profile.name for profile in PRO.profiles])
def test_attributes_tell_profiles_of_one_size_apart(name: str) -> None:
    assert g.find_profile(PRO, name).name == name
    assert g.find_profile(PRO, name.replace("24gb", "23gb").replace("48gb", "47gb").replace("96gb", "95gb")).name == name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("1g.10gb", (1, 10, frozenset())),
        ("2g.48gb+me.all", (2, 48, frozenset({"+me.all"}))),
        ("1g.24gb-me", (1, 24, frozenset({"-me"}))),
        ("1g.24gb+gfx+me", (1, 24, frozenset({"+gfx", "+me"}))),
    ],
)
def test_a_name_has_slices_gb_and_attributes(name: str, parts: tuple[int, int, frozenset[str]]) -> None:
    assert g.name_parts(name) == parts


def test_a_compute_instance_profile_is_refused_with_the_name_to_write() -> None:
    with pytest.raises(FleetError) as error:
        g.find_profile(A100, "1c.3g.40gb")
    assert str(error.value) == (
        "'1c.3g.40gb' names a compute instance that is smaller than its GPU instance; "
        "only whole GPU instances can be asked for; write 3g.40gb"
    )


@pytest.mark.parametrize("name", ["", "1g", "1g.10", "10gb", "g.10gb", "1g.10gb+", "1g.10gb me", "1.10gb", "1g.10gb+me.", "x1g.10gb"])
def test_what_is_no_profile_name_is_refused(name: str) -> None:
    with pytest.raises(FleetError) as error:
        g.find_profile(A100, name)
    assert str(error.value) == f"'{name}' is not a MIG profile name; write one like 1g.10gb or 1g.10gb+me"


def test_eight_percent_is_near_enough_and_more_is_not() -> None:
    board = Geometry(4, 4, (Profile("1g.25gb", 1, 1, 1, 1, 1, 4, (0,)),))
    assert g.find_profile(board, "1g.23gb").name == "1g.25gb"
    with pytest.raises(FleetError):
        g.find_profile(board, "1g.22gb")
    wide = Geometry(4, 4, (Profile("1g.1000gb", 1, 1, 1, 1, 1, 4, (0,)),))
    assert g.find_profile(wide, "1g.920gb").name == "1g.1000gb"
    with pytest.raises(FleetError):
        g.find_profile(wide, "1g.919gb")


def test_two_profiles_equally_near_are_named() -> None:
    board = Geometry(4, 4, (Profile("1g.24gb", 1, 1, 1, 1, 1, 4, (0,)), Profile("1g.26gb", 2, 1, 1, 1, 1, 4, (1,))))
    assert g.find_profile(board, "1g.27gb").name == "1g.26gb"
    with pytest.raises(FleetError) as error:
        g.find_profile(board, "1g.25gb")
    assert str(error.value) == "MIG profile 1g.25gb could mean 1g.24gb or 1g.26gb; write the name as the board has it"


def test_one_name_for_two_profiles_is_not_guessed() -> None:
    board = Geometry(4, 4, (Profile("1g.24gb", 1, 1, 1, 1, 1, 4, (0,)), Profile("1g.24gb", 2, 1, 2, 1, 1, 4, (1,))))
    with pytest.raises(FleetError, match=r"could mean 1g\.24gb or 1g\.24gb"):
        g.find_profile(board, "1g.24gb")


def test_a_board_without_profiles_says_so() -> None:
    with pytest.raises(FleetError) as error:
        g.find_profile(Geometry(7, 8, ()), "1g.10gb")
    assert str(error.value) == "this board has no MIG profile 1g.10gb; it has none"


@pytest.mark.parametrize(("text", "one"), [("1g.10gb@4", Slice(4, "1g.10gb")), (" 1g.10gb+me@0 ", Slice(0, "1g.10gb+me"))])
def test_a_slice_is_read_and_written(text: str, one: Slice) -> None:
    assert g.parse_slice(text) == one
    assert str(one) == text.strip()


@pytest.mark.parametrize("text", ["1g.10gb", "@4", "1g.10gb@", "1g.10gb@-1", "1g.10gb@x", "1g.10gb@²", "1g.10gb@1@2"])
def test_what_is_no_slice_is_refused(text: str) -> None:
    with pytest.raises(FleetError) as error:
        g.parse_slice(text)
    assert str(error.value) == f"'{text}' is not a slice; write PROFILE@START, as in 1g.10gb@4"


def test_slices_are_ordered_by_start_then_by_profile() -> None:
    assert sorted([Slice(4, "1g.10gb"), Slice(0, "3g.40gb"), Slice(0, "1g.10gb")]) == [
        Slice(0, "1g.10gb"),
        Slice(0, "3g.40gb"),
        Slice(4, "1g.10gb"),
    ]


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ([], None),
        (SEVEN, None),
        ([Slice(0, "4g.40gb"), Slice(4, "3g.40gb")], None),
        ([Slice(0, "3g.39gb")], None),
        ([Slice(7, "1g.10gb")], "1g.10gb cannot start at memory slice 7, only at 0, 1, 2, 3, 4, 5 or 6"),
        ([Slice(4, "4g.40gb")], "4g.40gb cannot start at memory slice 4, only at 0"),
        ([Slice(2, "3g.40gb")], "3g.40gb cannot start at memory slice 2, only at 0 or 4"),
        ([Slice(3, "1g.10gb"), Slice(0, "3g.40gb")], "3g.40gb@0 and 1g.10gb@3 overlap on memory slice 3"),
        ([Slice(0, "3g.40gb"), Slice(4, "1g.10gb")], None),
        ([Slice(1, "1g.10gb"), Slice(1, "1g.10gb")], "1g.10gb@1 and 1g.10gb@1 overlap on memory slice 1"),
        ([Slice(0, "1g.10gb+me"), Slice(1, "1g.10gb+me")], "2x1g.10gb+me is more than the 1 that the board allows"),
        (
            [Slice(0, "5g.50gb")],
            "this board has no MIG profile 5g.50gb; it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb",
        ),
    ],
)
def test_the_reason_why_slices_cannot_stand_is_named(slices: list[Slice], reason: str | None) -> None:
    assert g.why_not(A100, slices) == reason
    assert g.legal(A100, slices) is (reason is None)


def test_compute_slices_are_a_limit_of_their_own() -> None:
    board = Geometry(3, 8, (Profile("2g.20gb", 1, 2, 2, 1, 1, 4, EVEN), Profile("1g.20gb", 2, 1, 2, 1, 1, 4, EVEN)))
    assert g.why_not(board, [Slice(0, "2g.20gb"), Slice(2, "1g.20gb")]) is None
    assert g.why_not(board, [Slice(0, "2g.20gb"), Slice(2, "2g.20gb")]) == "together they need 4 compute slices and the board has 3"


def test_places_are_given_in_the_order_of_the_wish() -> None:
    wish = ["1g.20gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"]
    assert g.place(A100, [], wish) == [Slice(6, "1g.20gb"), *(Slice(start, "1g.10gb") for start in range(6))]
    assert g.place(A100, [], ["1g.10gb", "3g.39gb"]) == [Slice(4, "1g.10gb"), Slice(0, "3g.40gb")]


def test_places_avoid_what_is_fixed() -> None:
    assert g.place(A100, [Slice(0, "1g.10gb")], ["3g.40gb", "1g.10gb"]) == [Slice(4, "3g.40gb"), Slice(1, "1g.10gb")]
    assert g.place(A100, [Slice(3, "1g.10gb"), Slice(4, "1g.10gb")], ["3g.40gb"]) is None
    assert g.place(A100, [Slice(7, "1g.10gb")], []) is None
    assert g.place(A100, SEVEN, []) == []


def test_of_two_profiles_of_one_size_the_one_with_more_compute_slices_is_lower() -> None:
    assert g.place(A100, [], ["1g.20gb", "2g.20gb"]) == [Slice(2, "1g.20gb"), Slice(0, "2g.20gb")]
    assert g.place(A100, [], ["2g.20gb", "1g.20gb"]) == [Slice(0, "2g.20gb"), Slice(2, "1g.20gb")]


def test_places_that_are_taken_again_count_by_weight() -> None:
    near = g.place_near(A100, [], ["1g.10gb", "1g.10gb"], {Slice(5, "1g.10gb"): 1, Slice(2, "1g.10gb"): 1, Slice(6, "1g.20gb"): 9})
    assert near == [Slice(2, "1g.10gb"), Slice(5, "1g.10gb")]
    heavy = g.place_near(A100, [], ["1g.10gb"], {Slice(2, "1g.10gb"): 1, Slice(5, "1g.10gb"): 2})
    assert heavy == [Slice(5, "1g.10gb")]


def test_a_wish_for_what_the_board_does_not_have_is_an_error() -> None:
    with pytest.raises(FleetError, match=r"no MIG profile 9g\.90gb"):
        g.place(A100, [], ["9g.90gb"])


@pytest.mark.parametrize(
    ("fixed", "wanted", "reason"),
    [
        ([], ["3g.40gb", "3g.40gb"], None),
        ([], ["3g.40gb", "3g.40gb", "2g.20gb"], "together they need 8 compute slices and the board has 7"),
        ([], ["1g.10gb+me"] * 2, "2x1g.10gb+me is more than the 1 that the board allows"),
        ([Slice(4, "4g.40gb")], [], "4g.40gb cannot start at memory slice 4, only at 0"),
        ([], ["3g.40gb", "3g.40gb", "1g.10gb"], "together they need 9 memory slices and the board has 8"),
        (
            [Slice(4, "1g.10gb"), Slice(3, "1g.10gb")],
            ["3g.40gb"],
            "3g.40gb can only start at memory slice 0 or 4, which 1g.10gb@3 and 1g.10gb@4 take",
        ),
        (
            [Slice(1, "1g.10gb"), Slice(3, "1g.10gb")],
            ["3g.40gb", "2g.20gb"],
            "there are no free memory slices in a row for 2g.20gb + 3g.40gb beside 1g.10gb@1, 1g.10gb@3",
        ),
    ],
)
def test_the_reason_why_a_wish_finds_no_place_is_named(fixed: list[Slice], wanted: list[str], reason: str | None) -> None:
    assert g.why_not_place(A100, fixed, wanted) == reason
    assert (g.place(A100, fixed, wanted) is None) is (reason is not None)


def test_seven_small_slices_strand_one_memory_slice_and_its_mib() -> None:
    assert g.free_and_stranded(A100, SEVEN) == g.Room(7, 0, 1, 68992, 0, 11392, 80384)


@pytest.mark.parametrize(
    ("slices", "room"),
    [
        ([], g.Room(0, 8, 0, 0, 80384, 0, 80384)),
        ([Slice(0, "7g.80gb")], g.Room(8, 0, 0, 80384, 0, 0, 80384)),
        # the double-memory slice reaches the eighth: what is then missing is the price of cutting, not stranded memory
        ([*SEVEN[:6], Slice(6, "1g.20gb")], g.Room(8, 0, 0, 79104, 0, 0, 80384)),
        ([Slice(0, "3g.40gb")], g.Room(4, 4, 0, 40192, 40192, 0, 80384)),
        ([Slice(0, "4g.40gb"), Slice(4, "1g.10gb")], g.Room(5, 3, 0, 50048, 29824, 0, 80384)),
        ([Slice(6, "1g.10gb")], g.Room(1, 6, 1, 9856, 60160, 10368, 80384)),
    ],
)
def test_free_and_stranded_memory_of_other_layouts(slices: list[Slice], room: g.Room) -> None:
    assert g.free_and_stranded(A100, slices) == room


def test_room_of_an_illegal_layout_is_an_error() -> None:
    with pytest.raises(FleetError, match=r"^4g\.40gb cannot start at memory slice 4, only at 0$"):
        g.free_and_stranded(A100, [Slice(4, "4g.40gb")])


def test_the_layouts_that_reach_stranded_memory_are_named_nearest_first() -> None:
    better = g.better_layouts(A100, SEVEN)
    assert [(layout.text, layout.memory_mib) for layout in better] == [
        ("6x1g.10gb + 1g.20gb", 79104),
        ("4x1g.10gb + 3g.40gb", 79616),
        ("4x1g.10gb + 1g.20gb + 2g.20gb", 79360),
    ]
    assert better[0].slices == (*SEVEN[:6], Slice(6, "1g.20gb"))
    assert g.better_layouts(A100, SEVEN, limit=1) == better[:1]
    assert all(g.legal(A100, layout.slices) for layout in better)


def test_no_better_layout_is_named_when_nothing_is_stranded() -> None:
    assert g.better_layouts(A100, [*SEVEN[:6], Slice(6, "1g.20gb")]) == []


def test_better_layouts_keep_attributes_that_are_there_and_add_none() -> None:
    slices = [Slice(0, "1g.10gb+me"), *SEVEN[1:]]
    assert [layout.text for layout in g.better_layouts(A100, slices, limit=2)] == [
        "5x1g.10gb + 1g.10gb+me + 1g.20gb",
        "6x1g.10gb + 1g.20gb",
    ]


def test_nearest_layouts_keep_the_most_of_an_impossible_wish() -> None:
    nearest = g.nearest_layouts(A100, ["3g.40gb", "3g.40gb", "2g.20gb"])
    assert [layout.text for layout in nearest] == ["2x3g.40gb", "2g.20gb + 3g.40gb", "1g.20gb + 2g.20gb + 3g.40gb"]
    assert [layout.text for layout in g.nearest_layouts(A100, ["1g.10gb"] * 8, limit=1)] == ["7x1g.10gb"]


def test_a_layout_is_written_small_slices_first() -> None:
    assert g.layout_text(A100, ["1g.20gb", "3g.39gb", "1g.10gb", "1g.10gb"]) == "2x1g.10gb + 1g.20gb + 3g.40gb"
    assert g.layout_text(A100, []) == ""


def test_a_geometry_survives_the_facts() -> None:
    data = A100.to_dict()
    assert data["profiles"][0] == {
        "name": "1g.10gb",
        "id": 19,
        "slices": 1,
        "size": 1,
        "memory_mib": 9856,
        "sm": 14,
        "max": 7,
        "starts": [0, 1, 2, 3, 4, 5, 6],
    }
    assert (data["compute_slices"], data["memory_slices"], len(data["profiles"])) == (7, 8, 7)
    assert Geometry.from_dict(data) == A100


def test_the_digest_is_of_canonical_json() -> None:
    # printf '{"compute_slices":7,"memory_slices":8,"profiles":[]}' | sha256sum
    assert Geometry(7, 8, ()).digest() == "1daceacf9419"
    assert A30.digest() == "3934096a45e2"


def test_the_digest_tells_boards_apart_and_not_the_order_of_reading() -> None:
    turned = Geometry(7, 8, tuple(reversed(A100.profiles)))
    assert turned.digest() == A100.digest()
    assert len(A100.digest()) == 12
    assert int(A100.digest(), 16) >= 0
    assert len({A100.digest(), A30.digest(), only(A100, *BASE).digest(), Geometry(6, 8, A100.profiles).digest()}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profiles": [{"name": "1g.10gb"}]}, "MIG geometry lacks 'id'"),
        ({"compute_slices": None}, "MIG geometry cannot be read: "),
        ({"memory_slices": "many"}, "MIG geometry cannot be read: "),
    ],
)
def test_a_damaged_geometry_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(FleetError) as error:
        Geometry.from_dict({**A100.to_dict(), **change})
    assert str(error.value).startswith(message)


# A second opinion that shares no code with the module: sets of memory slices, all combinations, no cleverness.


def allowed(board: Geometry, slices: tuple[tuple[Profile, int], ...]) -> bool:
    cells = [cell for profile, start in slices for cell in range(start, start + profile.size)]
    counts = Counter(profile.name for profile, _start in slices)
    return (
        all(start in profile.starts for profile, start in slices)
        and len(cells) == len(set(cells))
        and all(counts[profile.name] <= profile.max for profile, _start in slices)
        and sum(profile.slices for profile, _start in slices) <= board.compute_slices
    )


def every_layout(board: Geometry) -> list[tuple[tuple[Profile, int], ...]]:
    places = [(profile, start) for profile in board.profiles for start in profile.starts]
    return [chosen for size in range(len(places) + 1) for chosen in itertools.combinations(places, size) if allowed(board, chosen)]


@st.composite
def boards(draw: st.DrawFn) -> Geometry:
    """Small boards that nobody has built: odd numbers of slices, odd sizes, starts with gaps."""
    memory = draw(st.integers(1, 6))
    profiles = []
    for number in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, memory))
        starts = draw(st.lists(st.integers(0, memory - size), unique=True, min_size=1, max_size=3))
        slices, most = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        profiles.append(
            Profile(f"{slices}g.{10 * 2**number}gb", number, slices, size, draw(st.integers(1, 9)) * 1000, 1, most, tuple(starts))
        )
    return Geometry(draw(st.integers(1, 5)), memory, tuple(profiles))


def as_slices(chosen: tuple[tuple[Profile, int], ...]) -> tuple[Slice, ...]:
    return tuple(sorted(Slice(start, profile.name) for profile, start in chosen))


@settings(max_examples=150, deadline=None)
@given(boards())
def test_on_any_board_exactly_the_legal_layouts_are_found(board: Geometry) -> None:
    expected = {as_slices(chosen) for chosen in every_layout(board)}
    assert set(g.valid_layouts(board)) == expected
    assert all(g.legal(board, layout) for layout in expected)
    grown = {layout for layout in expected if layout and not any(set(layout) < set(other) for other in expected)}
    assert set(g.maximal_layouts(board)) == grown


@settings(max_examples=150, deadline=None)
@given(boards(), st.data())
def test_on_any_board_a_set_is_legal_when_and_only_when_the_rules_allow_it(board: Geometry, data: st.DataObject) -> None:
    chosen = tuple(data.draw(st.lists(st.tuples(st.sampled_from(board.profiles), st.integers(0, board.memory_slices)), max_size=4)))
    assert g.legal(board, as_slices(chosen)) == allowed(board, chosen)


@settings(max_examples=150, deadline=None)
@given(boards(), st.data())
def test_on_any_board_a_place_is_found_when_there_is_one_and_with_the_greatest_weight(board: Geometry, data: st.DataObject) -> None:
    layouts = every_layout(board)
    fixed = data.draw(st.sampled_from(layouts))
    wish = data.draw(st.lists(st.sampled_from(board.profiles), max_size=4))
    weights = {Slice(start, profile.name): data.draw(st.integers(0, 3)) for profile in board.profiles for start in profile.starts}
    possible = [
        chosen
        for chosen in itertools.product(*(profile.starts for profile in wish))
        if allowed(board, (*fixed, *zip(wish, chosen, strict=True)))
    ]
    names = [profile.name for profile in wish]
    for weighted in ({}, weights):
        found = g.place_near(board, as_slices(fixed), names, weighted)
        assert (found is not None) == bool(possible)
        if found is not None:
            assert [one.profile for one in found] == names
            assert tuple(one.start for one in found) in possible
            best = max(
                sum(weighted.get(Slice(start, profile.name), 0) for profile, start in zip(wish, chosen, strict=True)) for chosen in possible
            )
            assert sum(weighted.get(one, 0) for one in found) == best
    assert (g.why_not_place(board, as_slices(fixed), names) is None) == bool(possible)
    assert g.place(board, as_slices(fixed), names) == g.place_near(board, as_slices(fixed), names, {})


@settings(max_examples=150, deadline=None)
@given(boards(), st.data())
def test_on_any_board_free_and_stranded_memory_is_what_all_layouts_show(board: Geometry, data: st.DataObject) -> None:
    layouts = every_layout(board)
    fixed = data.draw(st.sampled_from(layouts))

    def totals(layout: tuple[tuple[Profile, int], ...]) -> tuple[int, int]:
        return sum(profile.size for profile, _start in layout), sum(profile.memory_mib for profile, _start in layout)

    held = totals(fixed)
    reach = max(totals(layout) for layout in layouts if set(fixed) <= set(layout))
    best = max(totals(layout) for layout in layouts)
    room = g.free_and_stranded(board, as_slices(fixed))
    assert (room.held, room.held_mib) == held
    assert (room.free, room.free_mib) == (reach[0] - held[0], reach[1] - held[1])
    assert room.held + room.free + room.stranded == board.memory_slices
    assert room.best_mib == best[1]
    assert room.stranded_mib == (best[1] - reach[1] if room.stranded else 0)
    for layout in g.better_layouts(board, as_slices(fixed)):
        assert g.legal(board, layout.slices)
        assert sum(g.find_profile(board, one.profile).size for one in layout.slices) > reach[0]


# The best of the places that are equal


@pytest.mark.parametrize(
    ("board", "fixed", "wanted", "starts"),
    [
        (A100, [], ["1g.10gb"], [6]),  # 4g.40gb, three 2g.20gb and three 1g.20gb could still begin
        (A100, [], ["1g.10gb", "1g.10gb"], [4, 5]),  # 4g.40gb at 0, and 1g.20gb at 6
        (A100, [], ["3g.40gb"], [4]),  # 4g.40gb at 0
        (A100, [], ["2g.20gb"], [4]),
        (A100, [Slice(0, "1g.10gb")], ["1g.10gb"], [1]),  # 3g.40gb at 4, and 2g.20gb at 2
        (A30, [], ["1g.6gb"], [0]),  # wherever it lies, one 2g.12gb and one more 1g.6gb are left
        (PRO, [], ["1g.24gb", "1g.24gb"], [0, 3]),  # 2g.48gb beside them
    ],
)
def test_what_stays_free_is_of_most_use(board: Geometry, fixed: list[Slice], wanted: list[str], starts: list[int]) -> None:
    found = g.place_best(board, fixed, wanted, {})
    assert found is not None
    assert [one.start for one in found] == starts


def test_a_slice_that_is_there_counts_more_than_free_space() -> None:
    assert g.place_best(A100, [], ["1g.10gb"], {Slice(0, "1g.10gb"): 1}) == [Slice(0, "1g.10gb")]


def test_a_profile_that_can_come_no_more_is_no_use() -> None:
    # three compute slices are left: no 4g.40gb, whatever lies free; so what counts are places for 3g.40gb
    found = g.place_best(A100, [Slice(0, "3g.40gb")], ["1g.10gb"], {})
    assert found == [Slice(6, "1g.10gb")]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([profile.name for profile in A100.profiles]), min_size=1, max_size=5))
def test_what_is_left_is_the_best_of_all_legal_choices(wanted: list[str]) -> None:
    def use(layout: tuple[Slice, ...]) -> list[int]:
        """How many of each shape could stand beside, largest first; without attributes, which change no shape."""
        plain = [profile for profile in A100.profiles if "+" not in profile.name]
        counts = []
        for profile in sorted(plain, key=lambda each: (-each.size, -each.slices)):
            most = 0
            for chosen in g.valid_layouts(only(A100, profile.name)):
                if len(chosen) > most and g.legal(A100, (*layout, *chosen)):
                    most = len(chosen)
            counts.append(most)
        return counts

    found = g.place_best(A100, [], wanted, {})
    names = sorted(wanted)
    all_of_them = [layout for layout in g.valid_layouts(A100) if sorted(one.profile for one in layout) == names]
    if found is None:
        assert all_of_them == []
    else:
        assert use(tuple(found)) == max(map(use, all_of_them))


def test_layouts_beside_what_stays_hold_it_where_it_is() -> None:
    stays = [Slice(0, "1g.10gb")]
    found = g.nearest_layouts(A100, ["4g.40gb", "2g.20gb"], fixed=stays)
    assert [layout.text for layout in found] == ["1g.10gb + 2g.20gb", "1g.10gb + 2g.20gb + 3g.40gb", "1g.10gb + 1g.20gb + 2g.20gb"]
    assert all(stays[0] in layout.slices and g.legal(A100, layout.slices) for layout in found)


def test_who_keeps_a_profile_from_every_place_is_named() -> None:
    slices = [Slice(1, "1g.10gb"), Slice(4, "1g.10gb"), Slice(5, "1g.10gb")]
    assert g.obstacles(A100, "4g.40gb", slices) == slices[:1]
    assert g.obstacles(A100, "3g.40gb", slices) == slices
    assert g.obstacles(A100, "2g.20gb", slices) is None
    assert g.overlap(A100, Slice(4, "3g.40gb"), slices[2])
    assert not g.overlap(A100, Slice(0, "3g.40gb"), slices[2])
