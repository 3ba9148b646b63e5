# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs in place of those that the lab starts, and a checkout of its own for the lab's command line. No network, no root, no QEMU."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
import time
import typing as t
from pathlib import Path

from lab import image
from lab.places import LAB, REPOSITORY, SCENARIOS

# In the environment of everything that a test starts: the test finds processes without the lab's own means.
OURS = "LAB_TEST"

# Behaves as QEMU_MODE says. A virtual machine that leaves its parent, as `-daemonize` does, and greets on its port 22.
QEMU = r"""
import os, re, signal, socket, sys, time
from pathlib import Path
words, mode = sys.argv, os.environ.get("QEMU_MODE", "greets")
with open(os.environ["QEMU_CALLS"], "a") as calls:
    calls.write(" ".join(words[1:]) + "\n")
if "--version" in words:
    sys.exit(print("QEMU emulator version " + os.environ.get("QEMU_VERSION", "10.0.2")))
if "-daemonize" not in words:  # somebody tries KVM
    print("Linux version 6.12" if mode == "kvm" else "qemu: error: failed to set MSR 0x48e")
    sys.exit(mode != "kvm")
pidfile = Path(words[words.index("-pidfile") + 1])
port = int(re.search(r"hostfwd=tcp:127\.0\.0\.1:(\d+)-:22\b", " ".join(words))[1])
if mode == "port taken" and Path(os.environ["QEMU_CALLS"]).read_text().count("-daemonize") == 1:
    sys.exit(f"qemu: -netdev user,id=net0: Could not set up host forwarding rule 'tcp:127.0.0.1:{port}-:22'")
if mode in ("timer lost", "falls silent") and Path(os.environ["QEMU_CALLS"]).read_text().count("-daemonize") > 1:
    mode = "greets"
ready, go = os.pipe()
if os.fork():
    os.read(ready, 1)
    sys.exit()
os.setsid()
link = socket.create_server(("127.0.0.1", port))
said = {
    "ends": "Loading initrd\nBUG: soft lockup",
    "panics": "Booting\nKernel panic - not syncing: no init\nRebooting never",
    "timer lost": "rcu: INFO: rcu_preempt detected stalls on CPUs",
}
serial = Path(words[words.index("-serial") + 1].removeprefix("file:"))
serial.write_text(said.get(mode, "\x1b[0;32m  OK  \x1b[0m Reached target \x1b[0;1;39mnothing\x1b[0m.\r\n\r\n"))
pidfile.write_text(f"{os.getpid()}\n")
os.write(go, b"x")
if mode == "ends":
    sys.exit()
kept = []
while True:
    kept.append(link.accept()[0])
    if mode in ("greets", "port taken", "kvm"):
        kept[-1].sendall(b"SSH-2.0-lab\r\n")
"""
REGISTRY = r"""
import http.server, os, re, sys
from pathlib import Path
mode, text = os.environ.get("REGISTRY_MODE"), Path(sys.argv[2]).read_text()
tries = Path(sys.argv[2]).with_name("tries")
tries.write_text("x" * (len(tries.read_text()) + 1 if tries.exists() else 1))
if mode == "broken":
    sys.exit("time=now level=warning\npanic: mkdir: permission denied")
if mode == "port taken" and len(tries.read_text()) == 1:
    sys.exit("listen tcp 127.0.0.1: bind: address already in use")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(re.search(r"addr: 127.0.0.1:(\d+)", text)[1])), Handler).serve_forever()
"""
# Leaves a connection open behind its back, as ControlPersist does.
SSH = 'case "$*" in *"-O exit"*) exit 0 ;; esac; cat > /dev/null; setsid sleep 600 > /dev/null 2>&1 & exit 0'
# As Ansible does it, what it starts leads a session of its own.
MOLECULE = """
while [ "$1" != --scenario-name ]; do shift; done
setsid --wait "$(dirname "$0")/python" tests/lab/run.py up "$2" || exit 2
touch "build/up-$2"
if [ "$MOLECULE_MODE" = fails ]; then
    printf '%s\\n' 'CRITICAL nothing' '  │ \033[31m[ERROR]: Task failed: converge\033[0m' '  │   failed' '  │ Origin: x.yml:1' bye
    exit 1
fi
[ "$MOLECULE_MODE" = stays ] && { setsid sleep 600 & sleep 600; }
exit 0
"""
OCR = """
from pathlib import Path
def build(home, mirror, say):
    return Path(home)
def push(archive, registry, name, tag):
    return "sha256:" + "0" * 64
"""


def program(folder: Path, name: str, text: str, python: bool = False) -> Path:
    """An executable: of shell, or of Python."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if python:
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        text = f"exec '{sys.executable}' -S -E '{folder / name}.py' \"$@\""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def machine_programs(folder: Path) -> None:
    """What boots a guest, and a registry."""
    program(folder, "qemu-system-x86_64", QEMU, python=True)
    program(folder, "docker-registry", REGISTRY, python=True)
    program(folder, "qemu-img", 'for last; do :; done; echo disk > "$last"')
    program(folder, "ssh", SSH)


def processes(name: str, value: Path) -> dict[int, str]:
    """Command lines of the living processes that have this in their environment, by number."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{name}={value}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class Checkout:
    """A checkout with a lab whose image is built already, behind a path of more than a hundred characters."""

    def __init__(self, tmp: Path, name: str = f"{'far-' * 25}away") -> None:
        self.tmp = tmp
        self.root = tmp / name
        self.bin = tmp / "bin"
        shutil.copytree(LAB, self.root / "tests/lab", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(SCENARIOS, self.root / SCENARIOS.relative_to(REPOSITORY))
        (self.root / "tests/lab/ocr/build.py").write_text(OCR, encoding="utf-8")
        self._own_files()
        home = self.root / "build/lab/images" / image.recipe_hash()
        home.mkdir(parents=True)
        for name in ("disk.raw", "key", "vmlinuz", "initrd"):
            (home / name).write_text(name, encoding="utf-8")
        (self.root / "build/lab/simulator/root").mkdir(parents=True)
        machine_programs(self.bin)
        for name in ("mmdebstrap", "sfdisk", "mke2fs", "socat", "skopeo", "make"):
            program(self.bin, name, "exit 0")
        program(self.bin, "apt-get", "echo 'http://mirror.example/debian|main|Debian|trixie'")
        self._virtual_environment()
        (tmp / "run").mkdir(mode=0o700)
        self.environment = {
            **{key: value for key, value in os.environ.items() if key not in ("GPUOPS_LAB", "LAB_MIRROR")},
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(tmp / "run"),
            "QEMU_CALLS": str(tmp / "qemu.calls"),
            "LAB_BOOT_SECONDS": "2",
            OURS: str(tmp),
        }

    def _own_files(self) -> None:
        """A machine without fonts and keys passes these tests as well."""
        packages = self.root / "tests/lab/packages.py"
        text = packages.read_text(encoding="utf-8")
        packages.write_text(f"{text}\nFILES = {{}}\n", encoding="utf-8")

    def _virtual_environment(self) -> None:
        """This Python and its packages, with a molecule of ours beside."""
        venv = self.tmp / "venv"
        program(venv / "bin", "molecule", MOLECULE)
        (venv / "bin/python").symlink_to(Path(sys.executable).resolve())
        (venv / "lib").symlink_to(Path(sys.prefix) / "lib")
        shutil.copy(Path(sys.prefix) / "pyvenv.cfg", venv)

    @contextlib.contextmanager
    def start(self, *words: str, **environment: str) -> t.Iterator[subprocess.Popen[str]]:
        """``run.py WORDS``, in a session of its own so that a signal can be meant for it alone. When the test fails, it is killed."""
        argv = [
            # A shell starts what it puts in the background with SIGINT ignored, and that is inherited.
            *("env", "--default-signal=INT,HUP,TERM"),
            *(str(self.tmp / "venv/bin/python"), "tests/lab/run.py", *words),
        ]
        with subprocess.Popen(
            argv,
            cwd=self.root,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as started:
            try:
                yield started
            except BaseException:
                started.kill()
                raise

    def run(self, *words: str, **environment: str) -> tuple[int, str, list[str]]:
        """Exit status, output, and the lines on stderr."""
        with self.start(*words, **environment) as started:
            out, err = started.communicate(timeout=60)
        return started.returncode, out, err.splitlines()

    def wait_until_up(self, scenario: str, started: subprocess.Popen[str]) -> None:
        """Until molecule has booted the guests."""
        until(lambda: (self.root / "build" / f"up-{scenario}").exists() or started.poll() is not None)
        if started.poll() is not None:
            out, err = started.communicate()
            raise AssertionError(f"it ended: {out}\n{err}")

    def left(self) -> dict[int, str]:
        """What of this checkout still runs."""
        return processes(OURS, self.tmp)

    def clean(self) -> None:
        """Ends what a failed test left."""
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def until(true: t.Callable[[], bool], seconds: float = 30) -> None:
    """Waits until something is so; AssertionError when it never is."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(textwrap.shorten(f"not so after {seconds} s: {true}", 200))
        time.sleep(0.05)
