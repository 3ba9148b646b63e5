# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan's door: files in, plan files out, as a play sees it; and what the doors share."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.action.plan import ARGUMENTS, run
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.modules.plan import DOCUMENTATION
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import read_plan
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def site(tmp_path: Path) -> dict[str, t.Any]:
    """Arguments of the module for one host with two boards and one service of two replicas."""
    manifests = tmp_path / "manifests" / "claims"
    manifests.mkdir(parents=True)
    (manifests / "receipt-ocr.yml").write_text(manifest_text(replicas="2"))
    return {
        "manifests": str(tmp_path / "manifests"),
        "plans": str(tmp_path / "plans"),
        "hosts": {"h1": {"facts": facts([gpu_facts(0), gpu_facts(1)]), "policy": {"fleet_environment": "production"}}},
        "templates": [],
        "fail_unplaced": False,
    }


def files(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((tmp_path / "plans").glob("*"))}


def test_plans_are_written_once_and_then_stand(site: dict[str, t.Any], tmp_path: Path) -> None:
    first = run(site, check_mode=False, diff=False)
    written = files(tmp_path)
    assert (first["changed"], sorted(written)) == (True, ["fleet.yml", "h1.yml"])
    assert read_plan("h1.yml", written["h1.yml"]).data == first["plans"]["h1"]
    assert [line["service"] for line in first["plans"]["h1"]["services"]] == ["receipt-ocr", "receipt-ocr"]
    assert (first["unplaced"], first["warnings"], list(first["services"])) == ([], [], ["receipt-ocr"])
    assert first["table"][1].startswith("receipt-ocr  1        h1 ")
    second = run(site, check_mode=False, diff=True)
    assert (second["changed"], second["diff"], files(tmp_path)) == (False, [], written)


def test_others_stay_where_a_play_has_said_so(site: dict[str, t.Any], tmp_path: Path) -> None:
    folder = tmp_path / "manifests" / "claims"
    run(site, check_mode=False, diff=False)
    whole = manifest_text(service="llm", gpu="{isolation: exclusive, memory: 60 GiB}", replicas="1")
    (folder / "llm.yml").write_text(whole)
    stayed = run({**site, "others_stay": True}, check_mode=True, diff=False)
    assert ([each["service"] for each in stayed["unplaced"]], stayed["steps"]) == (["llm"], [])
    moved = run(site, check_mode=True, diff=False)
    assert moved["unplaced"] == []
    assert [line.partition(" ")[0] for line in moved["steps"]] == ["1.", "2.", "receipt-ocr-1"]
    assert moved["steps"][2].endswith("does not serve for a while: it moves within h1, where it stops before it starts anew")


def test_gpus_become_empty_where_that_is_asked_for_and_stay_so(site: dict[str, t.Any], tmp_path: Path) -> None:
    folder = tmp_path / "manifests" / "claims"
    half = {"replicas": "2", "gpu": "{isolation: slice, memory: 30 GiB}"}
    (folder / "receipt-ocr.yml").write_text(manifest_text(**half, placement="{spread: gpu}"))
    run(site, check_mode=False, diff=False)
    (folder / "receipt-ocr.yml").write_text(manifest_text(**half, placement="{spread: pack}"))
    assert run(site, check_mode=False, diff=False)["emptied"] == []
    # A service whose manifest has just changed stays where it is; it has the plan that was made from it by now.
    made = run({**site, "consolidate": 1}, check_mode=False, diff=False)
    assert made["emptied"][-2] == "1 of 2 GPUs in use becomes empty by 1 move, which counts as 1 of at most 1"
    assert len({line["gpu"] for line in made["plans"]["h1"]["services"]}) == 1
    assert made["steps"][0].startswith("1. move receipt-ocr-")
    assert len([line for line in made["why"] if ", moved there so that a GPU becomes empty; " in line]) == 1
    assert run(site, check_mode=False, diff=False)["changed"] is False
    # Later plans say still in which order, until somebody moves again.
    assert run({**site, "consolidate": 1}, check_mode=False, diff=False)["emptied"][0] == "no GPU becomes empty by at most 1 move"


def test_what_people_wrote_is_checked_without_any_fact(site: dict[str, t.Any], tmp_path: Path) -> None:
    asked = {**site, "hosts": {"h1": {"policy": site["hosts"]["h1"]["policy"]}}, "check_only": True}
    right = run(asked, check_mode=False, diff=False)
    assert (right["changed"], right["table"], right["plans"], right["unread"]) == (False, [], {}, {})
    assert not (tmp_path / "plans").exists()
    path = tmp_path / "manifests" / "claims" / "receipt-ocr.yml"
    path.write_text(manifest_text(replicas="-2"))
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "h1.yml").write_text("plan: 9\n")
    with pytest.raises(FleetError) as found:
        run({**asked, "hosts": {"h1": {"policy": {"fleet_environment": "production", "fleet_moves": 99}}}}, check_mode=False, diff=False)
    manifest, *plan, policy = str(found.value).splitlines()
    assert manifest.startswith(f"{path}:9: replicas: ")
    assert {line.partition(":")[0] for line in plan} == {f"{tmp_path}/plans/h1.yml"}
    assert policy.startswith("host h1: fleet_moves: ")


def test_what_papers_say_of_each_other_is_checked_without_any_fact(site: dict[str, t.Any]) -> None:
    policy = {"fleet_environment": "production", "fleet_quotas": {"teams": {"fraud": {"gpus": 1}}}}
    with pytest.raises(FleetError, match="team: "):
        run({**site, "hosts": {"h1": {"policy": policy}}, "check_only": True}, check_mode=False, diff=False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"consolidate": -1}, "-1 replicas cannot move"),
        (
            {"consolidate": 1, "move": {"service": "receipt-ocr", "replica": 1, "to": "h1"}},
            "one replica is to move, and GPUs are to become",
        ),
    ],
)
def test_what_cannot_be_consolidated_is_told_in_a_line(site: dict[str, t.Any], tmp_path: Path, more: dict[str, t.Any], said: str) -> None:
    with pytest.raises(FleetError, match=said):
        run({**site, **more}, check_mode=False, diff=False)
    assert not (tmp_path / "plans").exists()


def test_while_a_host_cannot_be_read_nobody_moves_for_an_empty_gpu(site: dict[str, t.Any]) -> None:
    unread = {"h2": {"facts": None, "policy": {"fleet_environment": "production"}, "unread": "no route to it"}}
    assert run({**site, "hosts": {**site["hosts"], **unread}, "consolidate": 4}, check_mode=True, diff=False)["emptied"] == []


def test_check_mode_says_what_would_be_written_and_writes_nothing(site: dict[str, t.Any], tmp_path: Path) -> None:
    checked = run(site, check_mode=True, diff=True)
    assert checked["changed"]
    assert not (tmp_path / "plans").exists()
    done = run(site, check_mode=False, diff=True)
    assert done == checked
    written = files(tmp_path)
    assert done["diff"] == [
        {"before": "", "after": written[name], "before_header": path, "after_header": path}
        for name, path in (("fleet.yml", f"{site['plans']}/fleet.yml"), ("h1.yml", f"{site['plans']}/h1.yml"))
    ]
    assert "diff" not in run(site, check_mode=True, diff=False)


def test_the_diff_shows_only_what_changes(site: dict[str, t.Any], tmp_path: Path) -> None:
    run(site, check_mode=False, diff=False)
    before = files(tmp_path)["h1.yml"]
    (tmp_path / "manifests" / "more.yaml").write_text(manifest_text("speech"))
    result = run(site, check_mode=False, diff=True)
    assert [(entry["before_header"], entry["before"]) for entry in result["diff"]] == [(f"{site['plans']}/h1.yml", before)]
    assert result["plans"]["h1"]["serial"] == 2


def test_a_change_of_route_rollout_or_lease_alone_is_named_and_no_host_gets_another_plan(site: dict[str, t.Any], tmp_path: Path) -> None:
    manifest = tmp_path / "manifests" / "claims" / "receipt-ocr.yml"
    run(site, check_mode=False, diff=False)
    before = files(tmp_path)
    assert before["fleet.yml"] == "plan: 1\nunplaced: []\nsettings: []\n"
    manifest.write_text(manifest_text(replicas="2", route="{}"))
    seen = run(site, check_mode=True, diff=True)
    assert (seen["changed"], seen["rollouts"]) == (True, ["receipt-ocr: route changes, no container is made anew"])
    assert [entry["before_header"] for entry in seen["diff"]] == [f"{site['plans']}/fleet.yml"]
    run(site, check_mode=False, diff=False)
    after = files(tmp_path)
    assert after["h1.yml"] == before["h1.yml"]
    (line,) = yaml.safe_load(after["fleet.yml"])["settings"]
    assert (line["service"], sorted(line)) == ("receipt-ocr", ["route", "service"])
    # What is written out and is the default all the same is no change.
    manifest.write_text(manifest_text(replicas="2", route="{}", rollout="{way: auto}"))
    again = run(site, check_mode=False, diff=True)
    assert (again["changed"], again["rollouts"], files(tmp_path)) == (False, [], after)
    manifest.write_text(manifest_text(replicas="2", rollout="{settle: 3}"))
    assert run(site, check_mode=True, diff=False)["rollouts"] == ["receipt-ocr: rollout, route change, no container is made anew"]
    manifest.write_text(manifest_text(replicas="2", env="{A: b}"))
    (new, other) = run(site, check_mode=False, diff=False)["rollouts"]
    assert new.startswith("receipt-ocr-1, receipt-ocr-2: new version; ")
    assert other == "receipt-ocr: route changes"
    assert files(tmp_path)["fleet.yml"] == before["fleet.yml"]


def test_plans_of_a_release_that_knew_no_settings_stand_until_something_changes(site: dict[str, t.Any], tmp_path: Path) -> None:
    manifest = tmp_path / "manifests" / "claims" / "receipt-ocr.yml"
    manifest.write_text(manifest_text(replicas="2", route="{}"))
    run(site, check_mode=False, diff=False)
    known = files(tmp_path)["fleet.yml"]
    (tmp_path / "plans" / "fleet.yml").write_text("plan: 1\nunplaced: []\n")
    stands = run(site, check_mode=False, diff=False)
    assert (stands["changed"], stands["rollouts"], files(tmp_path)["fleet.yml"]) == (False, [], "plan: 1\nunplaced: []\n")
    (tmp_path / "manifests" / "more.yaml").write_text(manifest_text("speech"))
    run(site, check_mode=False, diff=False)
    assert files(tmp_path)["fleet.yml"] == known


def test_what_has_no_place_fails_only_on_request_and_after_writing(site: dict[str, t.Any], tmp_path: Path) -> None:
    (tmp_path / "manifests" / "big.yml").write_text(manifest_text("big", gpu="{memory: 90 GiB}"))
    result = run(site, check_mode=False, diff=False)
    assert not result.get("failed")
    assert [each["service"] for each in result["unplaced"]] == ["big"]
    strict = run({**site, "fail_unplaced": True}, check_mode=False, diff=False)
    assert (strict["failed"], strict["changed"]) == (True, False)
    assert strict["msg"] == (
        "big replica 1: h1: 2 GPUs without a profile for 90 GiB; "
        "what would help: ask for 3g.40gb (40192 MiB) or less: h1 GPU-h1-0 has room for it"
    )
    assert yaml.safe_load(files(tmp_path)["fleet.yml"])["unplaced"] == strict["unplaced"]


def test_a_runtime_of_the_site_s_own_templates_is_known(site: dict[str, t.Any], tmp_path: Path) -> None:
    (tmp_path / "manifests" / "own.yml").write_text(manifest_text("own", runtime="embeddings"))
    with pytest.raises(FleetError, match=r"no compose template for the runtime 'embeddings'; write one of: batch, http, .*, vllm$"):
        run(site, check_mode=False, diff=False)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "embeddings.yml.j2").write_text("")
    (tmp_path / "templates" / "README.md").write_text("")
    result = run({**site, "templates": [str(tmp_path / "nowhere"), str(tmp_path / "templates")]}, check_mode=False, diff=False)
    assert sorted(result["services"]) == ["own", "receipt-ocr"]


def test_bad_input_of_any_kind_writes_nothing(site: dict[str, t.Any], tmp_path: Path) -> None:
    run(site, check_mode=False, diff=False)
    before = files(tmp_path)
    second = tmp_path / "manifests" / "second.yml"
    (tmp_path / "plans" / "h9.yml").write_text(before["h1.yml"])
    second.write_text(manifest_text())
    with pytest.raises(FleetError) as caught:
        run(site, check_mode=False, diff=False)
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [
        f"{tmp_path}/manifests/second.yml:2",
        f"{tmp_path}/plans/h9.yml",
    ]
    (tmp_path / "plans" / "h9.yml").unlink()
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["plans", "manifests"])
def test_an_empty_path_is_refused_and_is_not_the_working_directory(
    site: dict[str, t.Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FleetError, match=f"fleet_{name}: it is empty; name the directory, or leave the variable out"):
        run({**site, name: ""}, check_mode=False, diff=False)
    assert [path.name for path in tmp_path.iterdir()] == ["manifests"]


def test_an_empty_question_is_refused_and_is_no_plan(site: dict[str, t.Any], tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"^fleet_what_if: it is empty; ask a question, name a file with one, or leave the variable out$"):
        run({**site, "what_if": " "}, check_mode=False, diff=False)
    assert not (tmp_path / "plans").exists()


def test_a_yaml_file_is_read_in_whatever_case_its_name_ends(site: dict[str, t.Any], tmp_path: Path) -> None:
    folder = tmp_path / "manifests" / "claims"
    (folder / "receipt-ocr.yml").rename(folder / "receipt-ocr.YML")
    assert {line["service"] for line in run(site, check_mode=True, diff=False)["plans"]["h1"]["services"]} == {"receipt-ocr"}


def test_a_warning_says_that_no_manifest_is_there_where_something_runs(site: dict[str, t.Any], tmp_path: Path) -> None:
    run(site, check_mode=False, diff=False)
    (tmp_path / "none").mkdir()
    result = run({**site, "manifests": str(tmp_path / "none")}, check_mode=True, diff=False)
    assert result["warnings"][0].startswith(f"{tmp_path / 'none'}: there is no manifest, so whatever runs is to be removed")


def test_a_pipe_is_no_manifest(site: dict[str, t.Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifests" / "pipe.yml")
    with pytest.raises(FleetError, match=r"pipe\.yml: no regular file; rename or remove it"):
        run(site, check_mode=False, diff=False)


def test_a_plan_of_a_host_that_is_not_here_is_left_alone(site: dict[str, t.Any], tmp_path: Path) -> None:
    run(site, check_mode=False, diff=False)
    before = files(tmp_path)
    other = {"h2": {"facts": facts([gpu_facts(0, "h2")]), "policy": {"fleet_environment": "production"}}}
    result = run({**site, "hosts": other}, check_mode=False, diff=False)
    assert files(tmp_path)["h1.yml"] == before["h1.yml"]
    assert [line["service"] for line in result["plans"]["h2"]["services"]] == []
    assert len(result["warnings"]) == 1


def test_the_documentation_names_every_argument_as_the_door_takes_it() -> None:
    def spec(options: dict[str, t.Any]) -> dict[str, t.Any]:
        found = {}
        for name, option in options.items():
            found[name] = {key: option[key] for key in ("type", "required", "default", "elements") if key in option}
            if "suboptions" in option:
                found[name]["options"] = spec(option["suboptions"])
        return found

    assert spec(yaml.safe_load(DOCUMENTATION)["options"]) == ARGUMENTS


def test_facts_of_a_host_as_it_senses_itself_are_planned(
    site: dict[str, t.Any], tmp_path: Path, fleet_host: t.Any, run_module: t.Any
) -> None:
    machine = fleet_host("a100-80gb:2", "l40s-48gb")
    machine.simctl("lose", "--gpu", "1")
    paths = {"state_dir": str(tmp_path / "state"), "services_dir": str(tmp_path), "docker_socket": str(tmp_path / "docker.sock")}
    sensed = run_module("gpu_info", {**paths, "gather": ["holders", "containers"]})["facts"]
    site["hosts"]["h1"]["facts"] = sensed
    (tmp_path / "manifests" / "share.yml").write_text(manifest_text("share", gpu="{memory: 4 GiB, isolation: shared}"))
    site["hosts"]["h1"]["policy"]["fleet_gpu_modes"] = ["mig", "shared"]
    site["hosts"]["h1"]["policy"]["fleet_capacity"] = {"cpus": 64, "memory": "512 GiB", "shm": "64 GiB", "disk": "1000 GiB"}
    result = run(site, check_mode=False, diff=False)
    assert result["unplaced"] == []
    plan = result["plans"]["h1"]
    gpus = {gpu["uuid"]: gpu for gpu in sensed["gpus"]}
    layout = {line["gpu"]: (line["model"], line["mode"]) for line in plan["layout"] if "mode" in line}
    assert [layout[uuid] for uuid in sorted(layout, key=lambda uuid: gpus[uuid]["pci"])] == [("a100-sxm4-80gb", "mig"), ("l40s", "shared")]
    observed = {uuid: plan_record.state_of(gpu) for uuid, gpu in gpus.items() if gpu["state"] == "ok"}
    assert plan_record.begin(plan, None, observed).needed


def play(site: dict[str, t.Any], tmp_path: Path, *options: str) -> tuple[int, dict[str, t.Any], str]:
    """Exit status, the task's result and all output of a real ansible-playbook run."""
    task = {"name": "Plan", "gpuops.fleet.plan": {name: value for name, value in site.items() if name != "templates"}}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    (tmp_path / "ansible.cfg").write_text("")
    environment = {
        **os.environ,
        # neither the user's settings nor this repository's: the result is read as JSON
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "collections"),
        "ANSIBLE_HOME": str(tmp_path / "home"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_NOCOLOR": "true",
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", "-v", *options, "play.yml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert "=> " in done.stdout, output
    result = json.JSONDecoder().raw_decode(done.stdout.partition("=> ")[2])[0]
    return done.returncode, result, output


def test_a_play_writes_the_plans(site: dict[str, t.Any], tmp_path: Path) -> None:
    status, result, output = play(site, tmp_path, "--diff")
    assert (status, result["changed"]) == (0, True), output
    assert f"+++ after: {tmp_path}/plans/h1.yml" in output
    assert sorted(files(tmp_path)) == ["fleet.yml", "h1.yml"]
    status, result, output = play(site, tmp_path, "--check")
    assert (status, result["changed"]) == (0, False), output


def test_a_play_with_bad_input_fails_with_its_lines_and_no_traceback(site: dict[str, t.Any], tmp_path: Path) -> None:
    (tmp_path / "manifests" / "bad.yml").write_text(manifest_text("bad", replicas="two"))
    status, result, output = play(site, tmp_path)
    assert status != 0
    assert result["msg"] == (f"{tmp_path}/manifests/bad.yml:9: replicas: expected a whole number, found 'two'; write a number such as 2")
    assert not result["changed"]
    assert "Traceback" not in output
    assert not (tmp_path / "plans").exists()


# What the doors share


def test_only_yaml_files_are_read_in_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "c.yml~", "README.md", ".hidden.yml", "team/d.yml", ".git/e.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert door.read_texts(tmp_path) == [(str(tmp_path / name), name) for name in ("a.yaml", "b.yml", "team/d.yml")]


def test_only_plans_of_hosts_are_last_plans(tmp_path: Path) -> None:
    assert door.last_plans(str(tmp_path / "none"), "fleet") == {}
    for name in ("h1.yml", "fleet.yml", "h2.yaml", "old/h3.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert door.last_plans(f"{tmp_path}/", "fleet") == {"h1": (f"{tmp_path}/h1.yml", "h1.yml")}


def error(function: t.Callable[..., object], *arguments: t.Any) -> str:
    with pytest.raises(FleetError) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("name", ["x.yml", "team/x.yaml"])
def test_a_directory_with_the_name_of_a_yaml_file_is_refused_and_not_passed_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    assert error(door.yaml_files, tmp_path) == f"{tmp_path}/{name}: a directory, where its name promises a file; rename or remove it"


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a: 1\nb: \xff\n")
    (tmp_path / "big").write_bytes(b" " * (door.MAX_BYTES + 1))
    assert error(door.read_text, tmp_path / "none") == f"{tmp_path}/none: no such file; check the path"
    assert error(door.read_text, tmp_path) == f"{tmp_path}: cannot be read: Is a directory; check the path and its permissions"
    assert error(door.read_text, tmp_path / "x") == f"{tmp_path}/x:2: not a text file: it is not UTF-8; write YAML as UTF-8 text"
    assert error(door.read_text, tmp_path / "big") == f"{tmp_path}/big: larger than 8 MiB; name the YAML file that was meant"
    assert error(door.read_texts, tmp_path / "none") == f"{tmp_path}/none: no such directory; create it, or name the right one"
    assert error(door.read_texts, tmp_path / "x") == f"{tmp_path}/x: not a directory; create it, or name the right one"


def test_what_was_written_here_is_read_again_however_long_it_is(tmp_path: Path) -> None:
    """Pages and plans of very large fleets are longer than anything that people write."""
    page, longer = tmp_path / "page.html", "x" * (door.MAX_BYTES + 1)
    assert door.write_all({str(page): longer}) == [str(page)]
    assert door.put({str(page): longer}, False, False) == {"changed": False}
    assert door.put({str(page): "short"}, False, False) == {"changed": True}
    (tmp_path / "gpu-1.yml").write_text(longer)
    assert door.last_plans(str(tmp_path), "fleet") == {"gpu-1": (str(tmp_path / "gpu-1.yml"), longer)}


def test_a_directory_that_cannot_be_listed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(root: str, onerror: t.Callable[[OSError], None]) -> t.Iterator[t.Any]:
        onerror(PermissionError(13, "Permission denied", f"{root}/secret"))
        yield from ()

    monkeypatch.setattr(os, "walk", walk)
    assert error(door.read_texts, tmp_path) == f"{tmp_path}/secret: cannot be read: Permission denied; check its permissions"


def test_a_file_with_a_byte_order_mark_reads_the_same(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    read = door.read_yaml_file(tmp_path / "x.yml")
    assert (read.data, read.line(("b",))) == ({"a": 1, "b": 2}, 2)


def test_a_missing_file_may_be_an_answer(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("text")
    assert (door.read_text_or_none(tmp_path / "x"), door.read_text_or_none(tmp_path / "y")) == ("text", None)


def test_a_file_is_written_as_a_whole_and_only_when_it_differs(tmp_path: Path) -> None:
    paths = [str(tmp_path / "new" / name) for name in ("a", "b")]
    assert door.write_all(dict.fromkeys(paths, "é\n")) == paths
    assert (tmp_path / "new" / "a").read_bytes() == "é\n".encode()
    assert stat.S_IMODE(os.stat(paths[0]).st_mode) == 0o644
    number = os.stat(paths[0]).st_ino
    assert door.write_all({paths[0]: "é\n", paths[1]: "other"}) == paths[1:]
    assert os.stat(paths[0]).st_ino == number
    assert sorted(os.listdir(tmp_path / "new")) == ["a", "b"]


def test_of_several_files_all_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    door.write_all(dict.fromkeys(paths, "old"))
    real = os.fsync

    def full(descriptor: int) -> None:
        if os.fstat(descriptor).st_size > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    hint = "check the directory and its permissions"
    files = {paths[0]: "new", paths[1]: "new and long", paths[2]: "new"}
    assert error(door.write_all, files) == f"{paths[1]}: cannot be written: No space left on device; {hint}"
    assert [Path(path).read_text() for path in paths] == ["old"] * 3
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_where_one_of_several_files_cannot_be_exchanged_those_before_it_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    door.write_all({path: "old" for path in paths if not path.endswith("b")})
    os.chmod(paths[0], 0o640)
    real = os.replace

    def fixed(source: str, target: str) -> None:
        if target == paths[2]:  # as an immutable file is
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(source, target)

    monkeypatch.setattr(os, "replace", fixed)
    told = f"{paths[2]}: cannot be written: Operation not permitted; check the directory and its permissions"
    assert error(door.write_all, dict.fromkeys(paths, "new")) == told
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "c": "old"}
    assert stat.S_IMODE(os.stat(paths[0]).st_mode) == 0o640


def test_a_link_to_a_directory_of_manifests_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "claims").symlink_to("../elsewhere")
    where = tmp_path / "manifests" / "claims"
    assert error(door.read_texts, tmp_path / "manifests") == f"{where}: a link to a directory; copy or mount the directory there"


def test_what_cannot_be_written_is_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken").mkdir()
    hint = "check the directory and its permissions"
    assert error(door.write_text, tmp_path / "file" / "x", "") == f"{tmp_path}/file/x: cannot be written: File exists; {hint}"
    assert error(door.write_text, tmp_path / "taken", "") == f"{tmp_path}/taken: cannot be written: Is a directory; {hint}"
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]


def test_values_of_ansible_become_plain() -> None:
    class Tagged(str):
        __slots__ = ()

    plain = door.plain({Tagged("a"): (Tagged("b"), True, 1, 1.5, None), "c": {1: Tagged("d")}})
    assert plain == {"a": ["b", True, 1, 1.5, None], "c": {"1": "d"}}
    assert {type(each) for each in (*plain, plain["a"][0], plain["c"]["1"])} == {str}
    assert plain["a"][1] is True


def test_a_failed_door_says_so_and_has_changed_nothing() -> None:
    assert door.failed(FleetError("x"), {"changed": True, "more": 1}) == {"more": 1, "failed": True, "changed": False, "msg": "x"}
    assert door.failed(FleetError("x")) == {"failed": True, "changed": False, "msg": "x"}
