# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring and remove MPS daemons as systemd units: observe, refuse what cannot be, then the fewest steps."""

from __future__ import annotations

import shutil
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import commands, mps
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import find_profile
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text, write_text
from ansible_collections.gpuops.fleet.plugins.module_utils.mps import Daemon, Places
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import NvmlError, as_named, mps_client_limit

PRESENT, ABSENT, PRUNED = "present", "absent", "pruned"
_UNIT_SECONDS = 120.0
_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class Options:
    """Where things are and what the caller may do. ``uids``: first and last user id that daemons get."""

    places: Places
    systemctl: str = "systemctl"
    uids: tuple[int, int] = (70700, 70799)
    token: str | None = None
    check: bool = False


@dataclass
class Result:
    """``daemons``: those that the host has afterwards, as module mps returns them; ``before`` and ``after``: a line each."""

    steps: list[str] = field(default_factory=list)
    daemons: list[dict[str, t.Any]] = field(default_factory=list)
    before: str = ""
    after: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Work:
    """A daemon that has to be brought or changed, and why."""

    daemon: Daemon
    reasons: tuple[str, ...]
    runs: bool


def apply(entries: Sequence[Mapping[str, t.Any]], state: str, options: Options) -> Result:
    """Bring the daemons of ``entries`` (``present``), remove them (``absent``), or remove all others and bring none (``pruned``).

    FleetError for what is refused, before anything is changed, and for a step that failed.
    """
    known = mps.read(options.places.state_dir)
    if not entries and not known:
        return Result()  # most hosts have no MPS: nothing of it is asked for there
    with Nvml() as nvml:
        run = _Run(nvml, options, known)
        wished = [run.parse(entry, f"daemons[{number}]", state) for number, entry in enumerate(entries)]
        return run.apply({daemon.ident: daemon for daemon in wished}, state)


class _Run:
    """One session with NVML, and what this host knew of its daemons before."""

    def __init__(self, nvml: Nvml, options: Options, known: Mapping[str, Daemon]) -> None:
        self.nvml, self.options, self.places = nvml, options, options.places
        self.known = dict(known)
        self.result = Result(before=_lines(known))

    # What is wished

    def parse(self, entry: Mapping[str, t.Any], where: str, state: str) -> Daemon:
        """An entry with its GPU's UUID, the board's own name of the profile, and the user id that the daemon has or gets."""
        profile, start = entry.get("profile"), entry.get("start")
        if (profile is None) != (start is None):
            raise FleetError("a slice needs both profile and start", field=where, hint="leave out both for the whole GPU")
        percentage, memory = entry.get("thread_percentage"), entry.get("memory_limit_mib")
        if percentage is not None and not 0 < percentage <= 100:
            raise FleetError(
                f"{percentage:g} % is no share of the SMs", field=f"{where}.thread_percentage", hint="write more than 0, at most 100"
            )
        if memory is not None and memory < 1:
            raise FleetError(f"a limit of {memory} MiB is none", field=f"{where}.memory_limit_mib", hint="leave it out for no limit")
        name = str(entry["gpu"])
        if state != PRESENT and any(daemon.gpu == name for daemon in self.known.values()):
            return Daemon(name, 0, profile, start)  # a GPU that is gone or lost can be let go of all the same
        with as_named(name, where):
            handle = self.nvml.find(name)
            uuid, geometry = self.nvml.uuid(handle), self.nvml.geometry(handle)
        if profile is not None and geometry is not None:
            profile = find_profile(geometry, profile).name
        daemon = Daemon(uuid, 0, profile, start, percentage, memory)
        if any(other.gpu == uuid and (other.profile is None) != (profile is None) for other in self.known.values()) and state == PRESENT:
            raise FleetError(
                f"GPU {uuid} has an MPS daemon for {'it' if profile else 'a slice of it'} already", field=where, hint="remove that first"
            )
        return daemon

    def _with_uid(self, wished: Mapping[str, Daemon]) -> dict[str, Daemon]:
        """Each keeps the user id that it has; others get the lowest that is free."""
        taken = {daemon.uid for daemon in self.known.values()}
        free = [uid for uid in range(self.options.uids[0], self.options.uids[1] + 1) if uid not in taken]
        result = {}
        for ident, daemon in wished.items():
            if ident not in self.known and not free:
                first, last = self.options.uids
                raise FleetError(f"no user id is left for {ident}", field="uids", hint=f"widen {first} to {last}: each daemon has its own")
            result[ident] = replace(daemon, uid=self.known[ident].uid if ident in self.known else free.pop(0))
        return result

    def apply(self, wished: Mapping[str, Daemon], state: str) -> Result:
        """See :func:`apply`."""
        leaving = [ident for ident in self.known if (ident in wished) == (state == ABSENT)] if state != PRESENT else []
        coming = self._with_uid(wished) if state == PRESENT else {}
        self._need_programs(coming)
        for ident in leaving:
            self._refuse_with_clients(ident, "is to be removed")
        work = [each for each in (self._work(daemon) for daemon in coming.values()) if each is not None]
        template = self._template_step(coming)
        after = {ident: daemon for ident, daemon in {**self.known, **coming}.items() if ident not in leaving}
        self.result.steps += [f"remove the MPS daemon of {ident}" for ident in leaving]
        self.result.steps += template
        self.result.steps += [
            f"{'restart' if each.runs else 'start'} the MPS daemon of {each.daemon.ident}: {', '.join(each.reasons)}" for each in work
        ]
        self.result.after = _lines(after)
        if not self.options.check:
            for ident in leaving:
                self._remove(ident)
            if template:
                self._checked_write(self.places.unit_dir / mps.TEMPLATE, mps.service_text(self.places))
            for each in work:
                self._bring(each)
        self.result.daemons = [self._described(daemon) for _ident, daemon in sorted(after.items())]
        return self.result

    # What is there

    def _need_programs(self, coming: Mapping[str, Daemon]) -> None:
        if not coming and not self.known:
            return
        needed = [(self.options.systemctl, "MPS daemons run as systemd units")]
        if coming:
            needed += [
                (self.places.control, "it comes with NVIDIA's driver (Debian: package nvidia-cuda-mps)"),
                (self.places.setpriv, "it comes with util-linux"),
            ]
        if coming and not self.options.check:  # the same play may install it before
            needed.append((self.places.agent, "install the host agent first (role gpuops.fleet.host_agent): the units call it"))
        for program, hint in needed:
            if shutil.which(program) is None:
                raise FleetError(f"there is no program {program} on this host; nothing was changed", hint=hint)

    def _systemctl(self, *arguments: str) -> commands.Done:
        return commands.run(
            [self.options.systemctl, *arguments], _UNIT_SECONDS if arguments[0] in ("start", "restart", "stop") else _LOOK_SECONDS
        )

    def _work(self, daemon: Daemon) -> _Work | None:
        """Why the daemon has to be started or restarted; None when it is as it shall be. FleetError when that cannot be."""
        ident = daemon.ident
        uuid = mps.uuid_now(self.nvml, daemon, self.options.check)
        runs = self._systemctl("is-active", mps.unit_of(ident)).output.strip() == "active"
        reasons = []
        if ident not in self.known:
            reasons.append(f"user {daemon.uid}, {_limits(daemon)}")
        elif self.known[ident] != daemon:
            reasons.append(f"{_limits(daemon)} instead of {_limits(self.known[ident])}")
        if self._mount_differs(ident):
            reasons.append("its shared memory")
        if self._systemctl("is-enabled", mps.unit_of(ident)).output.strip() != "enabled":
            reasons.append("it is not started at boot")
        if not runs:
            reasons.append("it does not run")
        elif uuid is None or read_text(self.places.env(ident)) != mps.env_text(self.places, daemon, uuid):
            reasons.append("its device has another UUID")
        else:
            reasons += self._illness(daemon)
        if not reasons:
            return None
        if runs:
            self._refuse_with_clients(ident, f"is to be restarted ({', '.join(reasons)})")
        else:
            self._refuse_beside_others(daemon)
        return _Work(daemon, tuple(reasons), runs)

    def _illness(self, daemon: Daemon) -> list[str]:
        reasons = []
        try:
            mps.thread_percentage(self.places, daemon.ident)
        except FleetError as error:
            reasons.append(str(error))
        handle = self.nvml.find(daemon.gpu)
        wanted = mps.EXCLUSIVE if daemon.profile is None else mps.DEFAULT
        if self.nvml.compute_mode(handle) != wanted:
            reasons.append(f"compute mode is not {wanted}")
        return reasons

    def _refuse_with_clients(self, ident: str, words: str) -> None:
        """A daemon takes its clients with it."""
        if self._systemctl("is-active", mps.unit_of(ident)).output.strip() != "active":
            return
        try:
            pids = mps.clients(self.places, ident)
        except FleetError:
            return  # it does not answer, so nobody is served by it
        if pids:
            who = ", ".join(map(str, pids))
            raise FleetError(
                f"the MPS daemon of {ident} {words}, and it serves pid {who}; nothing was changed", hint="stop the services on it first"
            )

    def _refuse_beside_others(self, daemon: Daemon) -> None:
        """Exclusive mode is no use while somebody computes on the GPU without MPS: the server could not start."""
        if daemon.profile is not None:
            return
        others = [process.pid for process in self.nvml.processes(self.nvml.find(daemon.gpu)) if process.kind == "compute"]
        if others:
            who = ", ".join(map(str, others))
            raise FleetError(
                f"GPU {daemon.gpu} is to be shared through MPS, and pid {who} computes on it; nothing was changed", hint="stop it first"
            )

    def _template_step(self, coming: Mapping[str, Daemon]) -> list[str]:
        before = read_text(self.places.unit_dir / mps.TEMPLATE)
        if not coming or before == mps.service_text(self.places):
            return []
        if before is not None:
            self.result.notes.append(f"{mps.TEMPLATE} is another now; systemd takes it at the next boot, or when it is told to reload")
        return [f"write {mps.TEMPLATE}"]

    def _mount(self, ident: str) -> Path:
        return self.places.unit_dir / mps.mount_unit_of(self.places.shm(ident))

    def _mount_differs(self, ident: str) -> bool:
        return read_text(self._mount(ident)) != mps.mount_text(self.places.shm(ident))

    # Steps

    def _checked_write(self, path: Path, text: str) -> None:
        leases.check(self.places.state_dir, self.options.token)
        write_text(path, text, 0o644)

    def _bring(self, work: _Work) -> None:
        """Units first, then the record that the unit reads, then the start. A daemon that does not start leaves nothing behind."""
        ident, unit = work.daemon.ident, mps.unit_of(work.daemon.ident)
        before = self.known.get(ident)
        if self._mount_differs(ident):
            self._checked_write(self._mount(ident), mps.mount_text(self.places.shm(ident)))
        leases.check(self.places.state_dir, self.options.token)
        self._record({**self.known, ident: work.daemon})
        try:
            # Without --root=/ systemd would read all units anew, which takes the GPUs from running containers (toolkit issue 1227).
            for arguments in (("--root=/", "enable", unit), ("restart" if work.runs else "start", unit)):
                done = self._systemctl(*arguments)
                if done.status != 0:
                    raise FleetError(f"systemctl {' '.join(arguments)}: {done.words}")
            mps.wait_until_well(self.places, ident)
        except FleetError as error:
            back = "what it was before is recorded again" if before is not None else "it was removed again"
            if before is None:
                self._remove(ident)
            else:
                self._record({**self.known, ident: before})
            raise FleetError(f"the MPS daemon of {ident} did not start: {error}; {back}", hint=f"see journalctl -u {unit}") from error

    def _remove(self, ident: str) -> None:
        """Stop it, restore the compute mode, and leave nothing behind; the record goes last, so that a run that died is repeated."""
        leases.check(self.places.state_dir, self.options.token)
        daemon, shm = self.known[ident], mps.mount_unit_of(self.places.shm(ident))
        for arguments in (("--root=/", "disable", mps.unit_of(ident)), ("stop", mps.unit_of(ident)), ("stop", shm)):
            done = self._systemctl(*arguments)
            if done.status != 0 and "not loaded" not in done.words and "does not exist" not in done.words:
                raise FleetError(f"systemctl {' '.join(arguments)}: {done.words}")
        self._restore_mode(daemon)
        try:
            self._mount(ident).unlink(missing_ok=True)
            for path in (self.places.run_dir / ident, self.places.log(ident)):
                if path.exists():
                    shutil.rmtree(path)
            if set(self.known) == {ident}:
                (self.places.unit_dir / mps.TEMPLATE).unlink(missing_ok=True)
        except OSError as error:
            raise FleetError(f"cannot remove {error.filename}: {error.strerror}") from error
        self._record({other: each for other, each in self.known.items() if other != ident})

    def _restore_mode(self, daemon: Daemon) -> None:
        try:
            handle = self.nvml.find(daemon.gpu)
            if self.nvml.compute_mode(handle) == mps.EXCLUSIVE:
                self.nvml.set_compute_mode(handle, mps.DEFAULT)
        except NvmlError as error:
            self.result.notes.append(f"GPU {daemon.gpu}: its compute mode was not restored: {error}")

    def _record(self, daemons: Mapping[str, Daemon]) -> None:
        self.known = dict(daemons)
        mps.write(self.places.state_dir, self.known)

    def _described(self, daemon: Daemon) -> dict[str, t.Any]:
        """For the compose file and for people."""
        share, capability = 1.0, None
        try:
            handle = self.nvml.find(daemon.gpu)
            capability = self.nvml.compute_capability(handle)
            geometry = self.nvml.geometry(handle)
            if daemon.profile is not None and geometry is not None:
                share = find_profile(geometry, daemon.profile).slices / geometry.compute_slices
        except (NvmlError, FleetError) as error:
            self.result.notes.append(f"GPU {daemon.gpu}: {error}")
        return {
            "id": daemon.ident,
            "unit": mps.unit_of(daemon.ident),
            "gpu": daemon.gpu,
            "profile": daemon.profile,
            "start": daemon.start,
            "uid": daemon.uid,
            "pipe": str(self.places.pipe(daemon.ident)),
            "shm": str(self.places.shm(daemon.ident)),
            "clients": mps_client_limit(capability, share),
        }


def _limits(daemon: Daemon) -> str:
    parts = [] if daemon.thread_percentage is None else [f"{daemon.thread_percentage:g} % of the SMs"]
    parts += [] if daemon.memory_limit_mib is None else [f"{daemon.memory_limit_mib} MiB"]
    return f"{' and '.join(parts) or 'no limit'} for each client"


def _lines(daemons: Mapping[str, Daemon]) -> str:
    def words(daemon: Daemon) -> str:
        return f"{daemon.device.where}: user {daemon.uid}, {_limits(daemon)}\n"

    return "".join(words(daemon) for _ident, daemon in sorted(daemons.items()))
