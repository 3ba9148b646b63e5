# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A guest's GPU, its physical card, and what each side sees of the other."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.filter.fleet import fleet_hosts
from ansible_collections.gpuops.fleet.plugins.filter.guests import guests_of, passthrough_wish
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.parents import link, read_parent
from ansible_collections.gpuops.fleet.plugins.plugin_utils import parents
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.door import catalogue as read_catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draining import drain_lines
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import host_problems, host_table

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

A, B = "GPU-0000000a-0000-4000-8000-000000000000", "GPU-0000000b-0000-4000-8000-000000000000"
DRAIN = {"by": "lin", "reason": "fan", "since": "2026-11-21T12:00:00Z", "until": None, "force": False}
MANIFEST = """schema: 1
service: ocr
team: claims
environment: prod
image: registry.example.com/ocr@sha256:{digest}
runtime: http
gpu: {{isolation: slice, memory: 8 GiB}}
"""


def guest(*uuids: str) -> dict[str, t.Any]:
    gpus = [{"uuid": uuid, "pci": f"0000:0{number + 1}:00.0", "drain": None} for number, uuid in enumerate(uuids)]
    return {"host": {"drain": None}, "gpus": gpus, "drains_idle": []}


def physical(**drained: t.Any) -> dict[str, t.Any]:
    away = [{"pci": "0000:3b:00.0", "uuid": A}, {"pci": "0000:5e:00.0", "uuid": B}]
    idle = [{**DRAIN, "gpu": uuid, "why": "gone"} for uuid in drained.get("cards", ())]
    return {"host": {"drain": drained.get("host")}, "gpus": [], "passthrough": away, "drains_idle": idle, "driver": {"present": False}}


def linked(*gpus: str, host: str = "kvm-01") -> dict[str, t.Any]:
    return {"host": host, "gpus": list(gpus), "domain": "vm"}


@pytest.mark.parametrize(
    ("uuids", "gpus", "addresses", "cards"),
    [
        ([A], [A], {}, [A]),
        ([A], [A], {A: "0000:3b:00.0"}, ["0000:3b:00.0"]),
        ([A], ["0000:3b:00.0"], {}, ["0000:3b:00.0"]),
        ([A, B], ["0000:5e:00.0", "0000:3b:00.0"], {A: "0000:3b:00.0", B: "0000:5e:00.0"}, ["0000:3b:00.0", "0000:5e:00.0"]),
        ([A, B], ["0000:5e:00.0", "0000:3b:00.0"], {}, [None, None]),
        ([A, B], ["0000:5e:00.0", A], {}, [A, "0000:5e:00.0"]),
        ([A], ["0000:5e:00.0"], {A: "0000:3b:00.0"}, ["0000:5e:00.0"]),
    ],
)
def test_a_card_is_named_only_where_it_is_sure(uuids: list[str], gpus: list[str], addresses: dict[str, str], cards: list[t.Any]) -> None:
    found: list[dict[str, t.Any]] = [{"uuid": uuid, "parent": "0000:01:00.0"} for uuid in uuids]
    link(found, linked(*gpus), addresses)
    assert [gpu["parent"] for gpu in found] == cards
    assert {gpu["parent_host"] for gpu in found} == {"kvm-01"}


def test_the_facts_of_a_guest_carry_the_card(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    fleet_host("a100-sxm4-80gb")
    arguments = {"state_dir": str(tmp_path), "docker_socket": str(tmp_path / "none")}
    alone = run_module("gpu_info", arguments)["facts"]
    assert (alone["parent"], alone["gpus"][0]["parent_host"], alone["gpus"][0]["parent"]) == (None, None, alone["gpus"][0]["pci"])
    found = run_module("gpu_info", {**arguments, "parent": {"host": "kvm-01", "gpus": ["3B:00.0"]}})["facts"]
    assert found["parent"] == {"host": "kvm-01", "gpus": ["0000:3b:00.0"], "domain": None}
    assert (found["gpus"][0]["parent_host"], found["gpus"][0]["parent"]) == ("kvm-01", "0000:3b:00.0")
    # MIG inside a guest is planned as on any host
    plan = planned({"vm-01": found}, {"vm-01": {"fleet_parent": {"host": "kvm-01", "gpus": ["3B:00.0"]}}})
    assert [line["profile"] for line in plan["vm-01"]["services"]] == ["1g.10gb"]


def planned(facts: dict[str, t.Any], variables: dict[str, dict[str, t.Any]]) -> dict[str, t.Any]:
    hosts = {name: {"facts": each, "policy": {"fleet_environment": "prod", **variables.get(name, {})}} for name, each in facts.items()}
    boards: Catalogue = read_catalogue()
    made = plan_fleet([("ocr.yml", MANIFEST.format(digest="a" * 64))], {}, hosts, boards, ["http"])
    return {name: plan.data for name, plan in made.plans.items()}


@pytest.mark.parametrize(
    ("drained", "reason"),
    [
        ({"cards": [A]}, "fan; card 0000:3b:00.0 of kvm-01"),
        ({"host": DRAIN}, "fan; its host kvm-01"),
        ({"cards": [A], "host": {**DRAIN, "by": "kim"}}, "fan; card 0000:3b:00.0 of kvm-01"),
        ({"cards": [B]}, None),
        ({}, None),
    ],
)
def test_a_drain_of_the_card_or_of_its_host_drains_the_guests_gpu(drained: dict[str, t.Any], reason: str | None) -> None:
    seen = parents.see_through({"vm-01": guest(A), "kvm-01": physical(**drained)}, {"vm-01": linked("0000:3b:00.0")})
    (gpu,) = (seen["vm-01"] or {})["gpus"]
    assert (gpu["drain"] or {}).get("reason") == reason


def test_a_drain_of_its_own_rules_unless_the_other_is_by_force() -> None:
    mine = guest(A)
    mine["gpus"][0]["drain"] = {**DRAIN, "by": "kim"}
    for force, by in ((False, "kim"), (True, "lin")):
        known = physical(host={**DRAIN, "force": force})
        seen = parents.see_through({"vm-01": mine, "kvm-01": known}, {"vm-01": linked(A)})
        assert (seen["vm-01"] or {})["gpus"][0]["drain"]["by"] == by


def test_a_host_knows_which_guest_has_its_card_and_needs_no_driver() -> None:
    seen = parents.see_through({"vm-01": guest(A), "kvm-01": physical(cards=[A])}, {"vm-01": linked(A)})
    host, mine = seen["kvm-01"] or {}, seen["vm-01"] or {}
    assert [entry["guest"] for entry in host["passthrough"]] == ["vm-01", None]
    assert drain_lines("kvm-01", host) == ["kvm-01 GPU 0000:3b:00.0, which vm-01 has: drained by lin (fan), since 2026-11-21T12:00:00Z"]
    assert parents.chain_lines(host) == ["Card 0000:3b:00.0 is given to vm-01.", "Card 0000:5e:00.0 is given to virtual machines."]
    assert parents.chain_lines(mine) == ["GPU 0000:01:00.0 is card 0000:3b:00.0 of kvm-01."]
    table = host_table({"kvm-01": {"facts": host}, "vm-01": {"facts": {**mine, "gpus": [{**mine["gpus"][0], "state": "ok"}]}}})
    assert [line.split()[-2:] for line in table[1:3]] == [["with", "vm-01"], ["virtual", "machines"]]
    assert table[3].endswith("ok (card 0000:3b:00.0 of kvm-01)")
    assert host_problems(host) == []


def test_two_guests_with_one_card_are_refused_whatever_they_call_it() -> None:
    with pytest.raises(FleetError) as caught:
        parents.see_through({"kvm-01": physical()}, {"vm-01": linked(A), "vm-02": linked("0000:3b:00.0")})
    wrong = "host vm-02: fleet_parent.gpus: card 0000:3b:00.0 of kvm-01 is vm-01's already; a card belongs to one guest"
    assert str(caught.value) == wrong
    parents.see_through({}, {"vm-01": linked(A), "vm-02": linked(A, host="kvm-02")})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("kvm-01", "fleet_parent: this is no link"),
        ({"host": "kvm-01"}, "fleet_parent.gpus: expected a list of cards"),
        ({"host": "vm-01", "gpus": [A]}, "fleet_parent.host: this is no other host"),
        ({"host": "kvm-01", "gpus": [A, "0"]}, "fleet_parent.gpus[1]: '0' is neither"),
        ({"host": "kvm-01", "gpu": [A]}, "fleet_parent: this is no link"),
    ],
)
def test_a_wrong_link_is_said_in_one_line(value: t.Any, words: str) -> None:
    with pytest.raises(FleetError) as caught:
        read_parent(value, "vm-01")
    assert words in str(caught.value)


def test_the_inventory_gives_a_host_its_domains() -> None:
    variables: dict[str, dict[str, t.Any]] = {
        "vm-01": {"fleet_parent": {"host": "kvm-01", "gpus": [A.upper().replace("GPU", "gpu")]}},
        "vm-02": {"fleet_parent": {"host": "kvm-01", "gpus": ["3b:00.0"], "domain": "stage"}},
        "vm-03": {"fleet_parent": {"host": "kvm-02", "gpus": ["3b:00.0"]}},
        "kvm-01": {},
    }
    found = [{"domain": "stage", "devices": ["0000:3b:00.0"]}, {"domain": "vm-01", "devices": [A]}]
    assert guests_of("kvm-01", variables, variables) == found
    variables["vm-03"]["fleet_parent"]["host"] = "kvm-01"
    with pytest.raises(AnsibleFilterError, match="is vm-02's already"):
        guests_of("kvm-01", variables, variables)


def test_what_is_wished_no_more_comes_back_and_a_companion_with_its_card() -> None:
    devices = {
        "0000:3b:00.0": {"identity": {"uuid": A}},
        "0000:5e:00.0": {"identity": {"uuid": B}},
        "0000:65:00.0": {"identity": {}},
        "0000:65:00.1": {"identity": {}, "because": "0000:65:00.0"},
    }
    record = json.dumps({"format": 1, "devices": devices})
    assert passthrough_wish([A, "65:00.0"], record) == {
        "vfio": [{"device": A, "state": "vfio"}, {"device": "65:00.0", "state": "vfio"}],
        "host": [{"device": "0000:5e:00.0", "state": "host"}],
    }
    assert [each["device"] for each in passthrough_wish([], record)["host"]] == ["0000:3b:00.0", "0000:5e:00.0", "0000:65:00.0"]
    assert passthrough_wish([], "") == {"vfio": [], "host": []}


def test_the_hosts_of_a_play_see_a_parent_that_is_not_among_them(tmp_path: Path) -> None:
    (tmp_path / "kvm-01.json").write_text(json.dumps(physical(host=DRAIN)), encoding="utf-8")
    variables = {
        "vm-01": {"ansible_facts": {"gpuops_fleet": guest(A)}, "fleet_parent": {"host": "kvm-01", "gpus": [A]}},
        "vm-02": {"ansible_facts": {"gpuops_fleet": guest(B)}, "fleet_parent": {"host": "kvm-09", "gpus": [B]}},
    }
    found = fleet_hosts(["vm-01", "vm-02"], variables, str(tmp_path))
    (first,), (second,) = (found[name]["facts"]["gpus"] for name in ("vm-01", "vm-02"))
    assert (first["parent"], first["drain"]["reason"]) == ("0000:3b:00.0", "fan; its host kvm-01")
    assert (second["parent_host"], second["drain"]) == ("kvm-09", None)


def test_a_card_that_a_guest_has_is_drained_by_its_address_at_its_host(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    fleet_host()
    (tmp_path / "passthrough.json").write_text(json.dumps({"format": 1, "devices": {"0000:3b:00.0": {"identity": {"uuid": A}}}}))
    arguments = {"gpu": "3b:00.0", "by": "lin", "reason": "fan", "state_dir": str(tmp_path), "proc_root": str(tmp_path)}
    assert run_module("gpu_drain", arguments)["gpu"] == A
