# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From containers to the ledger: which slices and GPUs a container holds, and what its holds became while nobody watched."""

from __future__ import annotations

import os
import typing as t
from collections.abc import Iterable, Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import ledger as books
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import SHORT_ID, resolve_devices, wanted_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_events import parse_time
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import write_text
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Hold, Holder, Ledger, Place
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Found, NvmlError

SERVICE, REPLICA, TEAM, ENVIRONMENT = "gpuops.service", "gpuops.replica", "gpuops.team", "gpuops.environment"
# Two notes of one start differ by less: the ledger keeps milliseconds.
_SAME_S = 0.002
# The engine tells of a start a little after it.
_LATE_S = 5.0

_Json = Mapping[str, t.Any]
LeaseEnd = t.Callable[[t.Optional[str], t.Optional[int]], t.Optional[str]]


def short_id(detail: _Json) -> str:
    """A container's id as the ledger and the facts have it."""
    return str(detail["Id"])[:SHORT_ID]


def is_running(detail: _Json) -> bool:
    """Whether a container runs; a paused one does."""
    return bool((detail.get("State") or {}).get("Running"))


def labels_of(detail: _Json) -> dict[str, str]:
    """A container's labels."""
    return (detail.get("Config") or {}).get("Labels") or {}


def devices_of(detail: _Json) -> list[str]:
    """The devices that a container names, in its own words."""
    return wanted_devices(detail.get("Config") or {}, detail.get("HostConfig") or {})


def holder_of(detail: _Json) -> Holder:
    """Who a container is."""
    labels = labels_of(detail)
    replica = str(labels.get(REPLICA, ""))
    name = str(detail.get("Name", "")).lstrip("/")
    number = int(replica) if replica.isdigit() else None
    return Holder(labels.get(SERVICE), number, labels.get(TEAM), labels.get(ENVIRONMENT), short_id(detail), name)


def find_places(names: Iterable[str]) -> list[Place]:
    """What the names of a container's devices mean at this moment, each place once. A name that nothing bears is a place all the same.

    The session with NVML is short: an open one would keep a GPU from changing its mode.
    """
    wanted = list(names)
    try:
        with Nvml() as nvml:
            gpus: list[dict[str, t.Any]] = []
            places: dict[str, Place] = {}
            for found in nvml.devices():
                if found.error is None:
                    _note(nvml, found, gpus, places)

            def mig_device(index: int, mig_index: int) -> str | None:
                try:
                    return nvml.mig_devices(nvml.find(index)).get(mig_index)
                except NvmlError:
                    return None

            uuids = resolve_devices(wanted, gpus, mig_device)
    except NvmlError:
        return [Place(name) for name in dict.fromkeys(wanted)]
    return list(dict.fromkeys(places.get(uuid, Place(uuid)) for uuid in uuids))


def _note(nvml: Nvml, found: Found, gpus: list[dict[str, t.Any]], places: dict[str, Place]) -> None:
    """One GPU as ``resolve_devices`` wants it, and the place of each UUID on it. A GPU that is ill is left out."""
    try:
        uuid, pci = nvml.uuid(found.handle), nvml.pci(found.handle).address
        mode = nvml.mig_mode(found.handle)
        instances = nvml.gpu_instances(found.handle) if mode is not None and mode.current else ()
        minor = nvml.minor(found.handle)
    except NvmlError:
        return
    inside = [{"ci": [{"uuid": compute.uuid} for compute in instance.compute_instances]} for instance in instances]
    gpus.append({"uuid": uuid, "index": found.index, "minor": minor, "mig": {"instances": inside}})
    places[uuid] = Place(uuid, pci)
    for instance in instances:
        for compute in instance.compute_instances:
            places[compute.uuid] = Place(uuid, pci, instance.profile, instance.start)


class Pulse:
    """A file that is touched every minute: when the host was last seen alive, in which boot, and since when that boot may be believed.

    ``last``: its time as found (UTC seconds, None: there is none). ``floor``: the last sign of life of the boot before this one: nothing of
    this boot is older, whatever a clock says that is wrong until the network sets it. Its text is ``BOOT_ID FLOOR``.
    """

    def __init__(self, state_dir: Path, proc_root: str) -> None:
        self._path = books.pulse_in(state_dir)
        self._proc = Path(proc_root)
        self.boot = _text(self._proc / "sys" / "kernel" / "random" / "boot_id").strip()
        self.last = books.last_alive(state_dir)
        boot, _space, floor = _text(self._path).strip().partition(" ")
        self.same_boot = self.last is not None and boot == self.boot
        try:
            self.floor = float(floor or 0) if self.same_boot else self.last or 0.0
        except ValueError:
            self.floor = 0.0

    def booted(self) -> float:
        """When the kernel started, UTC seconds by the clock of now; 0 when it does not say."""
        for line in _text(self._proc / "stat").splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
        return 0.0

    def beat(self) -> None:
        """A sign of life. FleetError when the file cannot be written."""
        try:
            if self.same_boot:
                os.utime(self._path)
        except OSError:
            self.same_boot = False  # somebody took it away
        if not self.same_boot:
            write_text(self._path, f"{self.boot} {self.floor:.3f}\n", 0o640)
            self.same_boot = True


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


@t.final
class Bookkeeper:
    """Writes holds of containers into a ledger. ``boot``: the boot id of now. ``floor``: no container of this boot began before that
    (UTC seconds), whatever a clock said that was wrong until the network set it. ``lease_end``: why the lease of a replica ended.
    """

    def __init__(self, ledger: Ledger, boot: str, floor: float = 0.0, lease_end: LeaseEnd = lambda _service, _replica: None) -> None:
        self.ledger = ledger
        self._lease_end = lease_end
        self._boot = boot
        self._floor = floor

    def started(self, detail: _Json, told: float | None = None) -> list[Place]:
        """A container runs: note what it holds, if that is not noted yet. ``told``: when the engine told of the start. Its new places.

        A hold that is still open from an earlier run of the same container is ended: nobody saw when.
        """
        names = devices_of(detail)
        if not names:
            return []
        began = first = parse_time((detail.get("State") or {}).get("StartedAt"))
        if began is None or (told is not None and not 0 <= told - began < _LATE_S):
            # It was started again since, and what is told is of an earlier start, which may be noted already.
            began, first = told, None if told is None else told - _LATE_S
        if began is None or first is None:
            raise FleetError(f"container {holder_of(detail).name} runs, and the engine does not say since when")
        began = max(began, self._floor)
        if self.ledger.knows(short_id(detail), max(first, self._floor) - _SAME_S, began + _SAME_S):
            return []
        for hold in self.ledger.open_holds(short_id(detail)):
            self.ledger.end(hold, _finished(detail, hold.began, began) or hold.began, books.UNKNOWN)
        places = find_places(names)
        for place in places:
            self.ledger.begin(place, holder_of(detail), began, self._boot)
        return places

    def ended(self, container: str, at: float, why: str, exit_code: int | None = None) -> list[Place]:
        """A container ended at ``at``. Holds that began later belong to its next run and stay. The places that it left."""
        left = [hold for hold in self.ledger.open_holds(container) if hold.began <= at + _SAME_S]
        for hold in left:
            self.ledger.end(hold, at, why, exit_code)
        return [hold.place for hold in left]

    def reconcile(self, details: Iterable[_Json], seen: float, booted: float, now: float) -> None:
        """Bring the ledger in line with the containers that there are: end the open holds that no running one proves, begin the others.

        ``seen``: when things were last known to be as noted. ``booted``: when this kernel started. What ended without being seen ended when
        the engine says so, else when it was last seen.
        """
        known = {short_id(detail): detail for detail in details}
        for hold in self.ledger.open_holds():
            self._judge(hold, known.get(hold.holder.container), seen, booted, now)
        for detail in known.values():
            if is_running(detail):
                self.started(detail)

    def _judge(self, hold: Hold, detail: _Json | None, seen: float, booted: float, now: float) -> None:
        if hold.boot != self._boot:
            # The engine of this boot gives a container that died with the host a time of this boot.
            at = None if detail is None else _finished(detail, hold.began, booted)
            self.ledger.end(hold, seen if at is None else at, books.HOST_DOWN)
        elif detail is None:
            self.ledger.end(hold, seen, books.UNKNOWN)
        elif not is_running(detail):
            at, state = _finished(detail, hold.began, now), detail.get("State") or {}
            leased = self._lease_end(hold.holder.service, hold.holder.replica)
            why = books.OUT_OF_MEMORY if state.get("OOMKilled") else leased or books.UNKNOWN
            self.ledger.end(hold, seen if at is None else at, why, state.get("ExitCode"))


def _finished(detail: _Json, after: float, before: float) -> float | None:
    """When the container last ended, if that is between these two."""
    at = parse_time((detail.get("State") or {}).get("FinishedAt"))
    return at if at is not None and after <= at <= before else None
