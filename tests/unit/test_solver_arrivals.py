# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that come one at a time: every place is judged by the benchmark's judge, and what must not matter does not."""

from __future__ import annotations

import itertools
import json
import random
import time
import typing as t
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.arrivals import Admission, Lesson, differ, learn
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fragmentation import Request, Shape
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.pool import Node, Place, Pool
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.ranking import POLICIES
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.rehearsal import FEWEST_NODES, REQUESTS_REPLAYED, halves, part_of
from ansible_collections.gpuops.fleet.tests.bench.planner import arrival_search as search
from ansible_collections.gpuops.fleet.tests.bench.planner import arrival_world as world
from ansible_collections.gpuops.fleet.tests.bench.planner import arrivals as bench
from ansible_collections.gpuops.fleet.tests.bench.planner.arrival_baselines import FirstFit
from ansible_collections.gpuops.fleet.tests.bench.planner.arrival_checks import complaints
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=25, derandomize=True, database=None, deadline=None)
Answer = tuple[str, tuple[int, ...]] | None


def fleet(nodes: list[world.Node]) -> list[Node]:
    return [Node(name, Shape(*shape)) for name, *shape in nodes]


def answers(admission: Admission, requests: t.Iterable[world.Request], *, reviewed: bool = True) -> list[Answer]:
    found: list[Answer] = []
    for request in requests:
        if reviewed and admission.due:
            admission.review()
        place = admission.place(Request(*request))
        found.append(None if place is None else (place.node, place.gpus))
    return found


def history(mix: str, count: int = 300, seed: str = "history") -> list[Request]:
    return [Request(*each) for each in itertools.islice(world.draw(world.MIXES[mix], seed), count)]


def lesson(mix: str, policy: str = "futures") -> Lesson:
    """As if it had been replayed."""
    return Lesson({request: float(count) for request, count in Counter(history(mix, 600)).items()}, policy, {policy: 1.0})


def filled(nodes: list[world.Node], requests: list[world.Request], places: t.Sequence[Answer]) -> float:
    return sum(request.size for request, place in zip(requests, places, strict=True) if place is not None) / world.capacity(nodes)


def arriving(mix: str, count: int, seed: str) -> tuple[list[world.Node], list[world.Request]]:
    nodes = world.make_nodes(world.MIXES[mix].fleet, count, seed)
    return nodes, world.stream(world.draw(world.MIXES[mix], seed), 1.3 * world.capacity(nodes))


@QUICK
@given(st.sampled_from(POLICIES), st.sampled_from(sorted(world.MIXES)), st.sampled_from(sorted(world.MIXES)), st.integers(0, 99))
def test_every_place_is_right_and_nothing_that_fits_is_refused(policy: t.Any, mix: str, learnt: str, seed: int) -> None:
    nodes, requests = arriving(mix, 7, str(seed))
    places = answers(Admission(fleet(nodes), lesson(learnt, policy.name)), requests, reviewed=False)
    assert complaints(nodes, requests, places) == []


def test_places_are_right_across_reviews_and_a_change_of_policy() -> None:
    nodes, requests = arriving("model-bound", 14, "1")
    admission = Admission(fleet(nodes), lesson("share-heavy", "best-fit"))
    assert complaints(nodes, requests, answers(admission, requests)) == []
    assert admission.lesson.policy != "best-fit"


@settings(QUICK, max_examples=6)
@given(st.sampled_from(["default", "multi-gpu", "model-bound"]), st.randoms(use_true_random=False))
def test_names_and_order_of_the_nodes_change_nothing_but_names(mix: str, rng: random.Random) -> None:
    nodes, requests = arriving(mix, 7, "order")
    known = lesson(mix)
    turned = rng.sample(nodes, len(nodes))
    plain = answers(Admission(fleet(nodes), known), requests[:40])
    assert answers(Admission(fleet(turned), known), requests[:40]) == plain
    renamed = [node._replace(name=f"host{number}") for number, node in enumerate(turned)]
    shape = {node.name: node[1:] for node in (*nodes, *renamed)}
    other = answers(Admission(fleet(renamed), known), requests[:40])
    assert [place and (shape[place[0]], place[1]) for place in other] == [place and (shape[place[0]], place[1]) for place in plain]


def test_a_replay_finds_the_policy_that_fills_most() -> None:
    nodes, _requests = arriving("cpu-tight", 8, "1")
    found = learn(fleet(nodes), history("cpu-tight"))
    assert set(found.shares) == {policy.name for policy in POLICIES}
    assert found.shares[found.policy] >= found.shares["futures"] >= max(found.shares["first-fit"], found.shares["best-fit"]) + 0.03
    assert found == learn(fleet(nodes[::-1]), history("cpu-tight")[::-1])


def test_a_tight_fleet_ends_fuller_than_by_first_fit_whatever_was_learnt() -> None:
    nodes, requests = arriving("cpu-tight", 24, "2")
    peer = FirstFit(nodes)
    first_fit = sum(request.size for request in requests if peer.place(request) is not None) / world.capacity(nodes)
    for known, ahead in ((lesson("cpu-tight"), 0.05), (lesson("share-heavy"), 0.02), (None, 0.02)):
        assert filled(nodes, requests, answers(Admission(fleet(nodes), known), requests)) > first_fit + ahead


def test_what_came_replaces_what_was_expected_when_the_two_differ() -> None:
    nodes, requests = arriving("multi-gpu", 24, "3")
    admission = Admission(fleet(nodes), lesson("share-heavy"))
    answers(admission, requests[:100])
    came = {Request(*request) for request in requests[:100]}
    assert set(admission.lesson.counts) <= came
    assert admission.lesson.requests < 100


def test_a_mix_of_requests_never_seen_is_noticed_within_ten_of_them() -> None:
    nodes, _requests = arriving("default", 24, "3")
    admission = Admission(fleet(nodes), lesson("share-heavy"))
    for _came in range(10):
        admission.place(Request(64_000, 65_536, 8, 1000))
    assert admission.due
    assert set(admission.review().counts) == {Request(64_000, 65_536, 8, 1000)}


def asking(part: int) -> world.Request:
    return world.Request(4_000, 8_192, 1, part)


def taught(requests: t.Iterable[world.Request]) -> Lesson:
    return Lesson({Request(*request): float(count) for request, count in Counter(requests).items()})


def of_parts(lot: t.Sequence[int], count: int, seed: str) -> list[world.Request]:
    """Requests for some part of a GPU, and as many for whole ones."""
    rng = random.Random(f"parts {seed}")
    return [asking(rng.choice(lot) if number % 2 else 1000) for number in range(count)]


def test_parts_of_gpus_never_seen_are_noticed_though_each_of_them_comes_once() -> None:
    # As many parts, and as many whole ones, as were learnt; no single new size comes often enough to be compared.
    nodes, _requests = arriving("default", 24, "3")
    admission = Admission(fleet(nodes), taught(of_parts([100, 200, 500], 2_000, "taught")))
    others = [part for part in range(30, 990, 10) if part not in (100, 200, 500)]
    came = of_parts(others, 40, "came")
    answers(admission, came)
    assert set(admission.lesson.counts) <= {Request(*request) for request in came}


def test_a_few_new_sizes_are_no_other_mix() -> None:
    nodes, _requests = arriving("default", 24, "3")
    admission = Admission(fleet(nodes), taught(of_parts([100, 200, 500], 2_000, "taught")))
    answers(admission, of_parts([100, 200, 500], 129, "came"))
    later = of_parts([100, 200, 500], 120, "later")
    later[20::20] = [asking(part) for part in (310, 320, 330, 340, 350)]
    answers(admission, later, reviewed=False)
    assert not admission.due  # before the next look back, which is as many requests away as have come


def test_many_sizes_that_each_came_once_foretell_more_of_them() -> None:
    nodes, _requests = arriving("default", 24, "3")
    sizes = random.Random("sizes").sample(range(1, 1_000), 600)
    admission = Admission(fleet(nodes), taught(asking(part) for part in sizes[:300]))
    answers(admission, [asking(part) for part in sizes[300:360]])
    assert admission.lesson.requests > 300


@pytest.mark.parametrize("mix", ["default", "share-heavy", "model-bound"])
def test_the_same_mix_adds_to_what_was_learnt(mix: str) -> None:
    nodes, requests = arriving(mix, 40, "4")
    admission = Admission(fleet(nodes), lesson(mix))
    answers(admission, requests[:200])
    assert admission.lesson.requests > 600


def test_two_samples_of_one_mix_do_not_differ_and_two_mixes_do() -> None:
    samples = {(mix, seed): Counter(history(mix, 150, seed)) for mix in ("default", "multi-gpu", "cpu-tight") for seed in ("a", "b")}
    for (mix, _seed), one in samples.items():
        for (other, _other_seed), two in samples.items():
            assert differ(one, two) == (mix != other), (mix, other)


def test_a_lesson_that_is_all_wrong_does_not_break_up_the_nodes_that_large_requests_need() -> None:
    # Taught that only parts of GPUs come, and then every other request is for a whole node.
    nodes = world.make_nodes(world.EQUAL, 12, "6")
    large, small = world.Request(64_000, 65_536, 8, 1000), world.Request(2_000, 4_096, 1, 500)
    requests = [small, large] * 11
    places = answers(Admission(fleet(nodes), lesson("share-heavy")), requests)
    assert sum(place is not None for place in places[1::2]) == 11


def test_a_small_fleet_is_rehearsed_on_what_came_long_before_it_is_full() -> None:
    nodes, requests = arriving("multi-gpu", 12, "3")
    admission = Admission(fleet(nodes), lesson("share-heavy"))
    taught = admission.lesson.shares
    answers(admission, requests[:64])
    assert admission.lesson.shares != taught
    assert set(admission.lesson.shares) == {policy.name for policy in POLICIES}
    assert admission.lesson.requests < 128


def test_halves_of_what_is_known_share_out_every_request_evenly() -> None:
    known = {Request(number, 1, 1, 500): count for number, count in enumerate([5.0, 1.0, 1.0, 2.0, 3.0])}
    one, two = halves(known)
    assert {request: one.get(request, 0) + two.get(request, 0) for request in known} == known
    assert all(abs(one.get(request, 0) - two.get(request, 0)) <= 1 for request in known)
    assert sum(one.values()) == sum(two.values()) == 6


def test_a_rehearsal_of_small_requests_takes_fewer_nodes_not_more_work() -> None:
    pool = Pool(fleet(world.make_nodes(world.EQUAL, 400, "1")))
    large, small = ({Request(1_000, 1_024, 1, milli): 9.0} for milli in (1000, 100))
    assert len(part_of(pool, large, 1.3).nodes) > len(part_of(pool, small, 1.3).nodes) >= FEWEST_NODES
    assert len(part_of(pool, large, 1.3).nodes) * 8 * 1.3 <= REQUESTS_REPLAYED


def test_what_stands_on_a_node_is_counted_by_size_until_it_leaves() -> None:
    pool = Pool([Node("one", Shape(8_000, 8_192, 2, "A100"))])
    half, whole, cpu = Request(1_000, 1_024, 1, 500), Request(1_000, 1_024, 1, 1000), Request(1_000, 1_024, 0, 0)
    gpus = pool.take(half, 0, 0)
    twin = pool.copy()
    twin.take(whole, 0, -1)
    twin.take(cpu, 0, -1)
    here = np.array([0])
    assert [int(each[0]) for each in (*twin.alike(half, here), *pool.alike(whole, here))] == [1, 2, 0, 1]
    pool.give_back(half, 0, gpus)
    assert [int(each[0]) for each in pool.alike(half, here)] == [0, 0]


def test_room_that_is_given_back_is_taken_again() -> None:
    nodes = [Node("one", Shape(8_000, 8_192, 2, "A100"))]
    admission = Admission(nodes)
    half, both = Request(1_000, 1_024, 1, 500), Request(2_000, 2_048, 2, 1000)
    first = admission.place(half)
    assert first == Place("one", (0,))
    assert admission.place(both) is None
    admission.release(half, first)
    assert admission.place(both) == Place("one", (0, 1))


def test_two_nodes_of_one_name_are_named() -> None:
    with pytest.raises(ValueError, match="more than one node is called a"):
        Admission([Node(name, Shape(1, 1, 1, "T4")) for name in "aba"])


def test_nothing_known_and_nothing_there_are_no_trouble() -> None:
    assert Admission([]).place(Request(1, 1, 1, 500)) is None
    assert learn([], []).counts == {}
    cpu_only = Request(1_000, 1_024, 0, 0)
    admission = Admission([Node("one", Shape(40_000, 65_536, 0, ""))], learn([Node("one", Shape(40_000, 65_536, 0, ""))], [cpu_only] * 200))
    assert [admission.place(cpu_only) for _each in range(41)] == [Place("one", ())] * 40 + [None]


def test_a_decision_on_1200_nodes_takes_well_under_50_ms() -> None:
    nodes = world.make_nodes(world.MIXES["default"].fleet, 1_200, "5")
    admission = Admission(fleet(nodes), lesson("default"))
    spent = []
    for request in history("default", 120, "5"):
        start = time.process_time()
        admission.place(request)
        spent.append(time.process_time() - start)
    assert sorted(spent)[int(0.9 * len(spent))] < 0.05


# The benchmark's own parts: whoever tries another trace must be able to trust them.

PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos
a,6000,12288,1,460,,LS
b,12000,16384,1,1000,V100M16|V100M32,LS
c,3000,1024,0,,,BE
d,64000,262144,8,1000,,LS
e,8000,30517.5,1,,T4,LS
f,4000,15258,1,220,nan,BE
"""


def test_a_trace_of_pods_is_read(tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text(PODS, encoding="utf-8")
    assert world.read_trace(tmp_path / "pods.csv") == [
        world.Request(6000, 12288, 1, 460),
        world.Request(12000, 16384, 1, 1000, ("V100M16", "V100M32")),
        world.Request(3000, 1024, 0, 0),
        world.Request(64000, 262144, 8, 1000),
        world.Request(8000, 30518, 1, 1000, ("T4",)),
        world.Request(4000, 15258, 1, 220),
    ]


def test_the_mix_of_the_published_trace_is_read() -> None:
    mix = world.read_mix(world.PUBLISHED)
    nodes = world.make_nodes(mix.fleet, 1_213, "1")
    assert abs(world.capacity(nodes) / 1000 / 6_212 - 1) < 0.01
    sizes = [request.size for request in itertools.islice(world.draw(mix, "1"), 5_000)]
    # About the proportions that the paper tells of all pods: of CPU alone, a part of a GPU, and several.
    assert abs(sizes.count(0) / 5_000 - 0.133) < 0.03
    assert abs(sum(0 < size < 1000 for size in sizes) / 5_000 - 0.378) < 0.06
    assert 0.003 < sum(size > 1000 for size in sizes) / 5_000 < 0.02


@pytest.mark.parametrize("row", ["x,1000,1024,2,500,,", "x,1000,1024,1,1500,,", "x,-1,1024,1,500,,"])
def test_a_row_that_makes_no_sense_is_named(tmp_path: Path, row: str) -> None:
    (tmp_path / "pods.csv").write_text(f"{PODS}{row}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"pods\.csv:8"):
        world.read_trace(tmp_path / "pods.csv")


def test_a_list_of_nodes_is_read_and_those_without_gpus_left_out(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\nn2,96000,393216,0,\n", encoding="utf-8")
    assert world.read_nodes(tmp_path / "nodes.csv") == [world.Node("n1", 64000, 262144, 2, "P100")]


NODES_FILE = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,T4\nn2,96000,393216,8,V100M16\n"
BAD_FILES = {
    "no column num_gpu": ("--trace", PODS.replace("num_gpu", "gpus")),
    "nothing but a header": ("--trace", PODS.splitlines()[0]),
    "pods:8: cpu_milli is 'x', not a number": ("--trace", f"{PODS}f,x,1,1,500,,\n"),
    "pods:8: cpu_milli is 'inf', not a number": ("--trace", f"{PODS}f,inf,1,1,500,,\n"),
    "no request asks for a GPU": ("--trace", "cpu_milli,memory_mib,num_gpu,gpu_milli\n1000,1024,0,\n"),
    "pods:4: not a node": ("--nodes", f"{NODES_FILE}n1,64000,262144,2,T4\n"),
    "no node has a GPU": ("--nodes", "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,0,\n"),
    "No such file": ("--mix", None),
    "not a mix that can be read": ("--mix", "[1, 2"),
    "an empty list of sizes": ("--mix", '{"requests": [{"weight": 1, "num_gpu": 1, "gpu_milli": 500, "cpu_milli": [], "memory_mib": 1}]}'),
    "1500.5 is no whole number": (
        "--mix",
        '{"requests": [{"weight": 1, "num_gpu": 1, "gpu_milli": 500, "cpu_milli": 1500.5, "memory_mib": 1}]}',
    ),
    "'1' is no whole number": ("--mix", '{"requests": [{"weight": 1, "num_gpu": 1, "gpu_milli": 500, "cpu_milli": 1, "memory_mib": "1"}]}'),
    "nan is no weight": ("--mix", '{"requests": [{"weight": NaN, "num_gpu": 1, "gpu_milli": 500, "cpu_milli": 1, "memory_mib": 1}]}'),
    "pods:8: cpu_milli is '1e25', which nobody asks for": ("--trace", f"{PODS}f,1e25,1,1,500,,\n"),
    "pods:8: num_gpu is '1.5', which nobody asks for": ("--trace", f"{PODS}f,1,1,1.5,1000,,\n"),
    "not a CSV file that can be read": ("--trace", f'{PODS}f,1,1,1,500,"{"x" * 140_000}\n'),
    "'num_gpu' is missing": ("--mix", '{"requests": [{"weight": 1, "gpu_milli": 1000, "cpu_milli": 1, "memory_mib": 1}]}'),
    "it asks for no GPU": ("--mix", '{"requests": [{"weight": 1, "num_gpu": 0, "gpu_milli": 0, "cpu_milli": 1, "memory_mib": 1}]}'),
    "not a request that can be made": (
        "--mix",
        '{"requests": [{"weight": 1, "num_gpu": 2, "gpu_milli": 500, "cpu_milli": 1, "gib": [1]}]}',
    ),
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    option, told = BAD_FILES[text]
    if told is not None:
        (tmp_path / "pods").write_text(told, encoding="utf-8")
    with pytest.raises(SystemExit):
        bench.main(["--mix", "default", option, str(tmp_path / "pods")])
    assert text in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_trace_on_nodes_of_a_list_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pods.csv").write_text("\ufeff" + PODS.replace("name,", "name, "), encoding="utf-8")
    (tmp_path / "nodes.csv").write_text(NODES_FILE, encoding="utf-8")
    words = ["--trace", str(tmp_path / "pods.csv"), "--nodes", str(tmp_path / "nodes.csv"), "--seeds", "one", "--learn-on", "cpu-tight"]
    assert bench.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["violations"] == []
    assert found["mixes"]["pods"]["gpus"] == 10
    assert found["mixes"]["pods"]["learnt_on_other"]["mix"] == "cpu-tight"


def test_a_made_up_world_is_the_same_each_time_and_fits_its_fleet() -> None:
    for number in range(20):
        one = search.made_up(number)
        assert one == search.made_up(number) != search.made_up(number + 1)
        nodes = world.make_nodes(one.mix.fleet, one.size, "1")
        for request in itertools.islice(world.draw(one.mix, "1"), 40):
            assert any(Shape(*node[1:]).holds(Request(*request)) for node in nodes)


NODES = [world.Node("a", 4000, 4096, 2, "T4"), world.Node("b", 4000, 4096, 1, "A100")]
HALF = world.Request(1000, 1024, 1, 600)
WRONG = {
    "is taken beyond what it is": ([HALF, HALF], [("a", (0,)), ("a", (0,))]),
    "was refused, and b has room": ([world.Request(4000, 1024, 0, 0), world.Request(1000, 1024, 1, 1000)], [("a", ()), None]),
    "too little cpu": ([world.Request(5000, 1024, 0, 0)], [("a", ())]),
    "too little memory": ([world.Request(1000, 5000, 0, 0)], [("a", ())]),
    "is a T4": ([HALF._replace(models=("A100",))], [("a", (0,))]),
    "GPUs for 2": ([world.Request(1000, 1024, 2, 1000)], [("a", (1, 1))]),
    "no GPU of the numbers": ([HALF], [("b", (1,))]),
    "there is no node": ([HALF], [("z", (0,))]),
    "1 answers for 2": ([HALF, HALF], [("a", (0,))]),
}


@pytest.mark.parametrize("text", WRONG)
def test_the_judge_finds_what_is_wrong(text: str) -> None:
    requests, places = WRONG[text]
    assert any(text in line for line in complaints(NODES, requests, places))


def test_the_judge_is_content_with_what_is_right() -> None:
    requests = [HALF, world.Request(1000, 1024, 1, 400), world.Request(1000, 1024, 2, 1000)]
    assert complaints(NODES, requests, [("a", (0,)), ("a", (0,)), None]) == []


def test_a_mix_without_gpus_is_no_mix_for_this_benchmark() -> None:
    empty = world.Mix("none", [{"weight": 1, "num_gpu": 0, "gpu_milli": 0, "cpu_milli": 1000, "memory_mib": 1}], world.EQUAL)
    with pytest.raises(ValueError, match="asks for no GPU"):
        next(world.draw(empty, "1"), None)
    with pytest.raises(ValueError, match="asks for no GPU"):
        next(world.again([world.Request(1, 1, 0, 0)], "1"), None)
