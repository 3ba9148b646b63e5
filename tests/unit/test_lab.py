# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong under the lab is one line: packages, disks, guests, the registry, processes. The programs are stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import typing as t
from pathlib import Path

import pytest
from lab_world import machine_programs, processes, program, until

from lab import commands, guest, image, packages, process, registry, server, turn
from lab.errors import LabError
from lab.guest import Guest, Hardware
from lab.packages import Mirror
from lab.run import COLOUR, STEP

pytestmark = pytest.mark.usefixtures("programs")

LISTS = "http://mirror.example/debian|main|Debian|trixie"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[Path]:
    """A folder of programs that is first on PATH, and a lab that keeps its things in ``tmp_path``."""
    folder = tmp_path / "bin"
    machine_programs(folder)
    path = f"{folder}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("QEMU_CALLS", str(tmp_path / "qemu.calls"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("LAB_UNIT_TEST", str(tmp_path))
    monkeypatch.delenv("LAB_MIRROR", raising=False)
    monkeypatch.delenv(process.MARK, raising=False)
    for module in (packages, guest, server, image):
        monkeypatch.setattr(module, "PATHS", path)
    for module in (packages, guest, turn):
        monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    monkeypatch.setattr(packages, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(guest, "KVM", str(tmp_path / "no-kvm"))
    yield folder
    for pid in processes("LAB_UNIT_TEST", tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def booted(tmp_path: Path) -> t.Iterator[t.Callable[[str], Guest]]:
    """Boots a guest that behaves in the way of ``QEMU_MODE``."""

    def boot(mode: str) -> Guest:
        os.environ["QEMU_MODE"] = mode
        base = tmp_path / "image"
        base.mkdir()
        (base / "key").touch()
        made = Guest("gpu-1", tmp_path / "guests/gpu-1", base)
        made.boot(Hardware(ports=(8000,)), backing=base / "disk.raw")
        return made

    with pytest.MonkeyPatch.context() as kept:
        kept.setenv("QEMU_MODE", "greets")
        yield boot


def refusal(call: t.Callable[..., object], *args: t.Any, **named: t.Any) -> str:
    """The one line with which a call ends."""
    with pytest.raises(LabError) as caught:
        call(*args, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- packages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing but apt."""
    monkeypatch.setattr(packages, "PATHS", str(programs))
    monkeypatch.setattr(packages, "PROGRAMS", {"ssh": "openssh-client", "skopeo": "skopeo", "no-qemu": "qemu-system-x86"})
    monkeypatch.setattr(packages, "FILES", {str(programs / "font.ttc"): "fonts-wqy-zenhei"})
    return programs


def test_without_root_a_missing_package_names_the_one_command(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare, "apt-get", f"touch '{bare}/called'")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    said = refusal(packages.install, print)

    assert said == "packages are missing: sudo apt-get install --no-install-recommends fonts-wqy-zenhei qemu-system-x86 skopeo"
    assert not (bare / "called").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("E: Unable to fetch some archives", "apt-get ended with 100: E: Unable to fetch some archives"),
        ("E: write: No space left on device\nE: Sub-process failed", "a disk is full: E: write: No space left on device"),
    ],
)
def test_apt_that_fails_is_one_line(tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch, words: str, told: str) -> None:
    program(bare, "apt-get", f'case "$*" in *" install "*) echo "{words}" >&2; exit 100 ;; *) echo "{LISTS}" ;; esac')
    program(bare, "apt-cache", "echo '  Candidate: 1:10.0.2+ds'")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    said = refusal(packages.install, lambda _line: None)

    assert said.startswith("installing packages: ")
    assert told in said
    assert said.endswith(f"(log: {tmp_path}/logs/apt.log)")


def test_a_package_without_what_was_wanted_is_told(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare, "apt-get", f'case "$*" in *" install "*) touch "{bare}/font.ttc" ;; *) echo "{LISTS}" ;; esac')
    program(bare, "apt-cache", "echo '  Candidate: 1:10.0.2+ds'")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert refusal(packages.install, lambda _line: None).endswith("and yet these are missing: qemu-system-x86 skopeo")


@pytest.mark.parametrize(
    ("lines", "uri"),
    [
        (["http://security.example/|main|Debian-Security|trixie-security", LISTS], "http://mirror.example/debian"),
        (
            ["http://mirror.example/debian|main|Debian|trixie-updates", "cdrom:[x]/|main|Debian|trixie", LISTS],
            "http://mirror.example/debian",
        ),
        (["http://mirror.example/debian|contrib|Debian|trixie", "http://b.example/|main|$(LABEL)|trixie"], "http://b.example/"),
        (["http://c.example/|main||stable"], "http://c.example/"),
    ],
)
def test_the_mirror_is_the_one_that_apt_uses(programs: Path, lines: list[str], uri: str) -> None:
    program(programs, "apt-get", "\n".join(f"echo '{line}'" for line in lines))

    assert packages.mirror().uri == uri


@pytest.mark.parametrize("said", ["", "echo 'http://ubuntu.example/|main|Ubuntu|noble'", "echo nonsense"])
def test_without_a_debian_mirror_its_variable_is_named(programs: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    program(programs, "apt-get", said or "exit 0")
    assert "set LAB_MIRROR" in refusal(packages.mirror)

    monkeypatch.setenv("LAB_MIRROR", "http://own.example/")
    assert packages.mirror().uri == "http://own.example/"


# --- disks and programs -----------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 12 MiB of free disk."""
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=12 * 2**20))


@pytest.mark.usefixtures("full")
def test_without_free_disk_nothing_is_built(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "mmdebstrap", f"touch '{tmp_path}/called'")
    monkeypatch.setattr(image, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    said = refusal(image.ensure, Mirror("http://mirror.example/"), print)

    assert said.startswith("the image needs 6 GiB of free disk below ")
    assert said.endswith(" 0.0 GiB are free")
    assert not (tmp_path / "called").exists()
    assert list((tmp_path / "images").iterdir()) == []


@pytest.mark.usefixtures("full")
def test_a_disk_that_is_full_when_something_fails_is_the_reason(programs: Path) -> None:
    program(programs, "fails", "echo 'Read-only file system' >&2; exit 3")

    assert ": the disk is full: 12 MiB are free below " in refusal(commands.run, ["fails"], "doing it")


def test_without_root_no_image_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert "needs root: sudo make lab" in refusal(image.ensure, Mirror("http://mirror.example/"), print)
    assert not (tmp_path / "images").exists()


def test_an_image_that_cannot_be_built_leaves_nothing(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "mmdebstrap", 'for word; do case "$word" in /*) mkdir -p "$word" ;; esac; done; echo "E: no signature"; exit 25')
    monkeypatch.setattr(image, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(image, "LOGS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "images/.killed.999999999").mkdir(parents=True)
    (tmp_path / f"images/.other.{os.getpid()}").mkdir()

    said = refusal(image.ensure, Mirror("http://mirror.example/"), lambda _line: None)

    assert said == f"building the guests' disk: mmdebstrap ended with 25: E: no signature (log: {tmp_path}/mmdebstrap.log)"
    assert [path.name for path in (tmp_path / "images").iterdir()] == [f".other.{os.getpid()}"]


def test_a_missing_program_is_named() -> None:
    assert refusal(commands.run, ["no-such-program"], "doing it") == "doing it: there is no no-such-program here"


def test_a_program_that_is_killed_is_told_so(programs: Path) -> None:
    program(programs, "dies", "kill -9 $$")

    assert refusal(commands.run, ["dies"], "doing it") == "doing it: dies was killed by signal 9: no reason given"


def test_a_program_that_takes_too_long_ends_with_its_children(tmp_path: Path, programs: Path) -> None:
    program(programs, "hangs", "sleep 600 & sleep 600")

    assert refusal(commands.run, ["hangs"], "doing it", deadline=0.3) == "doing it: hangs did not end within 0 s"
    until(lambda: processes("LAB_UNIT_TEST", tmp_path) == {})  # the kernel takes a moment


# --- guests -----------------------------------------------------------------------------------------------------------


def test_a_guest_that_ends_at_once_is_told_with_its_last_line(booted: t.Callable[[str], Guest]) -> None:
    made = booted("ends")
    until(lambda: made.pid() is None)

    assert refusal(made.wait, 20) == "gpu-1: the virtual machine ended while it booted: BUG: soft lockup"


def test_a_guest_that_never_answers_ends_at_its_deadline(tmp_path: Path, booted: t.Callable[[str], Guest]) -> None:
    made = booted("mute")
    started = time.monotonic()

    said = refusal(made.wait, 1)

    assert said == f"gpu-1 did not answer on SSH within 1 s; its last line: OK   Reached target nothing. (all: {made.serial})"
    # It takes connections and says nothing: a try may not outlast the deadline.
    assert time.monotonic() - started < 10
    made.kill()
    assert made.pid() is None
    assert processes("LAB_UNIT_TEST", tmp_path) == {}


def test_a_panic_is_not_waited_for(booted: t.Callable[[str], Guest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "LOOK_SECONDS", 0.2)
    made = booted("panics")
    started = time.monotonic()

    said = refusal(made.wait, 60)

    assert time.monotonic() - started < 10
    assert said == f"gpu-1 cannot boot: Kernel panic - not syncing: no init (all: {made.serial})"


@pytest.mark.parametrize("mode", ["timer lost", "falls silent"])
def test_a_guest_whose_timer_emulation_lost_is_booted_again(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEMU_MODE", mode)
    monkeypatch.setattr(guest, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(guest, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(guest, "SILENT_SECONDS", 1.0)
    made = Guest("gpu-1", tmp_path / "guests/gpu-1", tmp_path)

    assert made.start(Hardware(), backing=tmp_path / "disk.raw") < 20
    assert (tmp_path / "qemu.calls").read_text(encoding="utf-8").count("-daemonize") == 2
    assert len([line for line in processes("LAB_UNIT_TEST", tmp_path).values() if "qemu" in line]) == 1


def test_a_port_that_somebody_took_meanwhile_is_tried_again(tmp_path: Path, booted: t.Callable[[str], Guest]) -> None:
    made = booted("port taken")

    assert made.wait(20) < 20
    assert (tmp_path / "qemu.calls").read_text(encoding="utf-8").count("-daemonize") == 2
    assert Guest.load(made.home).ports == made.ports


def test_a_guest_whose_file_is_half_written_still_ends(booted: t.Callable[[str], Guest]) -> None:
    made = booted("greets")
    assert made.pid()
    (made.home / "guest.json").write_text('{"name": "gp', encoding="utf-8")

    Guest.end(made.home)

    assert made.pid() is None


def test_the_number_of_another_process_is_not_ended(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        (tmp_path / "qemu.pid").write_text(f"{other.pid}\n", encoding="utf-8")
        process.kill(tmp_path / "qemu.pid", tmp_path)
        assert other.poll() is None
        other.kill()


def test_a_directory_of_somebody_else_keeps_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        theirs = Path(short) / f"gpuops-lab-{os.getuid()}"
        assert guest.control_path(5) == f"{theirs}/5"
        theirs.chmod(0o777)
        assert refusal(guest.control_path, 5) == f"{theirs} is not ours alone: remove it"


@pytest.mark.parametrize("runtime", ["", "/nowhere", "/tmp/" + "far/" * 30])
def test_a_socket_of_a_kept_connection_has_a_path_that_is_short_enough(monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)

    assert guest.control_path(65535) == f"/tmp/gpuops-lab-{os.getuid()}/65535"


@pytest.mark.parametrize(
    ("mode", "version", "arguments"),
    [
        ("kvm", "10.0.2", ["-accel", "kvm", "-cpu", "host"]),
        ("no kvm", "10.0.2", ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]),
        ("no kvm", "7.2.19", ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,-cx16"]),
    ],
)
def test_kvm_is_used_where_it_runs_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, version: str, arguments: list[str]
) -> None:
    monkeypatch.setattr(guest, "KVM", str(tmp_path))
    monkeypatch.setenv("QEMU_MODE", mode)
    monkeypatch.setenv("QEMU_VERSION", version)
    calls = tmp_path / "qemu.calls"

    assert guest.accelerator(tmp_path) == arguments
    assert guest.accelerator(tmp_path) == arguments
    assert calls.read_text(encoding="utf-8").count("-accel kvm") == 1, "it is tried once a boot"

    note = tmp_path / "build/accelerator.json"
    kept = json.loads(note.read_text(encoding="utf-8"))
    kept["of"]["boot"] = "another boot"
    note.write_text(json.dumps({**kept, "arguments": ["-accel", "stale"]}), encoding="utf-8")
    assert guest.accelerator(tmp_path) == arguments
    for broken in ("", "[]", "{}", "3"):
        note.write_text(broken, encoding="utf-8")
        assert guest.accelerator(tmp_path) == arguments


# --- the registry -----------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> registry.Registry:
    monkeypatch.setattr(registry, "DATA", tmp_path / "data, with {braces}: and #")
    return registry.Registry(tmp_path / "site")


def test_a_registry_that_does_not_start_is_told_with_its_last_line(
    tmp_path: Path, kept: registry.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_MODE", "broken")

    assert refusal(kept.start) == f"the registry did not answer: panic: mkdir: permission denied (log: {tmp_path}/site/registry.log)"
    assert processes("LAB_UNIT_TEST", tmp_path) == {}


def test_a_registry_that_says_nothing_is_ended(
    tmp_path: Path, programs: Path, kept: registry.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(programs, "docker-registry", "exec sleep 600")
    monkeypatch.setattr(server, "SECONDS", 0.5)

    assert refusal(kept.start).startswith("the registry did not answer: no reason given")
    assert processes("LAB_UNIT_TEST", tmp_path) == {}


def test_a_missing_registry_is_named(kept: registry.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATHS", "/nowhere")

    assert refusal(kept.start) == "the registry cannot be started: there is no docker-registry here"


def test_a_registry_finds_another_port_and_ends(tmp_path: Path, kept: registry.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_MODE", "port taken")

    kept.start()
    assert (tmp_path / "site/tries").read_text(encoding="utf-8") == "xx"
    registry.Registry(tmp_path / "site").stop()

    assert processes("LAB_UNIT_TEST", tmp_path) == {}


# --- processes and turns ----------------------------------------------------------------------------------------------


def test_marked_processes_end_with_their_children_also_when_they_will_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE", 0.3)
    monkeypatch.setattr(process, "BUILD", tmp_path / "one")
    process.mark(process.TEST)
    # One that does not listen, one in a session of its own, one that lost the mark.
    stubborn = f"trap '' TERM; setsid sleep 600 & env -i PATH=$PATH sleep 601 & echo > '{tmp_path}/ready'; while :; do sleep 0.1; done"
    with subprocess.Popen(["sh", "-c", stubborn]) as one:
        monkeypatch.setenv(process.MARK, f"{process.TEST}:0:{tmp_path}/two")
        with subprocess.Popen(["sleep", "600"]) as other:
            until((tmp_path / "ready").exists)

            assert process.end_tests() >= 3

            assert one.wait(5) == -signal.SIGKILL
            assert other.poll() is None, "another checkout's"
            assert list(processes("LAB_UNIT_TEST", tmp_path)) == [other.pid]
            other.kill()


def test_a_turn_is_not_shared_and_ends_with_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(turn, "LOCK", tmp_path / "lock")
    with turn.turn(process.HAND, "shell main_job", print):
        with turn.turn(process.TEST, "nested", print):
            pass  # molecule below us
        monkeypatch.delenv(process.MARK)
        said = refusal(turn.turn(process.TEST, "test main_job", print).__enter__)
    assert said == f"process {os.getpid()} (shell main_job) uses this checkout's lab: wait until it ends, or end it"

    with turn.turn(process.TEST, "test main_job", print):
        assert process.MARK in os.environ
    assert process.MARK not in os.environ


@pytest.mark.parametrize("kind", [process.TEST, process.HAND])
def test_a_turn_that_fails_ends_what_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    monkeypatch.setattr(turn, "LOCK", tmp_path / "lock")

    def fails() -> None:
        with turn.turn(kind, "something", print):
            subprocess.run(["sh", "-c", "setsid sleep 600 > /dev/null 2>&1 &"], check=True)
            raise LabError("no")

    assert refusal(fails) == "no"
    assert processes("LAB_UNIT_TEST", tmp_path) == {}


def test_molecules_steps_are_read_with_a_terminal_and_without() -> None:
    with_terminal = "\x1b[36mINFO    \x1b[0m \x1b[32mmain_job\x1b[0m ➜ \x1b[33mcheck\x1b[0m: \x1b[36mExecuting\x1b[0m\n  │ Executing\n"
    without = "INFO     [main_job > converge] Executing\nINFO     [main_job > converge] Executed: Successful\n"

    assert STEP.findall(COLOUR.sub("", with_terminal + without)) == ["check", "converge"]
