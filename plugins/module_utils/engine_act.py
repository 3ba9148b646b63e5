# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Docker engine reads its settings again, or starts anew, and what runs on it keeps running and keeps its GPUs.

A restart stops every container unless the engine has live-restore in force, which a reload brings. Even then it is Docker's word that
containers survive only while settings such as the bridge or the storage driver stay as they are (docs.docker.com,
engine/daemon/live-restore). The settings that are known to be of no such kind are ``KEPT``; any other is taken for one that is. The unit
must not kill its control group either (docker/machine issue 3963).

``systemctl daemon-reload`` makes systemd write the device rules of every cgroup that it manages again. What it does not know of is lost:

- containers below cgroups that systemd does not manage (cgroup driver ``cgroupfs``): nothing happens;
- a GPU by CDI or as a device file is in the container's own rules, which systemd gets as ``/dev/char/MAJOR:MINOR``. runc from 1.1.3 to
  1.1.6 leaves out a rule without that link, other releases do not (opencontainers/runc pulls 3498 and 3842): safe with another runc, or
  with links;
- a GPU by NVIDIA's hook is in no rule that systemd knows, links or not (opencontainers/runc issue 4568): refused while such a container
  runs.

Sources besides: NVIDIA/nvidia-container-toolkit issues 48, 1227 and pull 1553.
"""

from __future__ import annotations

import os
import shutil
import time
import typing as t
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import commands, daemon_json, dev_char, drains, gpus_inside, words
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_units import hurt_by_reload
from ansible_collections.gpuops.fleet.plugins.module_utils.daemon_json import NONE, RELOAD, RESTART, Waiting
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import Engine, EngineError, wanted_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_force import not_in_force
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text

AUTO, DAEMON_RELOAD = "auto", "daemon_reload"
# What may change under containers that live on: it is for new ones, or for the engine's own door and words.
KEPT = frozenset(
    (
        "cdi-spec-dirs",
        "default-address-pools",
        "default-network-opts",
        "default-ulimits",
        "experimental",
        "features/cdi",
        "hosts",
        "log-driver",
        "log-format",
        "log-level",
        "log-opts",
        "metrics-addr",
        "proxies",
    )
)
POLL_S = 0.5
_BROKEN_RUNC = ((1, 1, 3), (1, 1, 6))
_SAFE_KILL = ("process", "none", "")
_MOST_NAMES = 5

_Json = Mapping[str, t.Any]


@dataclass(frozen=True)
class Options:
    """``action``: ``auto`` does what waits. ``settings``: what has to be in force afterwards. ``promised``: what a check of
    :mod:`daemon_json` would leave waiting. ``timeout``: seconds for each of systemctl and the engine's answer afterwards.
    """

    action: str = AUTO
    settings: _Json = field(default_factory=dict)
    promised: Waiting = field(default_factory=Waiting)
    socket: str = "/var/run/docker.sock"
    service: str = "docker.service"
    systemctl: str = "systemctl"
    path: Path = Path("/etc/docker/daemon.json")
    dockerd: str = "dockerd"
    pid_file: Path = Path("/var/run/docker.pid")
    state_dir: Path = Path("/var/lib/gpuops-fleet")
    proc_root: Path = Path("/proc")
    dev_root: Path = Path("/dev")
    timeout: float = 120.0
    token: str | None = None
    check: bool = False


@dataclass
class Result:
    """``action``: what was done, or with ``check`` would be. ``kept``: containers that ran through it. ``stopped``: of a drained host."""

    action: str = NONE
    steps: list[str] = field(default_factory=list)
    running: bool = False
    live_restore: bool | None = None
    kept: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Seen:
    """A running container: which start of it this is, and what it sees of GPUs (None: it has none)."""

    name: str
    started: str
    gpus: frozenset[str] | None
    complaint: str = ""


def act(options: Options) -> Result:
    """Do what is asked, or what waits. FleetError, one line, when that would hurt what runs, or when something is not as it was."""
    if not os.path.exists(options.socket):
        return _without_engine(options)
    with Engine(options.socket) as engine:
        return _Act(options, engine).carry_out()


def _without_engine(options: Options) -> Result:
    """No container of an engine can be hurt, and an engine reads its settings when it starts."""
    result = Result()
    if options.action == DAEMON_RELOAD:
        result.action = DAEMON_RELOAD
        _daemon_reload(options, result)
    return result


def _daemon_reload(options: Options, result: Result) -> None:
    result.steps.append("have systemd read its units again")
    if not options.check:
        leases.check(options.state_dir, options.token)
        _systemctl(options, "daemon-reload")


def _systemctl(options: Options, *arguments: str) -> str:
    program = shutil.which(options.systemctl)
    if program is None:
        raise FleetError(f"there is no {options.systemctl} on this host", hint="the engine is reloaded and restarted by systemd")
    done = commands.run([program, *arguments], options.timeout)
    if done.status:
        raise FleetError(f"systemctl {' '.join(arguments)} failed: {done.words}", hint=f"journalctl --unit {options.service}")
    return done.output.strip()


@t.final
class _Act:
    def __init__(self, options: Options, engine: Engine) -> None:
        self.options = options
        self.engine = engine
        self.result = Result(running=True)
        self.info: _Json = engine.get("/info")
        self.process = daemon_json.engine_process(options.pid_file, options.proc_root)
        self.drained = any(drain["gpu"] is None for drain in drains.read(options.state_dir, datetime.now(timezone.utc)))

    def carry_out(self) -> Result:
        options, result = self.options, self.result
        result.live_restore = bool(self.info.get("LiveRestoreEnabled"))
        if options.action == DAEMON_RELOAD:
            result.action = DAEMON_RELOAD
            self._refuse_hurt()
            self._step(lambda: _daemon_reload(options, result), [])
            return result
        waiting = self._waiting()
        result.action = waiting.action if options.action == AUTO else options.action
        if result.action == NONE:
            return result
        brings_live_restore = "live-restore" in waiting.reload and options.settings.get("live-restore") is True
        running = self._running()
        if result.action == RESTART:
            self._refuse_restart(running, waiting, bool(result.live_restore) or brings_live_restore)
        if waiting.reload or result.action == RELOAD:
            self._step(lambda: self._reload(waiting), [])
        if result.action == RESTART:
            doomed = [] if result.live_restore or brings_live_restore else [_name(one) for one in running]
            self._step(lambda: self._restart(waiting), doomed)
        if brings_live_restore or not options.check:
            result.live_restore = bool(self.info.get("LiveRestoreEnabled")) or brings_live_restore
        return result

    def _waiting(self) -> Waiting:
        """What an earlier run left waiting, and what the engine says is not so."""
        found = daemon_json.waiting(self.options.state_dir, self.options.path, self.process)
        found = found.joined(daemon_json.waiting_for(not_in_force(self.info, self.options.settings)))
        return found.joined(self.options.promised) if self.options.check else found

    # --- what must not be done

    def _running(self) -> list[_Json]:
        return [one for one in self.engine.details() if (one.get("State") or {}).get("Running")]

    def _refuse_restart(self, running: list[_Json], waiting: Waiting, live_restore: bool) -> None:
        """FleetError when a restart would stop containers of a host that is not drained, or when the engine would not start again."""
        self._refuse_flags()
        text = read_text(self.options.path) or ""
        if (self.info.get("Swarm") or {}).get("LocalNodeState") == "active" and daemon_json.parse(text, self.options.path).get(
            "live-restore"
        ):
            raise FleetError("this engine is part of a swarm, and with live-restore it would not start again", hint="leave the swarm first")
        if not running or self.drained:
            return
        names = _names(running)
        if not live_restore:
            hint = (
                "drain this host (playbook drain), or have live-restore in force by a reload first ('live-restore': true in the settings)"
            )
            raise FleetError(f"a restart of the engine would stop {names}, for live-restore is not in force", hint=hint)
        if unkept := sorted(set(waiting.restart) - KEPT):
            wrong = f"a restart with another {', '.join(unkept)} may lose {names}: live-restore does not hold over that"
            raise FleetError(wrong, hint="drain this host first (playbook drain)")
        mode = _systemctl(self.options, "show", "--property=KillMode", "--value", self.options.service)
        if mode not in _SAFE_KILL:
            wrong = f"a restart of the engine may stop {names}: {self.options.service} has KillMode={mode}"
            raise FleetError(wrong, hint="set KillMode=process in a drop-in, or drain this host first (playbook drain)")

    def _refuse_flags(self) -> None:
        """An engine that finds a setting both in its file and on its command line does not start."""
        number = self.process.partition(":")[0]
        try:
            line = (self.options.proc_root / number / "cmdline").read_bytes() if number else b""
        except OSError:
            return
        flags = {word.partition("=")[0] for word in line.decode(errors="replace").split("\0") if word.startswith("-")}
        keys = {*daemon_json.parse(read_text(self.options.path) or "", self.options.path), *self.options.settings}
        both = sorted(key for key in keys if _flags_of(key) & flags)
        if both:
            wrong = f"the engine gets {', '.join(both)} on its command line as well, and would not start again"
            raise FleetError(
                wrong, hint=f"take it out of the unit's command line (systemctl cat {self.options.service}) or out of the settings"
            )

    def _refuse_hurt(self) -> None:
        """FleetError when containers would lose their GPU to a reload of systemd."""
        if self.info.get("CgroupDriver") == "cgroupfs":
            return
        hurt = hurt_by_reload(Path(self.options.socket))
        if hurt and not self.drained:
            wrong = f"systemctl daemon-reload would take the GPU from {_listed(hurt)}, which got it from NVIDIA's hook and not by CDI"
            raise FleetError(
                wrong, hint="drain this host first (playbook drain), or give services their GPUs by CDI (fleet_gpu_access: cdi)"
            )
        missing, runc = list(dev_char.missing(self.options.dev_root)), self._runc()
        if missing and not self.drained and _is_broken(runc):
            names = [_name(one) for one in self._running() if wanted_devices(one.get("Config") or {}, one.get("HostConfig") or {})]
            if names:
                which = f"runc {runc}" if runc else "a runc that does not tell its version"
                wrong = f"systemctl daemon-reload may take the GPU from {_listed(names)}: {which} needs {missing[0]}"
                raise FleetError(
                    wrong, hint="nvidia-ctk system create-dev-char-symlinks --create-all, and start them again; or another runc"
                )

    def _runc(self) -> str:
        parts = self.engine.get("/version").get("Components") or []
        return next((str(part.get("Version") or "") for part in parts if part.get("Name") == "runc"), "")

    # --- doing it, with a look before and after

    def _step(self, work: Callable[[], None], doomed: list[str]) -> None:
        """``doomed``: names of containers that may stop."""
        before = {} if self.options.check else self._look()
        work()
        if not self.options.check:
            self._compare(before, doomed)

    def _look(self) -> dict[str, _Seen]:
        found = {}
        for one in self._running():
            gpus, complaint = None, ""
            if wanted_devices(one.get("Config") or {}, one.get("HostConfig") or {}):
                gpus, complaint = gpus_inside.seen(self.engine, one, self.options.proc_root)
            found[str(one["Id"])] = _Seen(_name(one), str((one.get("State") or {}).get("StartedAt")), gpus, complaint)
        return found

    def _compare(self, before: Mapping[str, _Seen], doomed: list[str]) -> None:
        """FleetError when a container does not run as before, or lost a GPU that it saw."""
        now, what = self._look(), self.result.action.replace("_", "-")
        ended = [one.name for key, one in before.items() if key not in now or now[key].started != one.started]
        self.result.stopped = sorted({*self.result.stopped, *(name for name in ended if name in doomed)})
        self.result.kept = sorted(one.name for one in before.values() if one.name not in ended)
        if lost := [name for name in ended if name not in doomed]:
            raise FleetError(f"after the {what} these containers do not run as before: {_listed(lost)}", hint="docker ps --all says why")
        blind = [
            f"{one.name} ({now[key].complaint or 'it no longer sees ' + words.joined(one.gpus - (now[key].gpus or frozenset()))})"
            for key, one in before.items()
            if key in now and one.gpus and not one.gpus <= (now[key].gpus or frozenset())
        ]
        if blind and not self.drained:
            raise FleetError(
                f"after the {what} these containers lost their GPU: {_listed(blind)}", hint="start them again: docker restart NAME"
            )

    def _reload(self, waiting: Waiting) -> None:
        options = self.options
        self.result.steps.append(f"have the engine read its settings again{_for(waiting.reload)}")
        if options.check:
            return
        leases.check(options.state_dir, options.token)
        _systemctl(options, "reload", options.service)
        wished = {key: value for key, value in options.settings.items() if key in daemon_json.RELOADED}
        self._await(wished, "read its settings again")
        daemon_json.settle(options.state_dir, self.process, Waiting((), waiting.restart))

    def _restart(self, waiting: Waiting) -> None:
        options = self.options
        self.result.steps.append(f"restart the engine{_for(waiting.restart)}")
        if options.check:
            return
        leases.check(options.state_dir, options.token)
        # It may have been edited since.
        daemon_json.validate(options.dockerd, read_text(options.path) or "{}", options.path)
        _systemctl(options, "restart", options.service)
        self._await(options.settings, "restarted")
        daemon_json.settle(options.state_dir, self.process, Waiting())

    def _await(self, settings: _Json, what: str) -> None:
        """Wait until the engine answers and the settings are in force. FleetError when the time is over."""
        until, problem = time.monotonic() + self.options.timeout, ""
        while True:
            try:
                self.info = self.engine.get("/info")
                wrong = not_in_force(self.info, settings)
                if not wrong:
                    return
                problem = f"{', '.join(wrong)} is not in force"
            except EngineError as error:
                problem = error.message
            if time.monotonic() >= until:
                hint = f"journalctl --unit {self.options.service} says why"
                raise FleetError(f"the engine {what}, and after {self.options.timeout:g} s {problem}", hint=hint)
            time.sleep(POLL_S)


def _is_broken(runc: str) -> bool:
    """Whether this runc leaves out rules of devices without a link; one that does not say is taken for such a one."""
    numbers = []
    for part in runc.split("+")[0].split("~")[0].split("-")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return not numbers or _BROKEN_RUNC[0] <= tuple(numbers[:3]) <= _BROKEN_RUNC[1]


def _flags_of(key: str) -> set[str]:
    """How a key of the file may be written on the command line: a list's flag is its singular."""
    one = key[:-3] + "y" if key.endswith("ies") else key[:-1] if key.endswith("s") else key
    return {f"--{key}", f"--{one}", *({"-H"} if key == "hosts" else ())}


def _name(one: _Json) -> str:
    return str(one.get("Name") or one["Id"]).lstrip("/")


def _names(running: Iterable[_Json]) -> str:
    return _listed(sorted(_name(one) for one in running))


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _for(keys: Iterable[str]) -> str:
    text = ", ".join(keys)
    return f" for {text}" if text else ""
