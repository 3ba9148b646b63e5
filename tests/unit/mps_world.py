# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One simulated host with MPS: module ``mps`` on it, and what stands in for systemd and for NVIDIA's control daemon.

The stand-in for systemctl does with a unit's ``Exec*`` lines what systemd does with them, so the units themselves are tried.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

if t.TYPE_CHECKING:
    from conftest import FleetHost, RunModule

ROOT = Path(__file__).resolve().parents[2]

SYSTEMCTL = '''\
"""systemctl for instances of one template below UNITS; pids and links below STATE, each command line in STATE/log."""
import os, pathlib, shlex, signal, subprocess, sys, time

UNITS, STATE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
verb, *rest = [word for word in sys.argv[3:] if word != "--root=/"]
STATE.mkdir(exist_ok=True)
with (STATE / "log").open("a") as log:
    log.write(" ".join(sys.argv[3:]) + chr(10))
unit = rest[0]
pid_file, link = STATE / (unit + ".pid"), STATE / (unit + ".enabled")

def lines(key):
    name, at, instance = unit.partition("@")
    text = (UNITS / (name + "@.service")).read_text().replace("%i", instance.removesuffix(".service"))
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(key + "=")]

def environment():
    values = dict(os.environ)
    for path in lines("EnvironmentFile"):
        path = pathlib.Path(path.removeprefix("-"))
        if path.exists():
            values.update(line.split("=", 1) for line in path.read_text().splitlines())
    return values

def words(line, values):
    return [os.path.expandvars(word) if "$" not in word else expand(word, values) for word in shlex.split(line)]

def expand(word, values):
    for name, value in values.items():
        word = word.replace("${" + name + "}", value)
    return word

def alive():
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, 0)
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ValueError):
        return False

def stop():
    if alive():
        os.kill(int(pid_file.read_text()), signal.SIGTERM)
        for _ in range(100):
            if not alive():
                break
            time.sleep(0.02)
    pid_file.unlink(missing_ok=True)

def call(line):
    values = environment()
    if subprocess.run(words(line, values), env=values).returncode != 0:
        stop()
        sys.exit(f"Job for {unit} failed because the control process exited with error code.")

if verb == "is-active":
    print("active" if alive() else "inactive")
    sys.exit(0 if alive() else 3)
if verb == "is-enabled":
    print("enabled" if link.exists() else "disabled")
    sys.exit(0 if link.exists() else 1)
if verb == "enable":
    lines("ExecStart")
    link.touch()
elif verb == "disable":
    link.unlink(missing_ok=True)
elif verb in ("stop", "restart", "start") and not unit.endswith(".mount"):
    if verb != "start":
        stop()
    if verb != "stop" and not alive():
        for line in lines("ExecStartPre"):
            call(line)
        values = environment()
        out = (STATE / (unit + ".out")).open("a")
        (line,) = lines("ExecStart")
        daemon = subprocess.Popen(words(line, values), env=values, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
        pid_file.write_text(str(daemon.pid))
        for line in lines("ExecStartPost"):
            call(line)
'''

CONTROL = '''\
"""nvidia-cuda-mps-control as far as it was seen to speak: one daemon a pipe directory, its words, no use of exit codes."""
import os, pathlib, socket, sys

PIPE = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
DOOR = str(PIPE / "control")

def serve():
    percentage, limits = 100.0, {}
    pathlib.Path(DOOR).unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX)
    door.bind(DOOR)
    door.listen()
    while True:
        talk, _ = door.accept()
        said = []
        for line in talk.makefile():
            command, *rest = line.split()
            clients = PIPE / "clients"
            if command == "get_default_active_thread_percentage":
                said.append(str(percentage))
            elif command == "set_default_active_thread_percentage":
                percentage = float(rest[0]) if 0 < float(rest[0]) <= 100 else percentage
                said.append(str(percentage))
            elif command == "set_default_device_pinned_mem_limit":
                limits[rest[0]] = rest[1]
            elif command == "get_default_device_pinned_mem_limit":
                value = limits.get(rest[0])
                if value:
                    mib = int(value[:-1]) * (1024 if value[-1] == "G" else 1)
                    said.append(f"{mib // 1024}G" if mib >= 1024 else f"{mib}M")
            elif command == "get_server_list":
                said += ["4711"] if clients.exists() else []
            elif command == "get_client_list":
                said += clients.read_text().split()
            else:
                said.append(f'Unknown command "{command}"')
        talk.sendall("".join(one + chr(10) for one in said).encode())
        talk.close()

if sys.argv[1:] == ["-f"]:
    serve()
talk = socket.socket(socket.AF_UNIX)
try:
    talk.connect(DOOR)
except OSError:
    print("Cannot find MPS control daemon process")
    sys.exit(1)
talk.sendall(sys.stdin.read().encode())
talk.shutdown(socket.SHUT_WR)
sys.stdout.write(talk.makefile().read())
'''

# Not root everywhere: then only the daemon's words can be tried, not its user.
SETPRIV = '#!/bin/sh\necho "$@" >> {log}\nwhile [ "$1" != "--" ]; do shift; done\nshift\nexec "$@"\n'


class World:
    """A host that can have MPS daemons, with short paths for their sockets."""

    def __init__(self, host: FleetHost, run_module: RunModule, control: str | None = None) -> None:
        self.host, self._run = host, run_module
        self.where = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
        self.state_dir, self.units, self.run_dir = self.where / "state", self.where / "units", self.where / "run"
        self.units.mkdir()
        self.systemd = self.where / "systemd"
        self.control = control or self._script("nvidia-cuda-mps-control", CONTROL)
        self.systemctl = self._script("systemctl", SYSTEMCTL, str(self.units), str(self.systemd))
        self.setpriv = str(self.where / "setpriv")
        Path(self.setpriv).write_text(SETPRIV.format(log=self.where / "setpriv.log"), encoding="utf-8")
        Path(self.setpriv).chmod(0o755)
        code = "import sys; from ansible_collections.gpuops.fleet.plugins.module_utils.agent import main; sys.exit(main())"
        environment = f"LD_LIBRARY_PATH={host.env['LD_LIBRARY_PATH']} NVML_SIM_STATE={host.state} PYTHONPATH={ROOT / 'collections'}"
        self.agent = str(self.where / "agent")
        Path(self.agent).write_text(f"#!/bin/sh\nexec env {environment} {sys.executable} -c '{code}' \"$@\"\n", encoding="utf-8")
        Path(self.agent).chmod(0o755)
        self.uuids = [gpu["uuid"] for gpu in self.show()]

    def _script(self, name: str, text: str, *first: str) -> str:
        source, program = self.where / f"{name}.py", self.where / name
        source.write_text(text, encoding="utf-8")
        program.write_text(f'#!/bin/sh\nexec {" ".join([sys.executable, str(source), *first])} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return str(program)

    def close(self) -> None:
        """Ends every daemon that is left, by its own pid."""
        for path in self.systemd.glob("*.pid"):
            subprocess.run([self.systemctl, "stop", path.name.removesuffix(".pid")], check=False)
        shutil.rmtree(self.where)

    def show(self) -> list[dict[str, t.Any]]:
        """The GPUs as the simulator shows them."""
        return list(self.host.simctl("show", "--json")["gpus"])

    def mode(self, gpu: int = 0) -> str:
        """A GPU's compute mode."""
        return str(self.show()[gpu]["compute_mode"])

    def mps(self, *daemons: dict[str, t.Any], check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        """Run the module once; its result."""
        args = {
            "daemons": list(daemons),
            "state_dir": str(self.state_dir),
            "unit_dir": str(self.units),
            "run_dir": str(self.run_dir),
            "log_dir": str(self.where / "log"),
            "systemctl": self.systemctl,
            "control": self.control,
            "setpriv": self.setpriv,
            "agent": self.agent,
            **more,
        }
        return self._run("mps", args, check=check, diff=True)

    def done(self, *daemons: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
        """Run it; check mode said the same before and changed nothing, and a second run finds nothing to do."""
        before = self.files(), self.acts()
        predicted = self.mps(*daemons, check=True, **more)
        assert not predicted["failed"], predicted
        assert (self.files(), self.acts()) == before
        result = self.mps(*daemons, **more)
        assert not result["failed"], result
        assert {**predicted, "warnings": []} == {**result, "warnings": []}
        files, acts = self.files(), self.acts()
        again = self.mps(*daemons, **more)
        assert (again["failed"], again["changed"], again["steps"]) == (False, False, []), again
        assert (self.files(), self.acts()) == (files, acts)
        return result

    def refused(self, *daemons: dict[str, t.Any], **more: t.Any) -> str:
        """The message, the same in check mode; nothing is changed."""
        before = self.files(), self.acts()
        predicted, result = self.mps(*daemons, check=True, **more), self.mps(*daemons, **more)
        assert predicted["failed"], predicted
        assert predicted["msg"] == result["msg"]
        assert (self.files(), self.acts()) == before
        return str(result["msg"])

    def files(self) -> dict[str, str]:
        """Units and the record."""
        paths = [*self.units.iterdir(), *self.state_dir.glob("mps.json")] if self.units.exists() else []
        return {str(path): path.read_text(encoding="utf-8") for path in sorted(paths)}

    def acts(self) -> list[str]:
        """What systemctl was told to do, without what it was only asked."""
        log = self.systemd / "log"
        return [line for line in log.read_text().splitlines() if not line.startswith("is-")] if log.exists() else []

    def record(self) -> dict[str, t.Any]:
        """The daemons that the host remembers."""
        return dict(json.loads((self.state_dir / "mps.json").read_text())["daemons"])

    def pipe(self, ident: str) -> Path:
        """A daemon's pipe directory."""
        return self.run_dir / ident / "pipe"


def cut(host: FleetHost, gpu: int, profile: str, start: int) -> None:
    """A slice on a GPU whose MIG mode is on."""
    from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml

    host.simctl("set", "mig", "on", "--gpu", str(gpu))
    with Nvml() as nvml:
        handle = nvml.find(gpu)
        (found,) = (each for each in nvml.profiles(handle) if each.name == profile)
        nvml.create_compute_instance(nvml.create_gpu_instance(handle, found.id, start, found.size))
