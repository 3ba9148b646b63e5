# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From seats to manifests and places: names, replicas, what is known already, and the text."""

from __future__ import annotations

import itertools
import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import parse_slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.adoption import Adoption, adopt
from ansible_collections.gpuops.fleet.plugins.plugin_utils.claims import Owner, Place, Seat
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Placement
from decide_world import DIGEST, manifest_text

Mode = t.Literal["mig", "whole", "shared"]
ENVIRONMENTS = {"h1": "production", "h2": "production", "s1": "staging"}


def seat(
    what: str, *where: str, service: str | None = None, on: str = "h1", mode: Mode | None = None, memory: int = 9856, **more: t.Any
) -> Seat:
    """``where``: '0:1g.10gb@3' (GPU number, slice), or '0' for a GPU."""
    values: dict[str, t.Any] = {"image": "reg/ocr:1", **more}
    owner = Owner(on, f"container {what}", service or what, **values)
    places = []
    for text in where:
        number, _ignored, one = text.partition(":")
        places.append(Place(on, f"0000:0{number}:00.0", f"GPU-{on}-{number}", parse_slice(one) if one else None))
    return Seat(owner, mode or ("mig" if places[0].slice else "whole"), tuple(places), memory)


def placed(service: str, where: str, replica: int = 1, on: str = "h1", mode: Mode = "mig", **ports: int) -> Placement:
    number, _ignored, one = where.partition(":")
    gpus = tuple(f"GPU-{on}-{each}" for each in number.split(","))
    found = tuple(sorted((name.replace("_", "-"), port) for name, port in ports.items()))
    return Placement(service, replica, on, "mig" if one else mode, gpus, parse_slice(one) if one else None, found)


def run(*seats: Seat, existing: t.Sequence[Manifest] = (), previous: t.Sequence[Placement] = (), **more: t.Any) -> Adoption:
    result = adopt(seats, ENVIRONMENTS, existing, previous, **more)
    for service, text in result.manifests.items():
        assert read_manifest(f"{service}.yml", text).service == service
    return result


def written(result: Adoption, service: str) -> Manifest:
    return read_manifest(f"{service}.yml", result.manifests[service])


def left(result: Adoption) -> list[str]:
    return [f"{each.host} {each.what}: {each.reason}" for each in result.left_out]


# Manifests


def test_a_container_becomes_a_manifest_and_a_place() -> None:
    result = run(seat("ocr", "0:1g.10gb@3", team="claims", ports=((80, 9100), (8080, 9001)), cpus=1.5, memory_mib=2048, shm_mib=64))
    assert result.manifests == {
        "ocr": (
            "# Found running. Its place is kept; nothing of it is started or stopped until its owner writes 'lifecycle: managed'.\n"
            "schema: 1\n"
            "service: ocr\n"
            "team: claims\n"
            "environment: production\n"
            "description: Found running as container ocr on h1\n"
            'image: "reg/ocr:1"\n'
            "replicas: 1\n"
            "gpu: {isolation: slice, memory: 9856 MiB}\n"
            "host: {cpus: 1.5, memory: 2 GiB, shm: 64 MiB}\n"
            "ports:\n"
            "  - {name: port-80, container: 80, host: 9100}\n"
            "  - {name: port-8080, container: 8080, host: 9001}\n"
            "lifecycle: adopted\n"
        )
    }
    assert result.placements == [placed("ocr", "0:1g.10gb@3", port_80=9100, port_8080=9001)]
    assert [(str(place), replica, what) for place, replica, what in result.kept] == [
        ("1g.10gb@3 of GPU 0000:00:00.0", "ocr-1", "container ocr")
    ]
    assert result.left_out == []


def test_what_is_not_known_is_left_to_the_defaults_of_a_manifest() -> None:
    result = run(seat("ocr", "0", "1", image=None, memory=81920))
    lines = result.manifests["ocr"].splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "schema",
        "service",
        "team",
        "environment",
        "description",
        "replicas",
        "gpu",
        "lifecycle",
    ]
    assert "team: unassigned" in lines
    assert "gpu: {isolation: exclusive, count: 2, memory: 80 GiB}" in lines
    assert result.placements == [placed("ocr", "0,1", mode="whole")]


def test_a_share_of_a_gpu_is_a_shared_service() -> None:
    result = run(seat("aa", "0", mode="shared", memory=40448))
    assert written(result, "aa").model.gpu.isolation == "shared"
    assert result.placements == [placed("aa", "0", mode="shared")]


def test_the_team_of_those_without_one_can_be_said() -> None:
    result = run(seat("aa", "0", team="claims"), seat("bb", "1"), team="research")
    assert (written(result, "aa").model.team, written(result, "bb").model.team) == ("claims", "research")


@pytest.mark.parametrize(
    ("image", "text"),
    [
        ("ocr", "image: ocr"),
        ("null", 'image: "null"'),
        ("Yes", 'image: "Yes"'),
        ("7", 'image: "7"'),
        ("reg/a@sha256:" + DIGEST, f'image: "reg/a@sha256:{DIGEST}"'),
        ('a"b\\c', 'image: "a\\"b\\\\c"'),
        ("a # b", 'image: "a # b"'),
        ("a\nb", 'image: "a?b"'),
        ("größe", 'image: "größe"'),
    ],
)
def test_whatever_a_container_says_is_text_in_the_manifest(image: str, text: str) -> None:
    result = run(seat("aa", "0", image=image))
    assert text in result.manifests["aa"].splitlines()
    assert written(result, "aa").model.image == image.replace("\n", "?")


# Replicas


def test_seats_that_are_alike_are_replicas_on_whatever_host_in_the_order_of_hosts_and_names() -> None:
    seats = [
        seat("xx-2", "1:1g.10gb@1", service="xx", memory=9984),
        seat("xx-1", "1:1g.10gb@2", service="xx", on="h2", memory=9000, cpus=1.0, shm_mib=64),
        seat("xx-1", "1:1g.10gb@0", service="xx", cpus=4.0, memory_mib=4096),
    ]
    result = run(*seats)
    model = written(result, "xx").model
    assert (model.replicas, model.gpu.memory, model.host.cpus, model.host.memory, model.host.shm) == (3, 9000, 4, 4096, 64)
    assert model.description == "Found running as container xx-1 on h1, container xx-2 on h1, container xx-1 on h2"
    assert result.placements == [
        placed("xx", "1:1g.10gb@0", 1),
        placed("xx", "1:1g.10gb@1", 2),
        placed("xx", "1:1g.10gb@2", 3, on="h2"),
    ]
    for order in itertools.permutations(seats):
        assert run(*order) == result


def test_a_port_of_the_host_is_asked_for_by_a_single_replica_only() -> None:
    result = run(seat("xx-1", "0", service="xx", ports=((80, 9001),)), seat("xx-2", "1", service="xx", ports=((80, 9002),)))
    assert [(port.name, port.container, port.host) for port in written(result, "xx").model.ports] == [("port-80", 80, None)]
    assert [placement.ports for placement in result.placements] == [(("port-80", 9001),), (("port-80", 9002),)]


def test_a_container_on_several_slices_is_several_replicas_with_its_ports_once() -> None:
    ports = ((80, 9001),)
    result = run(*(seat("xx", f"0:1g.10gb@{start}", on=on, ports=ports) for start, on in ((0, "h1"), (1, "h1"), (1, "h2"))))
    assert written(result, "xx").model.description == "Found running as container xx on h1, container xx on h2"
    assert result.placements == [
        placed("xx", "0:1g.10gb@0", 1, port_80=9001),
        placed("xx", "0:1g.10gb@1", 2),
        placed("xx", "0:1g.10gb@1", 3, on="h2", port_80=9001),
    ]


OTHER: list[dict[str, t.Any]] = [
    {"on": "s1"},
    {"team": "other"},
    {"image": "reg/ocr:2"},
    {"image": None},
    {"mode": "shared"},
    {"ports": ((81, 9001),)},
]


@pytest.mark.parametrize("other", OTHER)
def test_what_differs_in_more_than_its_place_is_a_service_of_its_own(other: dict[str, t.Any]) -> None:
    result = run(seat("xx-1", "0", service="xx"), seat("xx-2", "1", service="xx", **other))
    assert sorted(result.manifests) == ["xx", "xx-2"]
    assert sorted((each.service, each.replica) for each in result.placements) == [("xx", 1), ("xx-2", 1)]


def test_a_service_on_one_gpu_and_one_on_two_are_two() -> None:
    assert sorted(run(seat("xx-1", "0", service="xx"), seat("xx-2", "1", "2", service="xx")).manifests) == ["xx", "xx-2"]


# Names


def test_names_that_are_taken_get_a_number_and_stay_within_their_length() -> None:
    long = "a" * 62 + "b"
    existing = [read_manifest("m.yml", manifest_text(long)), read_manifest("n.yml", manifest_text("ocr"))]
    result = run(seat("1", "0", service="ocr"), seat("2", "1", service=long, image="z"), existing=existing, taken=["ocr-2", "ocr-3"])
    assert sorted(result.manifests) == ["a" * 61 + "-2", "ocr-4"]


def test_a_number_is_never_put_behind_two_hyphens() -> None:
    name = "a" * 60 + "-bb"
    result = run(seat("1", "0", service=name), existing=[read_manifest("m.yml", manifest_text(name))])
    assert list(result.manifests) == ["a" * 60 + "-2"]


# What is known already


def known(*seats: Seat, **more: t.Any) -> tuple[Adoption, list[Manifest]]:
    first = run(*seats, **more)
    return first, [read_manifest(f"{name}.yml", text) for name, text in first.manifests.items()]


def test_adopting_again_adds_nothing_and_still_tells_who_is_where() -> None:
    seats = [
        seat("aa", "0:1g.10gb@0"),
        seat("bb", "1", "2"),
        seat("cc", "3", mode="shared"),
        seat("dd", "3", mode="shared", image="reg/d:1"),
    ]
    first, manifests = known(*seats)
    again = run(*seats, existing=manifests, previous=first.placements)
    assert (again.manifests, again.placements, again.left_out) == ({}, [], [])
    assert again.kept == first.kept


def test_a_replica_that_came_later_is_a_service_of_its_own() -> None:
    first, manifests = known(seat("xx-1", "0:1g.10gb@0", service="xx"))
    again = run(
        seat("xx-1", "0:1g.10gb@0", service="xx"), seat("xx-2", "0:1g.10gb@1", service="xx"), existing=manifests, previous=first.placements
    )
    assert list(again.manifests) == ["xx-2"]
    assert again.placements == [placed("xx-2", "0:1g.10gb@1")]


def test_a_place_whose_manifest_is_gone_is_adopted_again() -> None:
    first, _manifests = known(seat("aa", "0"))
    assert run(seat("aa", "0"), existing=[], previous=first.placements).placements == first.placements


def test_a_manifest_whose_plan_is_lost_is_taken_up_again_with_what_its_owner_added() -> None:
    first, manifests = known(seat("xx-1", "0", service="xx", ports=((80, 9001),)), seat("xx-2", "1", service="xx", ports=((80, 9002),)))
    edited = [read_manifest("xx.yml", first.manifests["xx"].replace("team: unassigned", "team: claims\npriority: 90"))]
    again = run(seat("xx-1", "0", service="xx", ports=((80, 9001),)), seat("xx-2", "1", service="xx", ports=((80, 9002),)), existing=edited)
    assert (again.manifests, again.placements) == ({}, first.placements)
    assert manifests[0].service == "xx"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lifecycle: adopted", "lifecycle: managed"),
        ("replicas: 1", "replicas: 2"),
        ("environment: production", "environment: staging"),
        ("isolation: slice", "isolation: shared"),
        (DIGEST, "bb" * 64),
    ],
)
def test_a_manifest_that_describes_something_else_only_has_the_name(old: str, new: str) -> None:
    made = seat("aa", "0:1g.10gb@0", image=f"reg/a@sha256:{DIGEST}")
    first, _manifests = known(made)
    assert old in first.manifests["aa"]
    again = run(made, existing=[read_manifest("aa.yml", first.manifests["aa"].replace(old, new))])
    assert list(again.manifests) == ["aa-2"]


def test_a_manifest_for_more_gpus_describes_something_else() -> None:
    first, manifests = known(seat("aa", "0", "1"))
    assert first.placements[0].gpus == ("GPU-h1-0", "GPU-h1-1")
    assert list(run(seat("aa", "0"), existing=manifests).manifests) == ["aa-2"]


def test_a_manifest_that_a_plan_has_placed_elsewhere_is_not_taken_up() -> None:
    _first, manifests = known(seat("aa", "0:1g.10gb@0"))
    again = run(seat("aa", "0:1g.10gb@0"), existing=manifests, previous=[placed("aa", "0:1g.10gb@5")])
    assert list(again.manifests) == ["aa-2"]


def test_who_stands_on_anothers_gpu_is_told() -> None:
    first, manifests = known(seat("aa", "0"))
    again = run(
        seat("aa", "0", mode="shared"), seat("bb", "0", mode="shared", image="reg/b:1"), existing=manifests, previous=first.placements
    )
    assert (again.manifests, again.placements) == ({}, [])
    assert left(again) == ["h1 container bb: GPU 0000:00:00.0 is by its last plan the place of aa-1"]


def test_one_place_in_the_plan_is_one_users_even_where_two_have_its_image() -> None:
    first, manifests = known(seat("aa", "0", mode="shared"))
    again = run(seat("aa", "0", mode="shared"), seat("bb", "0", mode="shared"), existing=manifests, previous=first.placements)
    assert left(again) == ["h1 container bb: GPU 0000:00:00.0 is by its last plan the place of aa-1"]


def test_who_has_two_gpus_of_which_a_plan_gave_away_one_is_told() -> None:
    first, manifests = known(seat("aa", "0"))
    again = run(seat("aa", "0", "1"), existing=manifests, previous=first.placements)
    assert left(again) == ["h1 container aa: GPU 0000:00:00.0 and GPU 0000:01:00.0 is by its last plan the place of aa-1"]


def test_a_program_is_known_by_its_name() -> None:
    first, manifests = known(seat("pp", "0", service="process-torch", image=None))
    again = run(seat("pp", "0", service="process-torch", image=None), existing=manifests, previous=first.placements)
    assert (again.placements, again.left_out) == ([], [])
    other = run(seat("qq", "0", service="process-other", image=None), existing=manifests, previous=first.placements)
    assert left(other) == ["h1 container qq: GPU 0000:00:00.0 is by its last plan the place of process-torch-1"]


def test_a_slice_that_a_plan_gave_away_is_its_users_whatever_it_is_called() -> None:
    manifests = [read_manifest("m.yml", manifest_text("receipts"))]
    again = run(seat("other", "0:1g.10gb@0"), existing=manifests, previous=[placed("receipts", "0:1g.10gb@0")])
    assert (again.manifests, again.left_out) == ({}, [])
    assert [replica for _place, replica, _what in again.kept] == ["receipts-1"]


def test_the_same_place_on_another_host_is_another() -> None:
    first, manifests = known(seat("aa", "0:1g.10gb@0"))
    again = run(seat("bb", "0:1g.10gb@0", on="h2"), existing=manifests, previous=first.placements)
    assert list(again.manifests) == ["bb"]


# What the collection itself has started


def ours(replica: int = 2, where: str = "0:1g.10gb@0", **more: t.Any) -> Seat:
    return seat("ocr-2", where, service="ocr", replica_of=("ocr", replica), ports=((8080, 18007), (9, 9)), **more)


def test_a_replica_that_the_collection_started_gets_its_place_back_when_the_plan_is_lost() -> None:
    existing = [read_manifest("m.yml", manifest_text("ocr", replicas="2"))]
    result = run(ours(), existing=existing)
    assert result.manifests == {}
    assert result.placements == [placed("ocr", "0:1g.10gb@0", 2, http=18007)]


@pytest.mark.parametrize(
    ("manifest", "replica", "where"),
    [
        ({"replicas": "1"}, 2, "0:1g.10gb@0"),
        ({"replicas": "2"}, 0, "0:1g.10gb@0"),
        ({"replicas": "2", "gpu": "{isolation: shared, memory: 1 GiB}"}, 2, "0:1g.10gb@0"),
        ({"replicas": "2", "gpu": "{isolation: exclusive, memory: 1 GiB, count: 2}"}, 2, "0"),
    ],
)
def test_a_replica_that_its_manifest_does_not_have_is_adopted_as_something_else(manifest: dict[str, str], replica: int, where: str) -> None:
    result = run(ours(replica, where), existing=[read_manifest("m.yml", manifest_text("ocr", **manifest))])
    assert list(result.manifests) == ["ocr-2"]


def test_a_replica_that_stands_elsewhere_by_its_plan_is_adopted_as_something_else() -> None:
    existing = [read_manifest("m.yml", manifest_text("ocr", replicas="2"))]
    result = run(ours(), existing=existing, previous=[placed("ocr", "1:1g.10gb@0", 2)])
    assert list(result.manifests) == ["ocr-2"]


def test_a_replica_on_its_own_gpu_is_known_by_its_label() -> None:
    existing = [read_manifest("m.yml", manifest_text("ocr", gpu="{isolation: exclusive, memory: 1 GiB}"))]
    made = ours(1, "0", image="another name of the same image")
    result = run(made, existing=existing, previous=[placed("ocr", "0", mode="whole")])
    assert (result.manifests, result.left_out) == ({}, [])
