# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's CDI specification, made by an executable that each test puts in the place of nvidia-ctk."""

from __future__ import annotations

import json
import os
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import cdi, lease
from ansible_collections.gpuops.fleet.plugins.module_utils.cdi import read_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

if t.TYPE_CHECKING:
    from conftest import RunModule

GPU = "GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e"
SLICE = "MIG-2d2f8f7e-6b0a-5a57-8c88-1f0f0f3b6f0e"
OTHER = "MIG-9d2f8f7e-6b0a-5a57-8c88-1f0f0f3b6f0e"
# With sorted keys, as releases since 1.13 write it; nodes, hooks and mounts have names and lists of their own.
SORTED = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - name: not-a-device
      path: /dev/nvidia-caps/nvidia-cap3
  name: "0:1"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: SLICE
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
""".replace("SLICE", SLICE)
# With the name first and wide indents, as people and other releases write it.
NAME_FIRST = f"""\
# by hand
cdiVersion: "0.5.0"
kind: 'nvidia.com/gpu'   # vendor/class

devices:
    -
      name: '{SLICE}'
      containerEdits:
          deviceNodes:
              - path: /dev/nvidia0
                name: no
    # the whole board
    - name: {GPU} # and its name
      annotations:
          name: no
    - {{}}
containerEdits:
    env: [NVIDIA_VISIBLE_DEVICES=void]
"""


class World:
    """A host with a CDI directory and an executable that stands where nvidia-ctk would, with the temporary directory in sight."""

    def __init__(self, where: Path, run_module: RunModule) -> None:
        self.path = where / "run" / "cdi" / "nvidia.yaml"
        self.program = where / "bin" / "nvidia-ctk"
        self.program.parent.mkdir()
        self.calls = where / "calls"
        self.temporary = where / "tmp"
        self.temporary.mkdir()
        self.state = where / "state"
        self._answer = where / "answer"
        self._run_module = run_module

    def does(self, script: str) -> None:
        """The executable notes its arguments and then runs this; ``$out`` is the file that it was told to write."""
        self.program.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\nout="${{3#--output=}}"\n{script}\n', encoding="utf-8")
        self.program.chmod(0o755)

    def answers(self, text: str) -> None:
        self._answer.write_text(text, encoding="utf-8")
        self.does(f'echo \'time="2026-11-20T10:00:00Z" level=info msg="Generated CDI spec"\' >&2; cp {self._answer} "$out"')

    def put(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text, encoding="utf-8")

    def run(self, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        arguments = {"path": str(self.path), "nvidia_ctk": str(self.program), "state_dir": str(self.state), **more}
        result = self._run_module("cdi", arguments, check=check, diff=True)
        assert os.listdir(self.temporary) == []
        return result

    def error(self, **more: t.Any) -> str:
        """The one line that a run ends with; the file and its directory are as they were."""
        before = self.files()
        result = self.run(**more)
        assert result["failed"], result
        assert self.files() == before
        return str(result["msg"])

    def files(self) -> dict[str, str | None]:
        folder = self.path.parent
        return {entry.name: entry.read_text() if entry.is_file() else None for entry in folder.iterdir()} if folder.is_dir() else {}


@pytest.fixture
def world(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, run_module)
    monkeypatch.setattr(tempfile, "tempdir", str(made.temporary))
    made.answers(SORTED)
    return made


def test_a_first_run_writes_what_the_program_made_and_a_second_changes_nothing(world: World) -> None:
    first = world.run()
    assert (first["failed"], first["changed"], first["devices"]) == (False, True, ["0:1", SLICE, "all"])
    assert {key: first["diff"][key] for key in ("before", "after", "after_header")} == {
        "before": "",
        "after": SORTED,
        "after_header": str(world.path),
    }
    assert world.files() == {"nvidia.yaml": SORTED}
    written = world.path.stat()
    second = world.run()
    assert (second["changed"], second["devices"]) == (False, first["devices"])
    assert second["diff"]["before"] == second["diff"]["after"] == SORTED
    assert world.path.stat().st_ino == written.st_ino


def test_the_directory_is_made_for_everybody_to_read_whatever_the_umask(world: World) -> None:
    before = os.umask(0o077)
    try:
        world.run()
    finally:
        os.umask(before)
    assert (world.path.parent.stat().st_mode & 0o777, world.path.stat().st_mode & 0o777) == (0o755, 0o644)


def test_the_documented_call_is_made_and_its_file_is_out_of_the_engines_sight(world: World) -> None:
    world.run()
    (call,) = world.calls.read_text().splitlines()
    words, output = call.rsplit("=", 1)
    assert words == "cdi generate --output"
    assert Path(output).name == "nvidia.yaml"
    assert Path(output).parent.parent == world.temporary


def test_while_the_program_writes_the_directory_of_the_engine_holds_the_old_file_alone(world: World) -> None:
    world.put(SORTED)
    world.does(f'ls -A {world.path.parent} > {world.calls}.seen; sed s/{SLICE}/{OTHER}/ {world.path} > "$out"')
    assert world.run()["changed"] is True
    assert Path(f"{world.calls}.seen").read_text() == "nvidia.yaml\n"


def test_another_specification_replaces_the_file_at_once(world: World) -> None:
    world.run()
    opened = world.path.open()
    new = SORTED.replace(SLICE, OTHER)
    world.answers(new)
    result = world.run()
    assert (result["changed"], result["devices"]) == (True, ["0:1", OTHER, "all"])
    assert (result["diff"]["before"], result["diff"]["after"]) == (SORTED, new)
    assert world.files() == {"nvidia.yaml": new}
    with opened:
        assert opened.read() == SORTED  # whoever was reading has the old one, whole


def test_check_mode_foretells_the_run_and_writes_nothing(world: World) -> None:
    foretold = world.run(check=True)
    assert (foretold["changed"], foretold["devices"]) == (True, ["0:1", SLICE, "all"])
    assert not world.path.parent.exists()
    done = world.run()
    assert (done["changed"], done["diff"]) == (foretold["changed"], foretold["diff"])
    assert world.run(check=True)["changed"] is False
    world.answers(SORTED.replace(SLICE, OTHER))
    assert world.run(check=True)["changed"] is True
    assert world.files() == {"nvidia.yaml": SORTED}


def test_permissions_are_kept_to(world: World) -> None:
    world.run(mode="0640")
    assert world.path.stat().st_mode & 0o777 == 0o640
    assert world.run(mode="0640")["changed"] is False
    assert world.run(check=True)["changed"] is True
    assert world.path.stat().st_mode & 0o777 == 0o640
    assert world.run()["changed"] is True
    assert world.path.stat().st_mode & 0o777 == 0o644


def test_an_empty_file_is_replaced(world: World) -> None:
    world.put("")
    assert world.run()["changed"] is True
    assert world.files() == {"nvidia.yaml": SORTED}


def test_a_file_called_json_is_asked_for_and_read_as_json(world: World) -> None:
    world.path = world.path.with_suffix(".json")
    devices = [{"name": name, "containerEdits": {}} for name in ("0", GPU, "all")]
    world.answers(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}))
    assert world.run()["devices"] == ["0", GPU, "all"]
    assert world.calls.read_text().strip().endswith("/nvidia.json")
    assert world.run()["changed"] is False


def test_the_program_is_found_by_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{world.program.parent}:{os.environ['PATH']}")
    assert world.run(nvidia_ctk="nvidia-ctk")["changed"] is True


@pytest.mark.parametrize("level", ["level=error msg=", "ERRO[0000] "])
def test_a_host_with_nothing_to_name_has_no_specification(world: World, level: str) -> None:
    words = r"failed to save CDI spec: failed add device \"all\": invalid device, empty device edits"
    line = f'time="x" {level}"{words}"' if "msg" in level else level + words.replace("\\", "")
    world.does(f"echo '{line}' >&2; exit 1")
    assert (world.run()["changed"], world.path.exists()) == (False, False)
    world.put(SORTED)
    foretold = world.run(check=True)
    assert (foretold["changed"], foretold["devices"], foretold["diff"]["after"]) == (True, [], "")
    assert world.files() == {"nvidia.yaml": SORTED}
    assert world.run()["changed"] is True
    assert world.files() == {}
    assert world.run()["changed"] is False


# ---- what goes wrong ----


def test_a_host_without_the_program_says_what_to_install(world: World) -> None:
    missing = world.program.with_name("nvidia-ctk-missing")
    hint = "install nvidia-container-toolkit, or set fleet_gpu_access: nvidia"
    assert world.error(nvidia_ctk=str(missing)) == f"there is no {missing} on this host; {hint}"
    world.program.chmod(0o644)
    assert world.error() == f"there is no {world.program} on this host; {hint}"


def test_a_program_for_another_machine_is_named(world: World) -> None:
    world.program.write_bytes(b"\x7fELF, but not of this world")
    assert world.error() == f"cannot run {world.program}: Exec format error"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (r"""printf 'a\ntime="x" level=error msg="failed to \\"init\\": NVML"\n\n' >&2""", 'failed to "init": NVML'),
        ("echo time=x level=error msg=short >&2", "short"),
        (r"""echo 'level=error msg="broken \\q escape"' >&2""", r'"broken \q escape"'),
        ("echo Incorrect Usage: flag provided but not defined >&2", "Incorrect Usage: flag provided but not defined"),
        (r"printf 'caf\351\n' >&2", "caf\N{REPLACEMENT CHARACTER}"),
        ("", "exit status 3, without a word"),
        # a device that is there and has no nodes: not the same as no device
        ("""echo 'failed add device "0": invalid device, empty device edits' >&2""", None),
    ],
)
def test_a_program_that_fails_has_the_last_word_and_the_old_file_stays(world: World, script: str, words: str | None) -> None:
    world.put(SORTED)
    world.does(f'echo broken > "$out"\n{script}\nexit 3')
    expected = words or 'failed add device "0": invalid device, empty device edits'
    assert world.error() == f"{world.program} cdi generate failed: {expected}"


def test_a_program_that_hangs_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi, "GENERATE_SECONDS", 0.3)
    world.put(SORTED)
    world.does(f"echo $$ > {world.calls}.pid\nexec sleep 60")
    assert world.error() == f"{world.program} cdi generate gave no answer in 0.3 s; see whether nvidia-smi answers"
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path(f"{world.calls}.pid").read_text()), 0)


@pytest.mark.parametrize("script", ["exit 0", ': > "$out"', 'echo > "$out"'])
def test_a_program_that_writes_nothing_is_not_believed(world: World, script: str) -> None:
    world.put(SORTED)
    world.does(script)
    assert world.error() == f"{world.program} cdi generate ended well and wrote nothing"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello\n", "line 1 is not understood"),
        ("  - hello\n", "line 1 is not understood"),
        ("cdiVersion: 0.5.0\n", "it names no kind"),
        ("kind: [nvidia.com/gpu]\n", "it names no kind"),
        ("kind: nvidia.com/gpu\n", "it has no device"),
        ("kind: nvidia.com/gpu\ndevices: []\n", "it has no device"),
        ("kind: nvidia.com/gpu\ndevices: [{name: a}]\n", "its devices are not written as a block"),
        ("kind: nvidia.com/gpu\ndevices:\n  name: a\n", "'name: a' is not an item of its devices"),
        ("kind: nvidia.com/gpu\ndevices:\n  - name: a\n  name: b\n", "'name: b' is not an item of its devices"),
        ("kind: nvidia.com/gpu\ndevices:\n- containerEdits: {}\n", "a device has no name"),
        ("kind: nvidia.com/gpu\ndevices:\n- name: &a b\n", "a device has no name"),
        ("kind: nvidia.com/gpu\ndevices:\n- name: 'GPU 0'\n", "'GPU 0' is no name of a device"),
        ("kind: example.com/nic\ndevices:\n- name: a\n", "its kind is example.com/nic"),
        ("{", "it begins as JSON and is none: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "it names no kind"),
        ('{"kind": "nvidia.com/gpu", "devices": {"name": "a"}}', "it has no device"),
        ('{"kind": "nvidia.com/gpu", "devices": ["a"]}', "a device has no name"),
        ('{"kind": "nvidia.com/gpu", "devices": [{"name": 0}]}', "0 is no name of a device"),
    ],
)
def test_what_is_no_specification_is_not_given_to_the_engine(world: World, text: str, why: str) -> None:
    world.put(SORTED)
    world.answers(text)
    assert world.error() == f"{world.program} cdi generate wrote no CDI specification of nvidia.com/gpu: {why}"


def test_names_that_no_compose_file_uses_are_refused(world: World) -> None:
    world.answers(SORTED.replace(SLICE, '"1"'))
    hint = "compose files name them by UUID: install nvidia-container-toolkit 1.15.0 or newer, or set fleet_gpu_access: nvidia"
    assert world.error() == f"{world.program} names devices by index only; {hint}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "kind: example.com/nic\ndevices: [{name: a}]\n",
            "is the specification of example.com/nic, not of nvidia.com/gpu; give another path",
        ),
        ("hosts: []\n", "is no CDI specification (it names no kind); look at it and remove it, or give another path"),
        ('{"kind": 5}', "is no CDI specification (it names no kind); look at it and remove it, or give another path"),
    ],
)
def test_a_file_of_somebody_else_is_not_replaced(world: World, text: str, why: str) -> None:
    world.put(text)
    assert world.error() == f"{world.path} {why}"
    assert world.error(check=True) == f"{world.path} {why}"
    assert not world.calls.exists()


def test_our_own_file_in_a_style_that_is_not_read_is_replaced(world: World) -> None:
    world.put("kind: nvidia.com/gpu\ndevices: [{name: a}]\n")
    assert world.run()["changed"] is True


@pytest.mark.parametrize("name", ["nvidia.yml", "nvidia", "nvidia.yaml.bak"])
def test_a_name_that_engines_pass_over_is_refused(world: World, name: str) -> None:
    world.path = world.path.with_name(name)
    assert world.error() == f"path: an engine does not read {world.path}; its name must end in .yaml or .json"


def test_what_cannot_be_read_or_written_is_named(world: World) -> None:
    world.path.mkdir(parents=True)
    assert world.error() == f"cannot read {world.path}: Is a directory"
    world.path.rmdir()
    world.path.write_bytes(b"\xff\x00")
    assert world.run()["msg"] == f"cannot read {world.path}: it is not text"
    world.path.unlink()
    world.path.parent.rmdir()
    world.path.parent.parent.chmod(0o555)
    if os.geteuid() != 0:
        assert world.error() == f"cannot write {world.path}: Permission denied"
    world.path.parent.parent.chmod(0o755)
    # a name that no directory can get
    world.path = world.path.parent / ("x" * 300) / "nvidia.yaml"
    assert world.run()["msg"].endswith("nvidia.yaml: File name too long")


def test_a_directory_that_cannot_be_made_is_named(world: World) -> None:
    gone = world.path.parent.parent / "gone"
    gone.parent.mkdir()
    gone.symlink_to("nowhere/at/all")
    world.path = gone / "nvidia.yaml"
    assert world.run()["msg"] == f"cannot write {world.path}: File exists"


def test_a_lost_lease_stops_the_write_and_not_the_look(world: World) -> None:
    lost = "the lease on this host ran out or was released; nothing more is changed"
    assert world.error(lease="not-mine") == lost
    assert world.run(lease="not-mine", check=True)["changed"] is True
    held, _over = lease.acquire(world.state, "me", "test", 60)
    assert world.run(lease=held.token)["changed"] is True


def test_without_ansible_the_same_is_done_in_one_call(world: World) -> None:
    options = cdi.Options(world.path, world.state, str(world.program))
    assert cdi.refresh(options) == cdi.Result(True, "", SORTED, ["0:1", SLICE, "all"])
    assert cdi.refresh(options).changed is False
    with pytest.raises(FleetError, match=r"^there is no nvidia-ctk-x on this host; install "):
        cdi.refresh(cdi.Options(world.path, world.state, "nvidia-ctk-x"))


# ---- names ----


@pytest.mark.parametrize("text", [NAME_FIRST.replace("    - {}\n", ""), NAME_FIRST.replace("    - {}\n", "").replace("\n", "\r\n")])
def test_names_are_read_in_the_other_style_as_well(text: str) -> None:
    assert read_devices(text) == [SLICE, GPU]


def test_an_item_in_braces_has_no_name_that_is_read() -> None:
    with pytest.raises(ValueError, match="a device has no name"):
        read_devices(NAME_FIRST)


def test_a_word_in_the_text_of_another_field_is_no_name() -> None:
    text = "devices:\n- annotations:\n    a: |\n      - name: x\n      name: y\n  name: GPU-1\nkind: nvidia.com/gpu\n"
    assert read_devices(text) == ["GPU-1"]
