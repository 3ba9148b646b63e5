# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings are merged into the engine's own file: what a person wrote there stays, and what is no JSON is never replaced."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import daemon_json as files
from ansible_collections.gpuops.fleet.plugins.module_utils.daemon_json import Options, Waiting
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from daemon_world import World
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

if t.TYPE_CHECKING:
    from conftest import RunModule


@pytest.fixture
def place(tmp_path: Path) -> World:
    return World(tmp_path)


def options(place: World, **wished: t.Any) -> Options:
    """``live_restore`` stands for ``live-restore``."""
    settings = {key.replace("_", "-"): value for key, value in wished.items()}
    return Options(place.settings, settings, place.state_dir, dockerd="no-such-dockerd", pid_file=place.pid_file, proc_root=place.proc_root)


def refusal(wish: Options) -> str:
    before = wish.path.read_bytes() if wish.path.is_file() else None
    with pytest.raises(FleetError) as caught:
        files.apply(wish)
    assert (wish.path.read_bytes() if wish.path.is_file() else None) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- merging

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.text("a=é", max_size=3), st.floats(allow_nan=False, allow_infinity=False)
)
keys = st.sampled_from(["debug", "labels", "runtimes", "features", "default-address-pools", "exec-opts", "base", "a"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8)
QUICK = hypothesis_settings(max_examples=150, derandomize=True, database=None, deadline=None)
settings = st.dictionaries(keys, values, max_size=5)


@QUICK
@given(present=settings, wished=settings)
def test_a_merge_that_replaces_is_made_once(present: dict[str, t.Any], wished: dict[str, t.Any]) -> None:
    once = files.merge(present, wished, replace=True)
    assert files.merge(once, wished, replace=True) == once
    assert set(once) == {*present, *wished}
    assert all(files._same(once[key], value) for key, value in present.items() if key not in wished)


def test_a_wish_that_names_one_thing_twice_contradicts_itself() -> None:
    twice = {"labels": ["rack=7", "rack=8"]}
    with pytest.raises(FleetError, match='labels is "rack=7" there and "rack=8" is wished'):
        files.merge({}, twice)
    assert files.merge({}, twice, replace=True) == {"labels": ["rack=8"]}


@QUICK
@given(present=settings, wished=settings)
def test_a_merge_takes_nothing_away_and_names_every_contradiction(present: dict[str, t.Any], wished: dict[str, t.Any]) -> None:
    merged, complaint = merged_or_refused(present, wished)
    if merged is None:
        assert " is wished" in complaint
    else:
        assert files.merge(merged, wished) == merged
        assert contains(merged, present)


def merged_or_refused(present: dict[str, t.Any], wished: dict[str, t.Any]) -> tuple[dict[str, t.Any] | None, str]:
    try:
        return files.merge(present, wished), ""
    except FleetError as error:
        return None, str(error)


def contains(whole: t.Any, part: t.Any) -> bool:
    """Whether everything of ``part`` is in ``whole``, in its place or somewhere in its list."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(contains(other, item) for other in whole) for item in part)
    return files._same(whole, part)


@QUICK
@given(present=settings)
def test_what_was_read_is_written_as_it_was(present: dict[str, t.Any]) -> None:
    text = files.render(present, "")
    again = files.parse(text, Path("daemon.json"))
    assert again == present
    assert files.render(again, text) == text


NEAR, FAR = {"base": "10.0.0.0/16", "size": 24}, {"base": "10.1.0.0/16", "size": 24}


@pytest.mark.parametrize(
    ("present", "wished", "merged"),
    [
        pytest.param({}, {"debug": True}, {"debug": True}, id="nothing there"),
        pytest.param({"runtimes": {"a": 1}}, {"runtimes": {"b": 2}}, {"runtimes": {"a": 1, "b": 2}}, id="a mapping by key"),
        pytest.param({"dns": ["a"]}, {"dns": ["b", "a"]}, {"dns": ["a", "b"]}, id="a list gets what it lacks"),
        pytest.param(
            {"default-address-pools": [NEAR]},
            {"default-address-pools": [NEAR, FAR]},
            {"default-address-pools": [NEAR, FAR]},
            id="pools by base",
        ),
        pytest.param({"labels": ["rack=7"]}, {"labels": ["site=tpe"]}, {"labels": ["rack=7", "site=tpe"]}, id="labels by name"),
    ],
)
def test_what_is_wished_is_added_to_what_is_there(present: t.Any, wished: t.Any, merged: t.Any) -> None:
    assert files.merge(present, wished) == merged


@pytest.mark.parametrize(
    ("present", "wished", "complaint"),
    [
        ({"log-driver": "journald"}, {"log-driver": "json-file"}, 'log-driver is "journald" there and "json-file" is wished'),
        ({"live-restore": 1}, {"live-restore": True}, "live-restore is 1 there and true is wished"),
        ({"runtimes": {"x": {"path": "a"}}}, {"runtimes": {"x": {"path": "b"}}}, 'runtimes/x/path is "a" there and "b" is wished'),
        ({"labels": ["rack=7"]}, {"labels": ["rack=8"]}, 'labels is "rack=7" there and "rack=8" is wished'),
        ({"exec-opts": ["native.cgroupdriver=systemd"]}, {"exec-opts": ["native.cgroupdriver=cgroupfs"]},
         'exec-opts is "native.cgroupdriver=systemd" there and "native.cgroupdriver=cgroupfs" is wished'),
        ({"default-address-pools": [{"base": "10.0.0.0/16", "size": 24}]}, {"default-address-pools": [{"base": "10.0.0.0/16", "size": 20}]},
         "default-address-pools/10.0.0.0/16/size is 24 there and 20 is wished"),
        ({"features": []}, {"features": {"cdi": True}}, 'features is [] there and {"cdi": true} is wished'),
        ({"proxies": {"http-proxy": "http://lin:geheim@proxy:3128"}}, {"proxies": {"http-proxy": "http://proxy:3128"}},
         'proxies/http-proxy is "http://***@proxy:3128" there and "http://proxy:3128" is wished'),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_with_both_values_unless_it_shall_rule(
    place: World, present: dict[str, t.Any], wished: dict[str, t.Any], complaint: str
) -> None:
    place.settings.write_text(json.dumps(present), encoding="utf-8")
    wish = options(place, **wished)
    hint = "somebody set that: take one of the two away, or set replace to have the wished one"
    assert refusal(wish) == f"{place.settings}: {complaint}; {hint}"
    assert files.apply(replace(wish, replace=True)).changed
    assert files.apply(wish).changed is False


def test_two_contradictions_are_named_together(place: World) -> None:
    place.settings.write_text('{"debug": true, "mtu": 1400}', encoding="utf-8")
    assert "debug is true there and false is wished; mtu is 1400 there and 9000 is wished" in refusal(options(place, debug=False, mtu=9000))


# ---- the file


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{\n  "debug": true,\n}\n', ":2: column 16: illegal trailing comma before end of object"),
        ('{"debug": tru}', ":1: column 11: expecting value"),
        ('["debug"]', ":1: column 1: the engine's settings are a mapping"),
        ("\ufeff{}", ":1: column 1: unexpected UTF-8 BOM (decode using utf-8-sig)"),
        ('{"debug": true, "debug": false}', ": 'debug' is there twice, and only one of them would be kept"),
        ('{"mtu": NaN}', ": NaN is not JSON"),
        ('{"mtu": 1e999}', ": 1e999 is out of range"),
        ("[" * 100000, ": "),
    ],
)
def test_a_file_that_is_no_json_is_refused_with_line_and_column(place: World, text: str, complaint: str) -> None:
    place.settings.write_text(text, encoding="utf-8")
    said = refusal(options(place, debug=True))
    if "trailing comma" in complaint and sys.version_info < (3, 13):
        complaint = ":3: column 1: expecting property name enclosed in double quotes"
    assert said.startswith(f"{place.settings}{complaint}")
    assert said.endswith("; nothing was changed; mend it by hand")


def test_bytes_that_are_no_text_are_refused(place: World) -> None:
    place.settings.write_bytes(b"\xff\xfe{}")
    assert refusal(options(place, debug=True)) == f"cannot read {place.settings}: it is not text"


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_file_that_is_missing_or_empty_gets_what_is_wished(place: World, text: str | None) -> None:
    if text is not None:
        place.settings.write_text(text, encoding="utf-8")
    assert files.apply(options(place, live_restore=True)).changed
    assert place.settings.read_text() == '{\n  "live-restore": true\n}\n'
    assert place.settings.stat().st_mode & 0o777 == 0o644 or text is not None


def test_the_rest_of_the_file_its_indent_its_mode_and_its_link_stay(place: World, tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_text('{\n\t"labels": ["名=a"],\n\t"mtu": 1400\n}', encoding="utf-8")
    real.chmod(0o640)
    place.settings.symlink_to(real)
    assert files.apply(options(place, debug=True)).changed
    assert real.read_text() == '{\n\t"labels": [\n\t\t"名=a"\n\t],\n\t"mtu": 1400,\n\t"debug": true\n}\n'
    assert real.stat().st_mode & 0o777 == 0o640
    assert place.settings.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_of_the_file_stays(place: World) -> None:
    place.settings.write_text("{}", encoding="utf-8")
    os.chown(place.settings, 4711, 4712)
    files.apply(options(place, debug=True))
    assert (place.settings.stat().st_uid, place.settings.stat().st_gid) == (4711, 4712)


def test_a_second_run_changes_nothing_and_a_file_that_says_it_already_is_not_touched(place: World) -> None:
    place.settings.write_text('{"debug":true,   "live-restore":true}', encoding="utf-8")
    before = place.settings.stat()
    result = files.apply(options(place, live_restore=True))
    assert (result.changed, result.waiting.action, place.settings.stat().st_mtime_ns) == (False, "none", before.st_mtime_ns)


def test_check_mode_writes_nothing_and_tells_the_same(place: World) -> None:
    wish = options(place, live_restore=True, features={"cdi": True})
    promised = files.apply(replace(wish, check=True))
    assert not place.settings.exists()
    assert not place.state_dir.exists()
    assert files.apply(wish) == promised


def test_a_disk_that_takes_no_more_leaves_the_old_file(place: World) -> None:
    place.settings.write_text('{"debug": true}', encoding="utf-8")
    place.pid_file.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        said = refusal(options(place, labels=["x" * 200]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said == f"cannot write {place.settings}: File too large"
    assert sorted(path.name for path in place.home.glob("daemon*")) == ["daemon.json"]


KILLED = """\
import os, sys
from pathlib import Path
from ansible_collections.gpuops.fleet.plugins.module_utils.daemon_json import Options, apply
calls = 0
def die(*_arguments):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os._exit(9)
    return real(*_arguments)
real, os.replace = os.replace, die
here = Path(sys.argv[1])
apply(Options(here / "daemon.json", {"live-restore": True, "features": {"cdi": True}}, here / "state", dockerd="no-such-dockerd",
              pid_file=here / "docker.pid", proc_root=here / "proc"))
"""


@pytest.mark.parametrize("moment", [1, 2])
def test_a_run_that_is_killed_leaves_the_old_file_and_the_next_one_ends_the_work(place: World, moment: int) -> None:
    place.settings.write_text('{"debug": true}', encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": "collections"}
    done = subprocess.run([sys.executable, "-c", KILLED, str(place.home), str(moment)], env=environment, check=False)
    assert (done.returncode, place.settings.read_text()) == (9, '{"debug": true}')
    process = files.engine_process(place.pid_file, place.proc_root)
    assert files.waiting(place.state_dir, place.settings, process) == Waiting()
    result = files.apply(options(place, live_restore=True, features={"cdi": True}))
    assert (result.changed, result.waiting) == (True, Waiting(("live-restore",), ("features/cdi",)))


# ---- what the engine has to do


@pytest.mark.parametrize(
    ("wished", "waits"),
    [
        ({"live-restore": True, "debug": True}, Waiting(("debug", "live-restore"), ())),
        ({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}, Waiting(("runtimes",), ())),
        ({"features": {"cdi": True, "buildkit": True}}, Waiting(("features/buildkit",), ("features/cdi",))),
        ({"log-driver": "local", "data-root": "/srv/docker"}, Waiting((), ("data-root", "log-driver"))),
        ({"nobody-knows": 1}, Waiting((), ("nobody-knows",))),
    ],
)
def test_each_key_tells_whether_a_reload_puts_it_in_force(place: World, wished: dict[str, t.Any], waits: Waiting) -> None:
    assert files.apply(options(place, **wished)).waiting == waits


def test_an_engine_that_does_not_run_waits_for_nothing(place: World) -> None:
    place.pid_file.unlink()
    result = files.apply(options(place, features={"cdi": True}))
    assert (result.changed, result.waiting.action) == (True, "none")
    assert not place.state_dir.exists()


def test_a_file_of_a_process_that_is_gone_is_no_engine(place: World) -> None:
    place.pid_file.write_text("78", encoding="utf-8")
    assert files.engine_process(place.pid_file, place.proc_root) == ""


def test_what_waits_is_remembered_until_the_engine_was_started_again(place: World) -> None:
    files.apply(options(place, features={"cdi": True}))
    files.apply(options(place, live_restore=True))
    again = files.apply(options(place, live_restore=True))
    assert (again.changed, again.waiting) == (False, Waiting(("live-restore",), ("features/cdi",)))
    (place.proc_root / "77/stat").write_text("77 (dockerd) S " + "0 " * 18 + "101 0\n", encoding="utf-8")
    assert files.apply(options(place, live_restore=True)).waiting.action == "none"


DOCKERD = """#!/bin/sh
grep -q '"mtu": "big"' "${2#--config-file=}" || exit %s
echo "unable to configure the Docker daemon with file ${2#--config-file=}: cannot unmarshal string into mtu" >&2
exit 1
"""


@pytest.mark.parametrize(("status", "changed"), [("0", True)])
def test_the_engines_own_program_proves_the_result(place: World, status: str, changed: bool) -> None:
    program = place.home / "dockerd"
    program.write_text(DOCKERD % status, encoding="utf-8")
    program.chmod(0o755)
    wish = replace(options(place, mtu=9000), dockerd=str(program))
    assert files.apply(wish).changed is changed
    place.settings.unlink()
    words = f"unable to configure the Docker daemon with file {place.settings}: cannot unmarshal string into mtu"
    said = f"{place.settings}: the engine would not start with these settings: {words}; nothing was changed"
    assert refusal(replace(wish, wished={"mtu": "big"})) == said
    assert refusal(replace(wish, wished={"mtu": "big"}, check=True)) == said


def test_an_engine_that_knows_no_such_question_is_not_asked(place: World) -> None:
    program = place.home / "dockerd"
    program.write_text("#!/bin/sh\necho 'unknown flag: --validate' >&2\nexit 125\n", encoding="utf-8")
    program.chmod(0o755)
    assert files.apply(replace(options(place, mtu=9000), dockerd=str(program))).changed


# ---- the module


def arguments(place: World, **more: t.Any) -> dict[str, t.Any]:
    paths = {"path": place.settings, "state_dir": place.state_dir, "pid_file": place.pid_file, "proc_root": place.proc_root}
    return {"dockerd": "no-such-dockerd", **{key: str(value) for key, value in paths.items()}, **more}


def test_the_module_shows_the_file_before_and_after_without_passwords(place: World, run_module: RunModule) -> None:
    place.settings.write_text('{"proxies": {"http-proxy": "http://lin:geheim@proxy:3128"}}', encoding="utf-8")
    wish = arguments(place, settings={"features": {"cdi": True}})
    promised = run_module("daemon_json", wish, check=True, diff=True)
    result = run_module("daemon_json", wish, diff=True)
    assert result["diff"] == promised["diff"]
    assert (result["changed"], result["action"], result["reload"], result["restart"]) == (True, "restart", [], ["features/cdi"])
    assert result["diff"]["before"] == '{"proxies": {"http-proxy": "http://***@proxy:3128"}}'
    assert "geheim" not in json.dumps(result)
    assert json.loads(place.settings.read_text())["proxies"] == {"http-proxy": "http://lin:geheim@proxy:3128"}
    assert run_module("daemon_json", wish)["changed"] is False


def test_the_module_says_in_one_line_what_is_wrong(place: World, run_module: RunModule) -> None:
    place.settings.write_text("{", encoding="utf-8")
    result = run_module("daemon_json", arguments(place, settings={"debug": True}))
    assert result["failed"]
    assert result["msg"].startswith(f"{place.settings}:1: column 2: expecting property name")


def test_a_host_that_another_holds_is_not_written(place: World, run_module: RunModule) -> None:
    from ansible_collections.gpuops.fleet.plugins.module_utils import lease

    lease.acquire(place.state_dir, "lin", "apply", 600)
    result = run_module("daemon_json", arguments(place, settings={"debug": True}))
    assert result["failed"]
    assert "this host is held by lin" in result["msg"]
    assert not place.settings.exists()
