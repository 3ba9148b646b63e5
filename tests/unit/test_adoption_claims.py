# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is on which GPU or slice of a host that nobody planned."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.claims import Seat, read_seats, service_name
from decide_world import A100, facts, gpu_facts

Made = dict[str, t.Any]


def gpu(number: int = 0, slices: str = "", **more: t.Any) -> Made:
    return gpu_facts(number, slices=slices, holders=more.pop("holders", []), **more)


def box(name: str, *devices: str, **more: t.Any) -> Made:
    """A container of the facts."""
    made: Made = {
        "id": name.ljust(12, "0")[:12],
        "name": name,
        "image": f"reg/{name}:1",
        "state": "running",
        "project": None,
        "service": None,
        "devices": list(devices),
        "ports": [],
        "cpus": None,
        "memory_mib": None,
        "shm_mib": None,
        "labels": {},
    }
    return {**made, **more}


def holder(process: str | None, pid: int = 1, gi: int | None = None, **more: t.Any) -> Made:
    made: Made = {"pid": pid, "process": process, "user": "ann", "container": None, "slice": None if gi is None else {"gi": gi, "ci": 0}}
    return {**made, "kind": "compute", **more}


def read(gpus: t.Sequence[Made], *containers: Made, **more: t.Any) -> tuple[list[str], list[str]]:
    """('what mode places memory', ...) and ('what: reason', ...)."""
    seats, out = read_seats("h1", facts(gpus, containers=list(containers)), **more)
    return [words(seat) for seat in seats], [f"{left.what}: {left.reason}" for left in out]


def words(seat: Seat) -> str:
    places = "+".join(place.gpu.rpartition("-")[2] + (f":{place.slice}" if place.slice else "") for place in seat.places)
    return f"{seat.owner.what} {seat.mode} {places} {seat.memory_mib}"


# Containers


def test_a_container_on_a_slice_has_the_memory_of_the_slice() -> None:
    seats, out = read([gpu(0, "1g.10gb@3 3g.40gb@4")], box("ocr", "MIG-h1-0-3"), box("big", "MIG-h1-0-4"))
    assert seats == ["container big mig 0:3g.40gb@4 40192", "container ocr mig 0:1g.10gb@3 9856"]
    assert out == []


def test_a_container_on_several_slices_has_a_seat_on_each() -> None:
    seats, _out = read([gpu(0, "1g.10gb@0 1g.10gb@1 1g.10gb@2")], box("a", "MIG-h1-0-2", "MIG-h1-0-0"))
    assert seats == ["container a mig 0:1g.10gb@0 9856", "container a mig 0:1g.10gb@2 9856"]


def test_gpus_that_one_container_has_for_itself_are_one_seat_with_the_smallest_memory() -> None:
    seats, _out = read([gpu(0), gpu(1, memory_mib=40960), gpu(2)], box("llm", "GPU-h1-1", "GPU-h1-0"))
    assert seats == ["container llm whole 0+1 40960"]


def test_a_gpu_of_several_containers_is_shared_in_equal_parts_less_the_reserve() -> None:
    seats, _out = read([gpu(0)], box("a", "GPU-h1-0"), box("b", "GPU-h1-0"), box("c", "GPU-h1-0"), shared_reserve_mib=2048)
    share = (81920 - 2048) // 3
    assert seats == [f"container {name} shared 0 {share}" for name in "abc"]


def test_a_container_that_shares_one_of_its_gpus_has_a_share_of_each() -> None:
    seats, _out = read([gpu(0), gpu(1), gpu(2)], box("a", "GPU-h1-0", "GPU-h1-1"), box("b", "GPU-h1-1"))
    alone, half = 81920 - 1024, (81920 - 1024) // 2
    assert seats == [f"container b shared 1 {half}", f"container a shared 0 {alone}", f"container a shared 1 {half}"]


def test_the_share_of_a_small_gpu_is_never_nothing() -> None:
    seats, _out = read([gpu(0, memory_mib=512)], box("a", "GPU-h1-0"), box("b", "GPU-h1-0"))
    assert seats == ["container a shared 0 1", "container b shared 0 1"]


def test_a_slice_has_one_keeper_and_the_other_is_told() -> None:
    seats, out = read([gpu(0, "1g.10gb@0 1g.10gb@1 1g.10gb@2")], box("b", "MIG-h1-0-1"), box("a", "MIG-h1-0-0", "MIG-h1-0-1"))
    assert seats == ["container b mig 0:1g.10gb@1 9856", "container a mig 0:1g.10gb@0 9856"]
    assert out == ["container a: it shares 1g.10gb@1 of GPU 0000:01:00.0 with container b, which keeps the slice for both"]


def test_who_is_given_a_gpu_in_mig_mode_has_all_of_its_usable_slices() -> None:
    board = gpu(0, "1g.10gb@0 1g.10gb@1 1g.10gb@2")
    board["mig"]["instances"][1]["ci"] = []
    seats, _out = read([board, gpu(1)], box("a", "GPU-h1-0"))
    assert seats == ["container a mig 0:1g.10gb@0 9856", "container a mig 0:1g.10gb@2 9856"]


def test_slices_and_whole_gpus_of_one_container_are_seats_of_their_own() -> None:
    seats, _out = read([gpu(0, "1g.10gb@0"), gpu(1), gpu(2)], box("a", "MIG-h1-0-0", "GPU-h1-2"))
    assert seats == ["container a mig 0:1g.10gb@0 9856", "container a whole 2 81920"]


def test_stopped_containers_keep_their_place_too() -> None:
    assert read([gpu(0)], box("a", "GPU-h1-0", state="exited"))[0] == ["container a whole 0 81920"]


def test_containers_whose_short_ids_are_equal_are_two() -> None:
    seats, _out = read([gpu(0), gpu(1), gpu(2)], box("a", "GPU-h1-0", id="0" * 12), box("b", "GPU-h1-1", id="0" * 12))
    assert seats == ["container a whole 0 81920", "container b whole 1 81920"]


@pytest.mark.parametrize(
    "image",
    ["nvcr.io/nvidia/k8s/dcgm-exporter:4.8", "gcr.io/cadvisor/cadvisor:v0.49", "portainer/agent:2", "x/utkuozdemir/nvidia_gpu_exporter:1"],
)
def test_containers_that_only_watch_are_left_out_with_their_processes(image: str) -> None:
    board = gpu(0, holders=[holder("dcgm", container="watch0000000")])
    assert read([board], box("watch", "GPU-h1-0", image=image)) == ([], [f"container watch: it only watches (image {image})"])


def test_what_watches_can_be_said() -> None:
    assert read([gpu(0)], box("a", "GPU-h1-0"), watchers=["reg/a:*"])[0] == []
    assert read([gpu(0)], box("a", "GPU-h1-0", image="gcr.io/cadvisor/cadvisor:v0.49"), watchers=[])[0] == ["container a whole 0 81920"]


def waiting(board: Made) -> Made:
    return {**board, "mig": {**board["mig"], "pending": not board["mig"]["current"]}}


def without_geometry(board: Made) -> Made:
    return {**board, "mig": {**board["mig"], "geometry": None}}


@pytest.mark.parametrize(
    ("board", "device", "reason"),
    [
        (gpu(0), "GPU-elsewhere", "which is not on this host"),
        ({**gpu(0), "state": "lost", "mig": None}, "GPU-h1-0", "which does not answer"),
        ({**gpu(0), "state": "error", "mig": None}, "GPU-h1-0", "which does not answer"),
        (waiting(gpu(0)), "GPU-h1-0", "whose MIG mode waits for a reset"),
        (waiting(gpu(0, "1g.10gb@0")), "MIG-h1-0-0", "whose MIG mode waits for a reset"),
        (without_geometry(gpu(0, "1g.10gb@0")), "MIG-h1-0-0", "of which the driver does not say how it can be cut"),
        (
            {**gpu(0), "mig": {"current": True, "pending": True, "geometry": "x", "instances": []}},
            "GPU-h1-0",
            "whose MIG is on and which has no slice that can be used",
        ),
    ],
)
def test_a_device_on_which_nothing_can_be_kept_is_told(board: Made, device: str, reason: str) -> None:
    assert read([board], box("a", device)) == ([], [f"container a: it names {device}, {reason}"])


def test_a_board_without_mig_and_one_whose_mig_is_off_are_whole() -> None:
    off = without_geometry(gpu(1))
    seats, _out = read([{**gpu(0), "mig": None}, off, gpu(2)], box("a", "GPU-h1-0"), box("b", "GPU-h1-1"))
    assert seats == ["container a whole 0 81920", "container b whole 1 81920"]


# Containers that name everything


def test_who_names_every_gpu_gives_way_to_who_names_one() -> None:
    seats, out = read([gpu(0), gpu(1)], box("all", "GPU-h1-0", "GPU-h1-1"), box("llm", "GPU-h1-0"))
    assert seats == ["container all whole 1 81920", "container llm whole 0 81920"]
    assert out == []


def test_who_names_every_gpu_and_was_seen_on_one_stays_there() -> None:
    board = gpu(0, holders=[holder("python", container="all000000000")])
    half = (81920 - 1024) // 2
    seats, _out = read([board, gpu(1)], box("all", "GPU-h1-0", "GPU-h1-1"), box("llm", "GPU-h1-0"))
    assert seats == [f"container llm shared 0 {half}", f"container all shared 0 {half}", f"container all shared 1 {81920 - 1024}"]


def test_who_names_every_gpu_where_others_are_on_each_is_told() -> None:
    seats, out = read([gpu(0), gpu(1)], box("all", "GPU-h1-0", "GPU-h1-1"), box("a", "GPU-h1-0"), box("b", "GPU-h1-1"))
    assert seats == ["container a whole 0 81920", "container b whole 1 81920"]
    assert out == ["container all: it names every GPU, others are on each of them, and no process of it was seen"]


def test_on_a_host_with_one_gpu_nobody_gives_way() -> None:
    assert len(read([gpu(0)], box("a", "GPU-h1-0"), box("b", "GPU-h1-0"))[0]) == 2


# Programs outside containers


def test_a_program_on_a_slice_or_a_gpu_has_a_seat() -> None:
    seats, _out = read([gpu(0, "1g.10gb@0", holders=[holder("rank", gi=7)]), gpu(1, holders=[holder("train.py", 2)])])
    assert seats == ["program rank of ann mig 0:1g.10gb@0 9856", "program train.py of ann whole 1 81920"]


def test_a_program_and_its_children_are_one_user() -> None:
    children = [holder("torch", 1), holder("torch", 2)]
    assert read([gpu(0, holders=children), gpu(1, holders=[holder("torch", 1)])])[0] == ["program torch of ann whole 0+1 81920"]


def test_ranks_of_one_program_on_gpus_of_their_own_are_replicas() -> None:
    seats, _out = read([gpu(0, holders=[holder("torch", 1)]), gpu(1, holders=[holder("torch", 2)])])
    assert seats == ["program torch of ann whole 0 81920", "program torch of ann whole 1 81920"]


def test_the_same_program_of_two_users_is_two() -> None:
    seats, _out = read([gpu(0, holders=[holder("python", 1), holder("python", 2, user="bob")]), gpu(1)])
    assert [seat.rpartition(" ")[0] for seat in seats] == ["program python of ann shared 0", "program python of bob shared 0"]


def test_a_program_that_shows_neither_name_nor_user_is_somebody() -> None:
    seats, _out = read([gpu(0, holders=[holder(None, user=None)])])
    assert seats == ["program unknown whole 0 81920"]


def test_a_process_in_a_known_container_is_the_containers() -> None:
    """Also where the container does not name the device: it runs there."""
    board = gpu(1, holders=[holder("python", container="a00000000000")])
    assert read([gpu(0), board, gpu(2)], box("a", "GPU-h1-0"))[0] == ["container a whole 0+1 81920"]


def test_a_process_in_a_container_that_no_engine_tells_of_is_a_program() -> None:
    assert read([gpu(0, holders=[holder("python", container="feed")])])[0] == ["program python of ann whole 0 81920"]


def test_an_open_file_of_a_daemon_is_no_use() -> None:
    idle = [
        holder("nvidia-persiste", 1, kind="open_file"),
        holder("nv-hostengine", 2, kind="open_file"),
        holder("Xorg", 3, kind="graphics"),
    ]
    assert read([gpu(0, holders=idle)]) == ([], [])
    assert read([gpu(0, holders=[holder("nvidia-smi", kind="compute")])])[0] == ["program nvidia-smi of ann whole 0 81920"]
    assert read([gpu(0, holders=[holder("python", kind="open_file")])])[0] == ["program python of ann whole 0 81920"]


def test_a_program_on_a_gpu_in_mig_mode_itself_is_told() -> None:
    seats, out = read([gpu(0, "1g.10gb@0", holders=[holder("monitor", kind="open_file"), holder("gone", 2, gi=99)])])
    assert seats == []
    reason = "it holds GPU 0000:01:00.0 itself, whose MIG is on, and no slice of it"
    assert out == [f"program gone of ann: {reason}", f"program monitor of ann: {reason}"]


def test_a_container_and_a_program_on_one_slice_are_told() -> None:
    seats, out = read([gpu(0, "1g.10gb@0 1g.10gb@1", holders=[holder("python", gi=7)])], box("a", "MIG-h1-0-0"))
    assert seats == ["container a mig 0:1g.10gb@0 9856"]
    assert out == ["program python of ann: it shares 1g.10gb@0 of GPU 0000:01:00.0 with container a, which keeps the slice for both"]


# What an owner says of itself


def owner(**more: t.Any) -> t.Any:
    (seat,), _out = read_seats("h1", facts([gpu(0)], containers=[box("web", "GPU-h1-0", **more)]))
    return seat.owner


def test_amounts_ports_and_image_are_the_containers() -> None:
    ports = [
        {"host": 9001, "container": 8080, "protocol": "tcp"},
        {"host": 9000, "container": 8080, "protocol": "tcp"},
        {"host": None, "container": 81, "protocol": "tcp"},
        {"host": 53, "container": 53, "protocol": "udp"},
        {"host": 9100, "container": 80, "protocol": "tcp"},
    ]
    found = owner(ports=ports, cpus=1.5, memory_mib=2048, shm_mib=64)
    assert found.ports == ((80, 9100), (8080, 9001))
    assert (found.cpus, found.memory_mib, found.shm_mib, found.image, found.host) == (1.5, 2048, 64, "reg/web:1", "h1")


def test_the_team_is_that_of_the_label_as_a_name() -> None:
    assert owner(labels={"gpuops.team": "Claims ML"}).team == "claims-ml"
    assert owner().team is None


@pytest.mark.parametrize(
    ("project", "service", "name"),
    [(None, None, "web"), ("shop", "model", "shop-model"), ("ocr", "ocr", "ocr"), ("shop", None, "web"), (None, "model", "web")],
)
def test_a_compose_service_is_named_after_project_and_service(project: str | None, service: str | None, name: str) -> None:
    assert owner(project=project, service=service).service == name


def test_a_container_of_the_collection_says_which_replica_it_is() -> None:
    made = owner(labels={"gpuops.service": "ocr", "gpuops.replica": "2"}, project="ocr-2", service="model")
    assert (made.replica_of, made.service) == (("ocr", 2), "ocr")
    assert owner(labels={"gpuops.service": "ocr"}).replica_of is None
    assert owner(labels={"gpuops.service": "ocr", "gpuops.replica": "x"}).replica_of is None
    assert owner(labels={"gpuops.replica": "1"}).replica_of is None


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("receipts", "ocr"), "receipts-ocr"),
        (("Speech_to.Text",), "speech-to-text"),
        (("--a--b--",), "a-b"),
        (("1st",), "service-1st"),
        (("x",), "service-x"),
        (("",), "service"),
        ((None, "ocr"), "ocr"),
        (("é",), "service"),
        (("a" * 70,), "a" * 63),
        (("a" * 62 + "-b",), "a" * 62),
    ],
)
def test_what_people_call_a_thing_becomes_a_name(parts: tuple[str | None, ...], name: str) -> None:
    assert service_name(*parts) == name


def test_facts_of_a_host_without_an_engine_have_no_container() -> None:
    made = facts([gpu(0)])
    assert read_seats("h1", {**made, "containers": None}) == ([], [])


def test_profiles_are_looked_up_in_the_boards_own_geometry() -> None:
    other = {**A100.to_dict(), "profiles": [{**profile.__dict__, "memory_mib": 1} for profile in A100.profiles]}
    made = facts([gpu(0, "1g.10gb@0")], containers=[box("a", "MIG-h1-0-0")])
    made["geometries"] = {"other": other, **made["geometries"]}
    assert [seat.memory_mib for seat in read_seats("h1", made)[0]] == [9856]
