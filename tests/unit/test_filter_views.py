# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people read: published facts that stay still, the tables of check and status, and what is policy among the variables."""

from __future__ import annotations

import copy
import json
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.filter.views import FilterModule
from ansible_collections.gpuops.fleet.plugins.plugin_utils import views
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import OTHER_VARIABLES

ROOT = Path(__file__).resolve().parents[2]
GPU: dict[str, t.Any] = {
    "uuid": "GPU-1",
    "pci": "0000:07:00.0",
    "name": "NVIDIA A100-SXM4-80GB",
    "state": "ok",
    "error": None,
    "memory_mib": 81920,
    "memory_used_mib": 512,
    "temperature_c": 39,
    "power_w": 83,
    "mig": {
        "current": True,
        "pending": True,
        "geometry": "3f0c9b1d2e4a",
        "instances": [
            {"gi": 9, "profile": "1g.10gb", "start": 2, "ci": [{"id": 0, "profile": "1g.10gb", "uuid": "MIG-1"}]},
            {"gi": 2, "profile": "3g.40gb", "start": 4, "ci": [{"id": 0, "profile": "3g.40gb", "uuid": "MIG-2"}]},
        ],
    },
}
WHOLE: dict[str, t.Any] = {**GPU, "uuid": "GPU-2", "pci": "0000:0b:00.0", "name": "NVIDIA L40S", "memory_mib": 46068, "mig": None}
FACTS: dict[str, t.Any] = {
    "schema": 1,
    "host": {"hostname": "a", "cpus": 64, "ports_listening": [22], "disk": {"path": "/srv", "total_mib": 9, "free_mib": 5}},
    "driver": {"present": True, "version": "580.105.08", "error": None},
    "engine": {"docker": {"present": True}},
    "gpus": [GPU, WHOLE],
    "plan": {"serial": 3, "digest": "sha256:1", "state": "done"},
    "errors": [],
}
PLAN: dict[str, t.Any] = {
    "serial": 3,
    "services": [
        {"service": "ocr", "replica": 1, "gpu": "GPU-1", "profile": "1g.10gb", "start": 2},
        {"service": "note", "replica": 1, "gpu": "GPU-2", "mode": "shared"},
        {"service": "note", "replica": 2, "gpu": "GPU-2", "mode": "shared"},
    ],
}


def changed(facts: dict[str, t.Any], path: str, value: t.Any) -> dict[str, t.Any]:
    """A copy of the facts with one of them replaced; ``path`` like ``gpus.0.power_w``."""
    result = copy.deepcopy(facts)
    *parents, last = path.split(".")
    place: t.Any = result
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return result


MOVING = [
    "host.ports_listening",
    "host.disk.free_mib",
    "gpus.0.temperature_c",
    "gpus.1.power_w",
    "gpus.0.memory_used_mib",
    "gpus.0.holders",
    "containers",
]


@pytest.mark.parametrize("path", MOVING)
def test_what_moves_from_minute_to_minute_leaves_published_facts_alone(path: str) -> None:
    assert views.facts_differ(json.dumps(FACTS), changed(FACTS, path, [7])) is False


@pytest.mark.parametrize(
    "path",
    [
        "host.cpus",
        "host.disk.total_mib",
        "driver.version",
        "plan.serial",
        "gpus.0.state",
        "gpus.0.mig.current",
        "gpus.0.mig.instances",
        "gpus.1.uuid",
        "errors",
        "engine.docker.present",
    ],
)
def test_what_a_decision_stands_on_is_published_again(path: str) -> None:
    assert views.facts_differ(json.dumps(FACTS), changed(FACTS, path, "other")) is True


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7"])
def test_a_damaged_file_is_out_of_date(text: str) -> None:
    assert views.facts_differ(text, FACTS) is True


def test_making_facts_stable_leaves_the_facts_themselves_as_they_were() -> None:
    before = copy.deepcopy(FACTS)
    stable = views.stable_facts(FACTS)
    assert before == FACTS
    assert stable["host"] == {"hostname": "a", "cpus": 64, "disk": {"path": "/srv", "total_mib": 9}}
    assert stable["gpus"][1].keys() == WHOLE.keys() - {"temperature_c", "power_w", "memory_used_mib"}


class Lazy(dict[str, object]):
    """A value of Ansible's: a deep copy of it copies all of the templating, and newer cores warn of that."""

    def __deepcopy__(self, _memo: object) -> object:
        raise AssertionError("copied deeply")


def test_comparing_facts_copies_none_of_their_values_deeply() -> None:
    facts = {**FACTS, "host": Lazy(FACTS["host"]), "gpus": [Lazy(gpu) for gpu in FACTS["gpus"]]}
    assert views.facts_differ(json.dumps(FACTS), facts) is False


def test_facts_of_a_host_where_nothing_could_be_read_are_stable_too() -> None:
    assert views.stable_facts({"host": {"disk": None}, "gpus": None}) == {"host": {"disk": None}, "gpus": None}
    assert views.stable_facts({"host": None}) == {"host": None}


def test_a_table_lines_its_columns_up_and_has_no_trailing_space() -> None:
    assert views.table([["A", "LONG", "C"], ["aaa", None, 1], ["", "x", ""]]) == ["A    LONG  C", "aaa  -     1", "     x"]
    assert views.table([]) == []


@pytest.mark.parametrize(
    ("mig", "words"),
    [
        (None, "-"),
        ({"current": True, "pending": True}, "on"),
        ({"current": False, "pending": False}, "off"),
        ({"current": False, "pending": True}, "off (on after a reset)"),
        ({"current": True, "pending": False}, "on (off after a reset)"),
    ],
)
def test_the_mig_mode_is_told_with_what_it_waits_for(mig: dict[str, bool] | None, words: str) -> None:
    assert views.mode_of({"mig": mig}) == words


def test_the_host_table_has_a_line_for_each_gpu_by_host() -> None:
    lost = {**WHOLE, "state": "lost", "error": "GPU is lost"}
    lines = views.host_table({"b": {"facts": {"gpus": [lost]}}, "a": {"facts": FACTS}})
    assert [line.split("  ")[0] for line in lines] == ["HOST", "a", "a", "b"]
    assert lines[1].split() == ["a", "0000:07:00.0", "NVIDIA", "A100-SXM4-80GB", "81920", "on", "1g.10gb@2", "3g.40gb@4", "ok"]
    assert lines[2].split() == ["a", "0000:0b:00.0", "NVIDIA", "L40S", "46068", "-", "-", "ok"]
    assert lines[3].endswith("lost: GPU is lost")


@pytest.mark.parametrize(
    ("driver", "words"),
    [({"error": "Driver Not Loaded"}, "Driver Not Loaded"), ({"error": None}, "no GPU on this host"), (None, "no GPU on this host")],
)
def test_a_host_without_gpus_has_its_line_with_the_reason(driver: dict[str, t.Any] | None, words: str) -> None:
    lines = views.host_table({"a": {"facts": {"gpus": [], "driver": driver}}})
    assert len(lines) == 2
    assert lines[1].split("  ")[0] == "a"
    assert lines[1].endswith(words)


def test_a_host_that_is_well_has_no_problem() -> None:
    assert views.host_problems(FACTS) == []


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({**FACTS, "errors": ["ecc: Unknown Error"]}, "ecc: Unknown Error"),
        ({"driver": {"present": False, "error": "Driver Not Loaded"}}, "no NVIDIA driver: Driver Not Loaded"),
        ({}, "no NVIDIA driver: not loaded"),
        (changed(FACTS, "gpus.1.state", "lost"), "GPU 0000:0b:00.0 is lost: no reason given"),
        ({**FACTS, "gpus": [{"pci": None, "index": 3, "state": "lost", "error": None}]}, "GPU 3 is lost: no reason given"),
        (changed(changed(FACTS, "gpus.1.state", "error"), "gpus.1.error", "Timeout"), "GPU 0000:0b:00.0 is error: Timeout"),
        (changed(FACTS, "gpus.0.mig.pending", False), "GPU 0000:07:00.0: MIG mode waits for a reset (now on (off after a reset))"),
        (changed(FACTS, "gpus.0.mig.instances.1.ci", []), "GPU 0000:07:00.0: slice 3g.40gb@4 has no compute instance: nobody can use it"),
    ],
)
def test_what_would_mislead_a_plan_is_told(facts: dict[str, t.Any], problem: str) -> None:
    assert views.host_problems(facts) == [problem]


def rows(facts: dict[str, t.Any], plan: dict[str, t.Any] | None) -> list[list[str]]:
    """Cells of the status table, without its heading."""
    lines = views.status_table({"a": {"facts": facts, "plan": plan}})
    assert lines[0].split() == ["HOST", "GPU", "BOARD", "SLICE", "SERVICE", "PLAN", "HEALTH"]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[1:]]


def test_the_status_names_who_is_on_each_slice_and_who_shares_a_gpu() -> None:
    facts = {
        **FACTS,
        "containers": [
            {"project": "ocr-1", "state": "running", "health": "healthy"},
            {"name": "note-1", "project": None, "state": "exited"},
        ],
    }
    assert rows(facts, PLAN) == [
        ["a", "0000:07:00.0", "NVIDIA A100-SXM4-80GB", "1g.10gb@2", "ocr-1", "3 done", "running healthy"],
        ["a", "0000:07:00.0", "NVIDIA A100-SXM4-80GB", "3g.40gb@4", "free", "3 done", "-"],
        ["a", "0000:0b:00.0", "NVIDIA L40S", "whole", "note-1, note-2", "3 done", "exited, not running"],
    ]


def test_a_replica_on_two_gpus_is_named_on_both() -> None:
    gpus = [{**WHOLE, "uuid": uuid} for uuid in ("GPU-2", "GPU-3")]
    plan = {"serial": 3, "services": [{"service": "train", "replica": 1, "gpus": ["GPU-2", "GPU-3"], "mode": "whole"}]}
    assert [row[4] for row in rows({**FACTS, "gpus": gpus}, plan)] == ["train-1", "train-1"]


def test_a_host_without_an_engine_says_so_and_one_whose_containers_were_not_read_says_nothing() -> None:
    assert rows({**FACTS, "engine": {"docker": {"present": False}}}, PLAN)[0][6] == "no engine"
    assert rows({**FACTS, "engine": None}, PLAN)[0][6] == "no engine"
    assert rows(FACTS, PLAN)[0][6] == "-"


@pytest.mark.parametrize(
    ("carried", "plan", "words"),
    [
        ({"serial": 2, "state": "done"}, PLAN, "2 done (plan 3 waits)"),
        (None, PLAN, "none (plan 3 waits)"),
        ({"serial": 3, "state": "started"}, PLAN, "3 started"),
        ({"serial": 3, "state": "done"}, None, "3 done"),
        (None, None, "-"),
    ],
)
def test_a_plan_that_was_not_carried_out_yet_is_seen(carried: t.Any, plan: t.Any, words: str) -> None:
    assert {row[5] for row in rows({**FACTS, "plan": carried}, plan)} == {words}


def test_an_ill_gpu_is_more_important_than_its_containers() -> None:
    assert rows(changed(FACTS, "gpus.1.state", "lost"), PLAN)[2][6] == "GPU lost"


def test_a_gpu_in_mig_mode_without_slices_is_uncut() -> None:
    assert rows({**FACTS, "gpus": [changed(GPU, "mig.instances", [])]}, None) == [
        ["a", "0000:07:00.0", "NVIDIA A100-SXM4-80GB", "uncut", "free", "3 done", "-"]
    ]


def test_a_planned_slice_that_is_not_on_the_board_has_its_own_line_and_the_board_is_not_called_free() -> None:
    after_reboot = {**FACTS, "gpus": [changed(GPU, "mig.instances", []), WHOLE]}
    assert [row[3:5] + row[6:] for row in rows(after_reboot, PLAN)] == [
        ["1g.10gb@2", "ocr-1", "not there yet"],
        ["whole", "note-1, note-2", "-"],
    ]
    other = changed(GPU, "mig.instances", GPU["mig"]["instances"][1:])
    assert [row[3:5] + row[6:] for row in rows({**FACTS, "gpus": [other]}, {**PLAN, "services": PLAN["services"][:1]})] == [
        ["3g.40gb@4", "free", "-"],
        ["1g.10gb@2", "ocr-1", "not there yet"],
    ]


def test_a_gpu_that_is_to_be_whole_and_still_has_mig_on_is_not_ready() -> None:
    plan = {"serial": 3, "services": [{"service": "train", "replica": 1, "gpus": ["GPU-1"], "mode": "whole"}]}
    uncut = {**FACTS, "gpus": [changed(GPU, "mig.instances", [])]}
    assert [row[3:5] + row[6:] for row in rows(uncut, plan)] == [["whole", "train-1", "not there yet"]]
    assert [row[4] for row in rows({**FACTS, "gpus": [GPU]}, plan)] == ["free", "free", "train-1"]


def test_who_was_on_a_lost_gpu_is_named_and_a_lost_gpu_is_never_free() -> None:
    lost = {**GPU, "state": "lost", "mig": None}
    assert [row[3:] for row in rows({**FACTS, "gpus": [lost]}, {**PLAN, "services": PLAN["services"][:1]})] == [
        ["1g.10gb@2", "ocr-1", "3 done", "GPU lost"]
    ]
    assert rows({**FACTS, "gpus": [lost]}, None)[0][3:] == ["-", "-", "3 done", "GPU lost"]


def test_a_planned_gpu_that_is_not_on_the_host_has_a_status_line() -> None:
    assert [row[1:5] + row[6:] for row in rows({**FACTS, "gpus": [GPU]}, PLAN)][2:] == [
        ["-", "GPU-2", "whole", "note-1, note-2", "GPU not on this host"]
    ]


ADOPTED: dict[str, t.Any] = {
    "serial": 1,
    "layout": [
        {"gpu": "GPU-1", "mode": "mig"},
        {"gpu": "GPU-1", "profile": "1g.10gb", "start": 2},
        {"gpu": "GPU-1", "profile": "3g.40gb", "start": 4},
    ],
    "services": [{"service": "lab", "replica": 1, "gpu": "GPU-1", "profile": "1g.10gb", "start": 2, "lifecycle": "adopted"}],
}


def test_a_plan_of_an_adoption_that_asks_nothing_of_its_host_does_not_wait() -> None:
    found = {**FACTS, "gpus": [GPU], "plan": None, "containers": []}
    assert {row[5] for row in rows(found, ADOPTED)} == {"1 (nothing to do)"}
    drifted = {**found, "gpus": [changed(GPU, "mig.instances", GPU["mig"]["instances"][:1])]}
    assert {row[5] for row in rows(drifted, ADOPTED)} == {"none (plan 1 waits)"}
    managed = {**ADOPTED, "services": [{key: value for key, value in ADOPTED["services"][0].items() if key != "lifecycle"}]}
    assert {row[5] for row in rows(found, managed)} == {"none (plan 1 waits)"}


def test_an_adopted_service_is_not_called_stopped_for_running_under_another_name() -> None:
    containers = [{"project": "ocr-1", "state": "running"}]
    assert rows({**FACTS, "containers": containers}, ADOPTED)[0][4:] == ["lab-1", "3 done (plan 1 waits)", "adopted"]
    plan = {"serial": 3, "services": [PLAN["services"][1], {**PLAN["services"][2], "lifecycle": "adopted"}]}
    assert rows({**FACTS, "containers": containers}, plan)[2][4:] == ["note-1, note-2", "3 done", "not running, adopted"]


def test_a_host_without_gpus_has_a_status_line() -> None:
    assert rows({"gpus": [], "driver": {"error": "Driver Not Loaded"}}, None) == [["a", "-", "no GPU", "-", "-", "-", "Driver Not Loaded"]]
    assert rows({"driver": None}, None)[0][6] == "-"


def test_policy_is_read_from_every_fleet_variable_and_from_no_other() -> None:
    variables = {"fleet_gpu_modes": ["mig"], "fleet_typo": 1, "ansible_host": "h", "my_fleet_x": 2}
    assert views.policy_of(variables) == {"fleet_gpu_modes": ["mig"], "fleet_typo": 1}


def test_the_settings_that_the_policy_lets_pass_are_those_of_the_role() -> None:
    defaults = yaml.safe_load((ROOT / "roles" / "fleet" / "defaults" / "main.yml").read_text(encoding="utf-8"))
    options = yaml.safe_load((ROOT / "roles" / "fleet" / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"][
        "main"
    ]["options"]
    assert set(options) == OTHER_VARIABLES
    # Two have none: how long one waits for a host is another thing in each playbook, and a host's address is that which Ansible uses.
    assert set(defaults) == OTHER_VARIABLES - {"fleet_lease_wait", "fleet_address"}


@pytest.mark.parametrize("role", sorted(path.name for path in (ROOT / "roles").iterdir()))
def test_a_roles_defaults_are_those_of_its_documentation(role: str) -> None:
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8"))
    options = yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]["main"][
        "options"
    ]
    documented = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: defaults[name] for name in documented} == documented
    assert all(name.startswith(role) for name in options)


def test_what_has_no_place_is_told_with_its_reason() -> None:
    assert views.unplaced_lines([{"service": "llm", "replica": 2, "reason": "no GPU is free"}]) == ["llm replica 2: no GPU is free"]


def test_replicas_without_a_place_for_one_reason_are_one_line() -> None:
    missing = [{"service": "ocr", "replica": number, "reason": "full"} for number in (2, 3, 4, 6, 8, 9)]
    missing += [{"service": "ocr", "replica": 10, "reason": "no port"}, {"service": "llm", "replica": 1, "reason": "full"}]
    assert views.unplaced_lines(missing) == ["ocr replicas 2 to 4, 6, 8, 9: full", "ocr replica 10: no port", "llm replica 1: full"]


def test_every_filter_is_documented_and_used_by_a_playbook_or_a_role() -> None:
    texts = [path.read_text(encoding="utf-8") for folder in ("playbooks", "roles") for path in (ROOT / folder).rglob("*.yml")]
    for name, function in FilterModule().filters().items():
        assert callable(function)
        assert (ROOT / "plugins" / "filter" / f"{name}.yml").exists()
        assert any(f"gpuops.fleet.{name}" in text for text in texts), name


# Drains

FILTERS = FilterModule().filters()
DRAIN: dict[str, t.Any] = {
    "by": "lin",
    "reason": "fan",
    "since": "2026-11-21T12:00:00Z",
    "until": "2026-12-01T23:59:59Z",
    "force": False,
}


def test_every_drain_has_its_line_and_those_that_drain_nothing_say_so() -> None:
    idle = [{**DRAIN, "gpu": "GPU-9", "why": "ended"}, {**DRAIN, "gpu": None, "why": "ended"}, {**DRAIN, "gpu": "GPU-8", "why": "gone"}]
    host = {**FACTS["host"], "drain": {**DRAIN, "by": "ann", "reason": "move", "until": None}}
    known = {**FACTS, "host": host, "gpus": [{**GPU, "drain": {**DRAIN, "force": True}}, WHOLE], "drains_idle": idle}
    lines = FILTERS["drain_lines"]({"b": {"facts": known}, "a": {"facts": FACTS}, "c": {"facts": None}})
    assert lines == [
        "b: the whole host is drained by ann (move), since 2026-11-21T12:00:00Z",
        "b GPU 0000:07:00.0: drained by lin (fan) until 2026-12-01, since 2026-11-21T12:00:00Z, by force",
        "b GPU-9: the drain by lin (fan) ended 2026-12-01; playbook release forgets it",
        "b the whole host: the drain by lin (fan) ended 2026-12-01; playbook release forgets it",
        "b GPU-8: the drain by lin (fan) is for a GPU that is not there any more; playbook release forgets it",
    ]


def test_who_is_on_a_gpu_is_told_by_slice_with_containers_and_processes() -> None:
    holders = [
        {"pid": 77, "process": "python3", "slice": {"gi": 9, "ci": 0}, "kind": "compute"},
        {"pid": 12, "process": "monitor", "slice": None, "kind": "open_file"},
        {"pid": 9, "process": "monitor", "slice": None, "kind": "open_file"},
    ]
    boxes = [{"id": "a", "name": "ocr-1-model-1", "devices": ["MIG-1"]}, {"id": "b", "name": "bench", "devices": ["GPU-2", "MIG-9"]}]
    known = {**FACTS, "gpus": [{**GPU, "holders": holders}, WHOLE], "containers": boxes}
    lines = FILTERS["who_is_on"](known, PLAN, "GPU-1")
    assert [" ".join(line.split()) for line in lines] == [
        "GPU SLICE SERVICE CONTAINER PIDS",
        "0000:07:00.0 1g.10gb@2 ocr-1 ocr-1-model-1 77",
        "0000:07:00.0 whole - - 9, 12",
    ]
    assert [" ".join(line.split()) for line in FILTERS["who_is_on"](known, PLAN, None)][3:] == ["0000:0b:00.0 whole note-1, note-2 bench -"]
    assert FILTERS["who_is_on"]({**FACTS, "gpus": [GPU]}, None, None) == ["nobody is on it"]


def test_what_comes_next_names_the_playbooks() -> None:
    assert any("gpuops.fleet.release --limit h1" in line for line in FILTERS["drain_steps"]("h1", True))
    assert not any("release" in line for line in FILTERS["drain_steps"]("h1", False))
