# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of a replica are kept so that an earlier one can serve again; a rollout is in the books, also one that was interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import versions as kept
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Ledger, path_in
from ansible_collections.gpuops.fleet.plugins.module_utils.rollouts import Begun, Record
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import Device, devices_text
from ansible_collections.gpuops.fleet.plugins.module_utils.versions import Files, Version, Versions, devices_again

if t.TYPE_CHECKING:
    from conftest import RunModule

NOON = "2026-11-21T12:00:00Z"


def files(image: str) -> Files:
    return Files(f"services:\n  model:\n    image: '{image}'\n", '{"format": 1}\n')


def version(digest: str, by: str = "alice", **more: t.Any) -> Version:
    return Version(0, digest, f"ocr@{digest}", by, NOON, "", **more)


def outcomes(versions: Versions) -> list[tuple[int, str, str]]:
    return [(one.number, one.digest, one.outcome) for one in versions.all()]


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path, "ocr-1")


def test_a_new_version_replaces_the_one_before_and_the_same_one_changes_nothing(versions: Versions) -> None:
    assert versions.serve(version("sha256:1"), files("a"), 5).changed
    assert not versions.serve(version("sha256:1", by="bob"), files("a"), 5).changed
    change = versions.serve(version("sha256:2"), files("b"), 5)
    assert change.diff() == {
        "before": f"version 1: serving, sha256:1 of ocr@sha256:1, by alice since {NOON}\n",
        "after": f"version 1: replaced, sha256:1 of ocr@sha256:1, by alice since {NOON}\n"
        f"version 2: serving, sha256:2 of ocr@sha256:2, by alice since {NOON}\n",
    }
    assert outcomes(versions) == [(1, "sha256:1", "replaced"), (2, "sha256:2", "serving")]


def test_the_same_manifest_with_other_files_is_the_same_version_with_the_files_of_now(versions: Versions) -> None:
    versions.serve(version("sha256:1"), files("a"), 5)
    assert versions.serve(version("sha256:1", manifest_text="schema: 1"), files("b"), 5).changed
    (found,) = versions.all()
    assert (found.number, found.manifest_text, versions.files(found)) == (1, "schema: 1", files("b"))


def test_of_one_version_the_newest_text_is_kept(versions: Versions) -> None:
    versions.serve(version("sha256:1", manifest_text="route: {keys: false}"), files("a"), 5)
    assert versions.serve(version("sha256:1", manifest_text="route: {}"), files("a"), 5).changed
    assert not versions.serve(version("sha256:1", manifest_text="route: {}"), files("a"), 5).changed
    assert not versions.serve(version("sha256:1"), files("a"), 5).changed
    assert [(one.number, one.manifest_text) for one in versions.all()] == [(1, "route: {}")]


def test_what_gives_way_to_an_earlier_version_was_rolled_back(versions: Versions) -> None:
    for digest in ("sha256:1", "sha256:2", "sha256:1"):
        versions.serve(version(digest), files(digest), 5)
    assert outcomes(versions) == [(1, "sha256:1", "replaced"), (2, "sha256:2", "rolled-back"), (3, "sha256:1", "serving")]


def test_what_ran_before_versions_were_kept_becomes_one(versions: Versions) -> None:
    change = versions.keep(files("ocr@sha256:9"), NOON)
    assert change.version is not None
    assert (change.version.image, change.version.outcome, change.version.manifest_text) == ("ocr@sha256:9", "serving", None)
    assert not versions.keep(files("something newer"), NOON).changed
    assert versions.keep(None, NOON).version == change.version


def test_a_failure_is_kept_with_its_reason_and_the_same_one_once(versions: Versions) -> None:
    versions.serve(version("sha256:1"), files("a"), 5)
    for reason in ("ended with status 3", "it is not healthy"):
        versions.fail(version("sha256:2", reason=reason), files("b"), 5)
    assert outcomes(versions) == [(1, "sha256:1", "serving"), (2, "sha256:2", "failed")]
    assert versions.all()[-1].reason == "it is not healthy"
    versions.serve(version("sha256:2"), files("b"), 5)
    assert outcomes(versions)[-1] == (3, "sha256:2", "serving")
    assert versions.all()[0].outcome == "replaced"


def test_only_so_many_are_kept_and_always_the_one_that_serves(versions: Versions) -> None:
    versions.serve(version("sha256:0"), files("a"), 2)
    for number in range(1, 5):
        versions.fail(version(f"sha256:{number}"), None, 2)
    assert [number for number, _digest, _outcome in outcomes(versions)] == [1, 4, 5]
    versions.serve(version("sha256:9"), files("a"), 1)
    assert outcomes(versions) == [(1, "sha256:0", "replaced"), (5, "sha256:4", "failed"), (6, "sha256:9", "serving")]


def test_tries_that_fail_leave_the_version_that_can_be_gone_back_to(versions: Versions) -> None:
    versions.serve(version("sha256:1"), files("a"), 3)
    for number in range(2, 8):
        versions.fail(version(f"sha256:{number}"), None, 3)
    versions.serve(version("sha256:8"), files("b"), 3)
    assert outcomes(versions)[0] == (1, "sha256:1", "replaced")
    assert [number for number, _digest, outcome in outcomes(versions) if outcome == "failed"] == [5, 6, 7]


def test_also_after_a_rollback_the_newest_that_was_replaced_is_kept(versions: Versions) -> None:
    for digest in ("sha256:0", "sha256:1", "sha256:2", "sha256:1"):
        versions.serve(version(digest), files(digest), 3)
    assert outcomes(versions) == [
        (1, "sha256:0", "replaced"),
        (2, "sha256:1", "replaced"),
        (3, "sha256:2", "rolled-back"),
        (4, "sha256:1", "serving"),
    ]


def test_the_version_that_served_is_put_back(versions: Versions, tmp_path: Path) -> None:
    home = tmp_path / "ocr-1"
    home.mkdir()
    versions.serve(version("sha256:1"), files("a"), 5)
    versions.fail(version("sha256:2"), files("b"), 5)
    (home / "compose.yml").write_text(files("b").compose)
    dry = Versions(tmp_path, "ocr-1", check=True)
    assert [dry.restore(home)[2], versions.restore(home)[2], versions.restore(home)[2]] == [True, True, False]
    assert (home / "compose.yml").read_text() == files("a").compose


def test_without_one_that_served_nothing_can_be_put_back(versions: Versions, tmp_path: Path) -> None:
    versions.fail(version("sha256:2"), files("b"), 5)
    with pytest.raises(FleetError, match="no version that served before"):
        versions.restore(tmp_path)


def test_half_a_version_counts_for_nobody_and_its_number_is_not_used_again(versions: Versions, tmp_path: Path) -> None:
    versions.serve(version("sha256:1"), files("a"), 5)
    half = tmp_path / "versions" / "ocr-1" / "000002"
    half.mkdir()
    (half / "compose.yml").write_text("half")
    assert [one.number for one in versions.all()] == [1]
    versions.serve(version("sha256:2"), files("b"), 5)
    assert outcomes(versions) == [(1, "sha256:1", "replaced"), (3, "sha256:2", "serving")]


def test_of_two_that_serve_the_newer_does_and_the_next_change_says_so(versions: Versions, tmp_path: Path) -> None:
    for digest in ("sha256:1", "sha256:2"):
        versions.serve(version(digest), files(digest), 5)
    path = tmp_path / "versions" / "ocr-1" / "000001" / "version.json"  # whoever wrote the newer one died before this line
    path.write_text(json.dumps({**json.loads(path.read_text()), "outcome": "serving"}))
    assert versions.serving() == versions.all()[1]
    assert versions.serve(version("sha256:2"), files("sha256:2"), 5).changed
    assert [outcome for _number, _digest, outcome in outcomes(versions)] == ["replaced", "serving"]


def test_with_check_nothing_is_written(tmp_path: Path) -> None:
    dry = Versions(tmp_path, "ocr-1", check=True)
    assert dry.serve(version("sha256:1"), files("a"), 5).changed
    assert dry.keep(files("a"), NOON).changed
    assert dry.fail(version("sha256:1"), files("a"), 5).changed
    assert list(tmp_path.iterdir()) == []


def test_no_other_user_of_the_host_can_read_them(versions: Versions, tmp_path: Path) -> None:
    versions.serve(version("sha256:1"), files("a"), 5)
    modes = {stat.S_IMODE(os.stat(path).st_mode) & 0o007 for path in (tmp_path / "versions").rglob("*.*")}
    assert modes == {0}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "this file is not JSON"),
        ("{}", "this file describes no version"),
        ('{"format": 9}', "it has format 9 and this release knows format 1"),
        ('{"format": 1, "number": 1}', "this file describes no version"),
    ],
)
def test_a_damaged_version_is_named(versions: Versions, tmp_path: Path, text: str, complaint: str) -> None:
    versions.serve(version("sha256:1"), files("a"), 5)
    (tmp_path / "versions" / "ocr-1" / "000001" / "version.json").write_text(text)
    with pytest.raises(FleetError, match=complaint) as caught:
        versions.all()
    assert "000001/version.json" in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a\nb"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FleetError, match="cannot be the name of a replica"):
        Versions(tmp_path, name)


# --- the books of a rollout


BEGUN = Begun("ocr", 1, "sha256:1", "sha256:2", "ocr@2", "alice", "side-by-side", 100.0)


def rows(state_dir: Path) -> list[dict[str, t.Any]]:
    with Ledger(path_in(state_dir), read_only=True) as ledger:
        return ledger.rollouts(0, 10**10)


def test_the_steps_of_a_rollout_are_told_with_their_seconds(tmp_path: Path) -> None:
    record = Record(tmp_path, "ocr-1")
    record.begin(BEGUN)
    record.step("surge", 130.0, {"running": 2.0, "healthy": 20.0, "probe": None})
    record.step("drain", 160.5)
    assert record.end(161.0, "serving", "") is not None
    (row,) = rows(tmp_path)
    assert row["steps"] == [
        {"step": "surge", "seconds": 8.0},
        {"step": "running", "seconds": 2.0},
        {"step": "healthy", "seconds": 20.0},
        {"step": "drain", "seconds": 30.5},
    ]
    assert (row["began"], row["ended"], row["way"], row["outcome"]) == (100.0, 161.0, "side-by-side", "serving")
    assert record.current() is None
    assert record.end(170.0, "serving", "") is None


def test_a_rollout_that_nobody_ended_is_written_when_the_next_begins(tmp_path: Path) -> None:
    record = Record(tmp_path, "ocr-1")
    record.begin(BEGUN)
    record.step("drain", 110.0)
    Record(tmp_path, "ocr-1").begin(Begun("ocr", 1, "sha256:1", "sha256:3", "ocr@3", "bob", "stop-first", 500.0))
    record.end(600.0, "serving", "")
    assert [(row["outcome"], row["ended"], row["by"]) for row in rows(tmp_path)] == [
        ("interrupted", 110.0, "alice"),
        ("serving", 600.0, "bob"),
    ]


def test_a_row_whose_writer_died_before_its_paper_was_removed_is_there_once(tmp_path: Path) -> None:
    record = Record(tmp_path, "ocr-1")
    record.begin(BEGUN)
    paper = tmp_path / "rollouts" / "ocr-1.json"
    before = paper.read_text()
    record.end(160.0, "serving", "")
    paper.write_text(before)
    record.begin(Begun("ocr", 1, None, "sha256:3", "ocr@3", "bob", "stop-first", 500.0))
    assert [row["outcome"] for row in rows(tmp_path)] == ["serving"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 1, "marks": [[1]]}', '{"format": 2}'])
def test_a_damaged_paper_of_a_rollout_stops_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "ocr-1.json").write_text(text)
    record = Record(tmp_path, "ocr-1")
    record.step("drain", 1.0)
    record.begin(BEGUN)
    assert record.end(160.0, "kept", "why") is not None


def test_a_clock_that_is_set_back_makes_no_step_shorter_than_nothing(tmp_path: Path) -> None:
    record = Record(tmp_path, "ocr-1")
    record.begin(BEGUN)
    record.step("drain", 50.0)
    record.step("start", 105.0)
    row = record.end(40.0, "serving", "")
    assert row is not None
    assert row.steps == ({"step": "drain", "seconds": 0.0}, {"step": "start", "seconds": 5.0})
    assert rows(tmp_path)[0]["ended"] == 100.0


# --- the modules


class Door:
    """The modules on a host with one replica."""

    def __init__(self, run_module: RunModule, home: Path) -> None:
        self._run, self.home = run_module, home
        self.directory = home / "services" / "ocr-1"
        self.directory.mkdir(parents=True)

    def write(self, image: str) -> None:
        (self.directory / "compose.yml").write_text(files(image).compose)

    def call(self, module: str, check: bool = False, **args: t.Any) -> dict[str, t.Any]:
        places = {"state_dir": str(self.home / "state"), "services_dir": str(self.home / "services")}
        if module in ("rollout_record", "service_stopped"):
            del places["services_dir"]
        return self._run(module, {**places, **args}, check=check)


@pytest.fixture
def door(run_module: RunModule, tmp_path: Path) -> Door:
    return Door(run_module, tmp_path)


def test_a_version_goes_from_kept_to_serving_and_back_through_the_modules(door: Door) -> None:
    door.write("a")
    promised, done = (door.call("service_version", check=check, name="ocr-1", state="kept") for check in (True, False))
    assert (promised["changed"], promised["diff"]["after"]) == (True, promised["diff"]["after"])
    assert done["version"]["by"] == kept.BEFORE
    door.write("b")
    text = {"manifest_file": "ocr.yml", "manifest_text": "schema: 1\nservice: ocr\n"}
    failed = door.call("service_version", name="ocr-1", state="failed", digest="sha256:b", reason="ocr-1: it\nis ill", **text)
    assert (failed["version"]["outcome"], failed["version"]["reason"]) == ("failed", "it is ill")
    devices = [{"name": "GPU_0", "gpu": "GPU-1", "profile": "1g.10gb", "start": 4}]
    restored = door.call("service_version", name="ocr-1", state="restored", entries=devices)
    assert (restored["changed"], restored["version"]["number"], restored["entries"]) == (True, 1, devices)
    assert (door.directory / "compose.yml").read_text() == files("a").compose
    door.write("b")
    serving = door.call("service_version", name="ocr-1", state="serving", digest="sha256:b", by="alice", **text)
    assert (serving["version"]["number"], serving["version"]["image"], serving["version"]["manifest"]["file"]) == (3, "b", "ocr.yml")
    info = door.call("service_version_info", name="ocr-1")
    assert info["changed"] is False
    assert info["replicas"]["ocr-1"]["serving"] == 3
    assert info["replicas"]["ocr-1"]["compose"] == hashlib.sha256(files("b").compose.strip().encode()).hexdigest()
    everything = door.call("service_version_info", service="ocr")["replicas"]
    assert [one["outcome"] for one in everything["ocr-1"]["versions"]] == ["replaced", "failed", "serving"]
    assert door.call("service_version_info", service="oc")["replicas"] == {}


ONE, TWO, THREE = (Device(f"GPU_{number}", f"GPU-{number}") for number in range(3))
OTHER = Device("GPU_0", "GPU-1")
SMALL, LARGE = Device("GPU_0", "GPU-9", "1g.10gb", 0), Device("GPU_0", "GPU-9", "2g.20gb", 2)


@pytest.mark.parametrize(
    ("had", "wished", "others", "again"),
    [
        pytest.param([SMALL], [LARGE], [SMALL], [LARGE], id="its place of now"),
        pytest.param([ONE], [OTHER], [ONE], [OTHER], id="another GPU"),
        pytest.param([ONE], [ONE, TWO], [], [ONE], id="it knows of one of two"),
        pytest.param([ONE, TWO], [ONE], [THREE], [ONE, TWO], id="where it was"),
        pytest.param([ONE, TWO], [ONE], [ONE], [ONE, TWO], id="where it was, on a GPU that is shared"),
        pytest.param([ONE, TWO], [ONE], [Device("GPU_0", "GPU-1", "1g.10gb", 0)], None, id="another has a slice of it"),
        pytest.param([ONE, TWO], [ONE], [TWO], None, id="another has it"),
    ],
)
def test_a_version_serves_again_in_the_place_of_now_or_where_it_was_if_that_is_nobodys(
    had: list[Device], wished: list[Device], others: list[Device], again: list[Device] | None
) -> None:
    found = Files("services: {}\n", devices_text("ocr-1", "uuid", had))
    if again is not None:
        assert devices_again(found, wished, lambda: {"llm-1": others}) == again
        return
    with pytest.raises(FleetError) as caught:
        devices_again(found, wished, lambda: {"llm-1": others})
    assert str(caught.value) == "it needs 2 devices, its place has 1 now, and GPU-1 is llm-1's"


def test_check_mode_promises_the_first_version_before_its_files_are_there(door: Door) -> None:
    serving = {"name": "ocr-1", "state": "serving", "digest": "sha256:a", "image": "r/ocr@sha256:a"}
    assert door.call("service_version", check=True, **serving)["changed"]
    assert not (door.home / "state" / "versions").exists()
    assert "there is no " in door.call("service_version", **serving)["msg"]


def test_a_host_that_keeps_nothing_says_so(door: Door) -> None:
    for name in ("ocr-surge", "voltage-surge"):
        (door.home / "services" / name).mkdir()
    (door.home / "services" / "ocr-surge" / "devices.json").touch()
    info = door.call("service_version_info", name="ocr-1")
    assert {key: info[key] for key in ("replicas", "surges", "stopped", "left_alone")} == {
        "replicas": {"ocr-1": {"versions": [], "serving": None, "compose": ""}},
        "surges": ["ocr-surge"],
        "stopped": {},
        "left_alone": {},
    }
    assert not (door.home / "state").exists()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"state": "serving"}, "ocr-1: there is no "),
        ({"state": "restored"}, "ocr-1: there is no version that served before"),
        ({"state": "kept", "keep": 0}, "ocr-1: keep: 0 versions are none"),
        ({"state": "kept", "lease": "lost"}, "ocr-1: the lease on this host"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(door: Door, args: dict[str, t.Any], complaint: str) -> None:
    assert door.call("service_version", name="ocr-1", **args)["msg"].startswith(complaint)


def test_a_rollout_is_recorded_from_the_version_that_serves(door: Door) -> None:
    door.write("a")
    door.call("service_version", name="ocr-1", state="serving", digest="sha256:a")
    begun = {"name": "ocr-1", "state": "begun", "to_digest": "sha256:b", "image": "ocr@b", "way": "stop-first", "by": "alice"}
    assert door.call("rollout_record", check=True, **begun)["changed"]
    assert not (door.home / "state" / "rollouts").exists()
    door.call("rollout_record", **begun)
    door.call("rollout_record", name="ocr-1", state="step", step="drain", seconds={"healthy": "1.5", "probe": None})
    ended = door.call("rollout_record", name="ocr-1", state="ended", outcome="restored", reason="ocr-1: it\tis ill")
    assert ended["reason"] == "it is ill"
    assert (ended["rollout"]["from_digest"], ended["rollout"]["replica"], ended["rollout"]["outcome"]) == ("sha256:a", 1, "restored")
    assert [one["step"] for one in ended["rollout"]["steps"]] == ["drain", "healthy"]
    assert door.call("rollout_record", name="ocr-1", state="ended", outcome="restored")["changed"] is False
    (row,) = rows(door.home / "state")
    assert row["to_digest"] == "sha256:b"


def test_seconds_that_are_none_are_refused(door: Door) -> None:
    answer = door.call("rollout_record", name="ocr-1", state="step", step="drain", seconds={"healthy": "long"})
    assert answer["msg"].startswith("ocr-1: seconds: expected seconds by name")


def test_whoever_stopped_a_service_first_is_named_until_it_is_taken_back(door: Door) -> None:
    stop = {"service": "receipt-ocr", "by": "alice", "reason": "its\ncustomer left"}
    promised, done = (door.call("service_stopped", check=check, **stop) for check in (True, False))
    assert promised["changed"]
    assert done["diff"]["after"].startswith("receipt-ocr: stopped by alice (its customer left) since 20")
    assert door.call("service_stopped", **{**stop, "by": "bob"})["changed"] is False
    (left,) = door.call("service_version_info")["left_alone"].items()
    again = door.call("service_version_info", started=left[0])
    assert (again["left_alone"], again["stopped"]) == ({}, {})
    assert door.call("service_version_info", started="another")["left_alone"] == dict([left])
    assert left[0] == "receipt-ocr"
    assert left[1].startswith("stopped by alice (its customer left) since 20")
    assert door.call("service_stopped", service="receipt-ocr", state="absent")["stopped"] == {}
    assert door.call("service_stopped", service="receipt-ocr", state="absent")["changed"] is False


def test_a_replica_whose_lease_has_ended_is_named_and_one_whose_lease_runs_is_not(door: Door) -> None:
    for replica in (1, 2):
        granted = door.call("service_lease", service="lab", replica=replica, team="claims", days=1, docker_socket=str(door.home / "none"))
        assert not granted["failed"]
    door.call("service_lease", service="lab", replica=2, state="ended", by="alice", docker_socket=str(door.home / "none"))
    ((name, words),) = door.call("service_version_info", name="lab-1")["over"].items()
    assert name == "lab-2"
    assert re.fullmatch(r"its lease is over since \S+Z \(ended by alice\): extend it, or remove the manifest", words)


@pytest.mark.parametrize("text", ["{}", '{"format": 1, "services": {"a": {}}}', '{"format": 2, "services": {}}', "["])
def test_a_damaged_paper_of_what_is_stopped_is_named(door: Door, text: str) -> None:
    (door.home / "state").mkdir()
    (door.home / "state" / "stopped.json").write_text(text)
    assert "stopped.json" in door.call("service_stopped", service="a", by="b")["msg"]
