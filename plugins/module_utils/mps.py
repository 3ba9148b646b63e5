# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One MPS control daemon for a GPU or a slice: what it is called, its units, its words, and what happens when it starts.

MPS (Multi-Process Service) lets the processes of one user compute on a GPU at the same time. A host keeps its daemons in ``mps.json``:
``{format: 1, daemons: {id: {gpu, profile, start, uid, thread_percentage, memory_limit_mib}}}``. The id is the GPU's UUID, with
``-<start>`` for a slice. The UUID of a slice's MIG device may change, so the unit looks it up each time it starts (:func:`prepare`).

Words of the daemon: as nvidia-cuda-mps-control 535.261.03 was seen to speak. Its exit status tells nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import commands
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json, write_text
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import KNOWN_AFTER_APPLY, Device, resolve

FILE = "mps.json"
FORMAT = 1
TEMPLATE = "gpuops-fleet-mps@.service"
EXCLUSIVE, DEFAULT = "exclusive_process", "default"
_ANSWER_SECONDS = 10.0
_START_SECONDS = 20.0
_POLL_SECONDS = 0.1
_HEADER = "# Written by gpuops.fleet.mps: change the inventory, not this file.\n"


@dataclass(frozen=True)
class Places:
    """Where things are on the host. ``control``, ``setpriv``: programs; ``agent``: the host agent's program, which the units call."""

    state_dir: Path = Path("/var/lib/gpuops-fleet")
    run_dir: Path = Path("/run/gpuops-fleet/mps")
    log_dir: Path = Path("/var/log/gpuops-fleet/mps")
    unit_dir: Path = Path("/etc/systemd/system")
    agent: str = "/opt/gpuops-fleet/current/bin/gpuops-fleet-agent"
    control: str = "nvidia-cuda-mps-control"
    setpriv: str = "setpriv"

    def pipe(self, ident: str) -> Path:
        """The directory through which clients find the daemon. Its path must be short: a socket's has at most 107 bytes."""
        return self.run_dir / ident / "pipe"

    def shm(self, ident: str) -> Path:
        """A tmpfs that the daemon and its clients have as /dev/shm."""
        return self.run_dir / ident / "shm"

    def env(self, ident: str) -> Path:
        """What the daemon is started with."""
        return self.run_dir / ident / "env"

    def log(self, ident: str) -> Path:
        """The daemon's own log."""
        return self.log_dir / ident


@dataclass(frozen=True)
class Daemon:
    """A daemon as it shall be: ``gpu`` by UUID, a slice by ``profile`` and ``start``; limits for each client, None for no limit."""

    gpu: str
    uid: int
    profile: str | None = None
    start: int | None = None
    thread_percentage: float | None = None
    memory_limit_mib: int | None = None

    @property
    def ident(self) -> str:
        """As in ``mps.json`` and in the unit's name."""
        return ident_of(self.gpu, self.start)

    @property
    def device(self) -> Device:
        """What it stands on."""
        return Device("CUDA_VISIBLE_DEVICES", self.gpu, self.profile, self.start)


def ident_of(gpu: str, start: int | None) -> str:
    """Name of the daemon of a GPU (by UUID) or of the slice that starts there."""
    return gpu if start is None else f"{gpu}-{start}"


# Memory


def read(state_dir: Path) -> dict[str, Daemon]:
    """The daemons of this host by id. FleetError when the file is damaged."""
    data = read_json(state_dir / FILE)
    if data is None:
        return {}
    try:
        if data["format"] != FORMAT:
            raise ValueError(data["format"])
        return {ident: Daemon(**each) for ident, each in data["daemons"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FleetError("these are not MPS daemons", file=str(state_dir / FILE), hint="look at it and remove it") from error


def write(state_dir: Path, daemons: Mapping[str, Daemon]) -> None:
    """Put them on disk, crash-safe."""
    write_json(state_dir / FILE, {"format": FORMAT, "daemons": {ident: asdict(each) for ident, each in daemons.items()}})


# Units


def unit_of(ident: str) -> str:
    """Name of a daemon's unit."""
    return TEMPLATE.replace("@.", f"@{ident}.")


def mount_unit_of(path: Path) -> str:
    """Name that systemd wants for the unit of a mount point (systemd-escape --path)."""
    escaped = ""
    for number, character in enumerate(str(path).strip("/")):
        plain = character.isascii() and (character.isalnum() or character in ":_" or (character == "." and number > 0))
        escaped += "-" if character == "/" else character if plain else "".join(f"\\x{byte:02x}" for byte in character.encode())
    return f"{escaped}.mount"


def service_text(places: Places) -> str:
    """The unit of all daemons; ``%i`` is the id. Its values are in files that are read at each start, so that it never changes."""
    run = _unit_path(places.run_dir)
    agent = (
        f"{_program(places.agent)} mps --state-dir {_unit_path(places.state_dir)} --run-dir {run} --log-dir {_unit_path(places.log_dir)}"
    )
    agent += f" --control {_program(places.control)}"
    return f"""{_HEADER}[Unit]
Description=MPS control daemon of %i
After=gpuops-fleet-restore.service
Before=gpuops-fleet-services.service
RequiresMountsFor={run}/%i/shm

[Service]
Type=exec
EnvironmentFile=-{run}/%i/env
ExecStartPre={agent} prepare %i
ExecStart={_program(places.setpriv)} --reuid=${{MPS_UID}} --regid=${{MPS_UID}} --clear-groups -- {_program(places.control)} -f
ExecStartPost={agent} limits %i
BindPaths={run}/%i/shm:/dev/shm
Restart=on-failure
RestartSec=5
TimeoutStartSec=90
TimeoutStopSec=30

[Install]
WantedBy=multi-user.target
"""


def mount_text(path: Path) -> str:
    """The unit of a daemon's shared memory: a tmpfs that is no part of the host's own /run or /dev/shm."""
    return f"""{_HEADER}[Unit]
Description=Shared memory of the clients of an MPS daemon

[Mount]
What=tmpfs
Where={_unit_path(path)}
Type=tmpfs
Options=mode=1777,nosuid,nodev,noexec
"""


def _unit_path(path: object) -> str:
    return str(path).replace("%", "%%")


def _program(name: str) -> str:
    """Its path on this host: a unit has no PATH of an administrator."""
    return _unit_path(shutil.which(name) or name)


# The daemon's words


def ask(places: Places, ident: str, *lines: str) -> list[str]:
    """What the daemon answers to these commands, line by line. FleetError when there is no daemon, or no program to ask it with."""
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(places.pipe(ident)), "CUDA_MPS_LOG_DIRECTORY": str(places.log(ident))}
    done = commands.run([places.control], _ANSWER_SECONDS, "".join(f"{line}\n" for line in lines), variables)
    answer = [line.strip() for line in done.output.splitlines() if line.strip()]
    if done.status != 0 or any("Cannot find MPS" in line for line in (*answer, done.complaint)):
        raise FleetError(f"the MPS daemon of {ident} does not answer: {done.words}")
    return answer


def thread_percentage(places: Places, ident: str) -> float:
    """The default share of the SMs, which a well daemon always knows: the health check. FleetError when it is not well."""
    answer = ask(places, ident, "get_default_active_thread_percentage")
    try:
        return float(answer[-1])
    except (IndexError, ValueError) as error:
        raise FleetError(f"the MPS daemon of {ident} answers nonsense: {' '.join(answer) or 'nothing'}") from error


def memory_limit(places: Places, ident: str) -> int | None:
    """The default memory limit of a client in MiB; None for none. From 1 GiB on the daemon tells whole GiB only, rounded down."""
    for line in ask(places, ident, "get_default_device_pinned_mem_limit 0"):
        if line[:-1].isdigit() and line[-1] in "GM":
            return int(line[:-1]) * (1024 if line[-1] == "G" else 1)
    return None


def clients(places: Places, ident: str) -> list[int]:
    """Pids of the daemon's clients."""
    found = []
    for server in (line for line in ask(places, ident, "get_server_list") if line.isdigit()):
        found += [int(line) for line in ask(places, ident, f"get_client_list {server}") if line.isdigit()]
    return sorted(found)


# What the unit calls


def prepare(places: Places, ident: str) -> str:
    """Before the daemon starts: its directories, the compute mode of its GPU, and the UUID that its device has now, in words.

    A whole GPU is in exclusive mode, so that nobody computes beside MPS; MIG knows no such mode. FleetError when the device is not there.
    """
    daemon = _known(places, ident)
    with Nvml() as nvml:
        uuid = resolve(nvml, daemon.device)
        if uuid is None:
            raise FleetError(f"there is no {daemon.device.where}", hint="bring the GPU to its layout first (gpuops.fleet.mig)")
        handle = nvml.find(daemon.gpu)
        mode = EXCLUSIVE if daemon.profile is None else DEFAULT
        if nvml.compute_mode(handle) != mode:
            nvml.set_compute_mode(handle, mode)
            if nvml.compute_mode(handle) != mode:
                raise FleetError(f"GPU {daemon.gpu}: compute mode {mode} was written, and {nvml.compute_mode(handle)} is in force")
    try:
        for path in (places.pipe(ident), places.log(ident)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
            if os.geteuid() == 0:
                os.chown(path, daemon.uid, daemon.uid)
    except OSError as error:
        raise FleetError(f"cannot make {error.filename}: {error.strerror}") from error
    write_text(places.env(ident), env_text(places, daemon, uuid), 0o644)
    return f"{ident}: {uuid}, compute mode {mode}, user {daemon.uid}"


def env_text(places: Places, daemon: Daemon, uuid: str) -> str:
    """The environment of a daemon whose device has this UUID."""
    values = {
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_MPS_PIPE_DIRECTORY": places.pipe(daemon.ident),
        "CUDA_MPS_LOG_DIRECTORY": places.log(daemon.ident),
        "MPS_UID": daemon.uid,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def limits(places: Places, ident: str) -> str:
    """After it started: the limits of its clients, each read back, in words. FleetError when it does not answer, or did not take one."""
    daemon = _known(places, ident)
    wait_until_well(places, ident)
    said = []
    if daemon.thread_percentage is not None:
        ask(places, ident, f"set_default_active_thread_percentage {daemon.thread_percentage:g}")
        got: float | int | None = thread_percentage(places, ident)
        if got != daemon.thread_percentage:
            raise FleetError(f"{ident}: {daemon.thread_percentage:g} % of the SMs was written, and {got:g} % is in force")
        said.append(f"{daemon.thread_percentage:g} % of the SMs")
    if daemon.memory_limit_mib is not None:
        ask(places, ident, f"set_default_device_pinned_mem_limit 0 {daemon.memory_limit_mib}M")
        got = memory_limit(places, ident)
        told = daemon.memory_limit_mib if daemon.memory_limit_mib < 1024 else daemon.memory_limit_mib // 1024 * 1024
        if got != told:
            raise FleetError(f"{ident}: a limit of {daemon.memory_limit_mib} MiB was written, and {got or 'no limit'} is in force")
        said.append(f"{daemon.memory_limit_mib} MiB")
    return f"{ident}: {' and '.join(said) if said else 'no limit'} for each client"


def wait_until_well(places: Places, ident: str) -> None:
    """FleetError with the daemon's words when it is not well within 20 s."""
    begun = time.monotonic()
    while True:
        try:
            thread_percentage(places, ident)
            return
        except FleetError:
            if time.monotonic() - begun > _START_SECONDS:
                raise
        time.sleep(_POLL_SECONDS)


def _known(places: Places, ident: str) -> Daemon:
    daemon = read(places.state_dir).get(ident)
    if daemon is None:
        raise FleetError(f"this host knows no MPS daemon {ident}", file=str(places.state_dir / FILE))
    return daemon


def uuid_now(nvml: Nvml, daemon: Daemon, check: bool) -> str | None:
    """The UUID of the daemon's device at this moment; with ``check`` a slice that is not there yet is no error."""
    uuid = resolve(nvml, daemon.device, check)
    if uuid is None and not check:
        raise FleetError(f"there is no {daemon.device.where}", hint="bring the GPU to its layout first (gpuops.fleet.mig)")
    return None if uuid == KNOWN_AFTER_APPLY else uuid


def main(arguments: Sequence[str]) -> int:
    """``mps [--state-dir DIR] ... prepare | limits | health ID``, a verb of the host agent; 0, or 1 with one line on stderr."""
    usual = Places()
    parser = argparse.ArgumentParser(prog="gpuops-fleet-agent mps", description="what the unit of an MPS daemon calls")
    parser.add_argument("--state-dir", type=Path, default=usual.state_dir)
    parser.add_argument("--run-dir", type=Path, default=usual.run_dir)
    parser.add_argument("--log-dir", type=Path, default=usual.log_dir)
    parser.add_argument("--control", default=usual.control)
    parser.add_argument("verb", choices=("prepare", "limits", "health"))
    parser.add_argument("ident", metavar="ID")
    asked = parser.parse_args(arguments)
    places = Places(state_dir=asked.state_dir, run_dir=asked.run_dir, log_dir=asked.log_dir, control=asked.control)
    verbs: dict[str, t.Callable[[], str]] = {
        "prepare": lambda: prepare(places, asked.ident),
        "limits": lambda: limits(places, asked.ident),
        "health": lambda: f"{asked.ident}: {thread_percentage(places, asked.ident):g} % of the SMs by default",
    }
    try:
        sys.stdout.write(verbs[asked.verb]() + "\n")
    except FleetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
