# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives devices of this host to virtual machines and takes them back: look, plan, record, act, verify, and go back if a step fails.

The journal is written before the first step and stays open for a device that is neither as wished nor as before, be it that the process
died or that a write waits in the kernel. The next run with this wish, or what runs at a boot, brings such a device to its wish.
"""

from __future__ import annotations

import time
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils import passthrough, passthrough_papers, pci
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_reset import Services, start_text, stop_text
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough import Plan, Seen, Step, Wish
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_act import Hands
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_look import Eyes, Options
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import DEVICES, DRIVERS, Device
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Stuck

__all__ = ["JOURNAL", "Options", "Result", "apply"]

JOURNAL = "passthrough-journal.json"
KNOWN_AFTER_APPLY = "(known after apply)"
_LOCK = "passthrough"
_RUN_AGAIN = "when the cause is gone, the next run with this wish, or the host's agent at a boot, completes the change"

_Entries = dict[str, dict[str, t.Any]]


@dataclass
class Result:
    """What was done, or with ``check`` would be. ``devices``: ``[{device, uuid, state, because, before, after}]``."""

    changed: bool
    steps: list[str]
    before: str = ""
    after: str = ""
    devices: list[dict[str, t.Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """All of one run: plans, the modules to load, the services to stop, and what is to be remembered afterwards."""

    plans: Sequence[Plan]
    loads: Sequence[Step]
    units: Sequence[str]
    again: Sequence[str]
    entries: Mapping[str, Mapping[str, t.Any]]
    papers: Sequence[str]
    notes: Sequence[str]

    @property
    def first(self) -> list[Step]:
        """What comes before any service is stopped: it concerns the driver, not one device."""
        early = [step for plan in self.plans for step in plan.steps if step.action == "persistence" and plan.wish.vfio]
        return [*self.loads, *early]

    @property
    def rest(self) -> list[tuple[Plan, list[Step]]]:
        """The steps of each device that are left then."""
        early = self.first
        return [(plan, [step for step in plan.steps if step not in early]) for plan in self.plans if plan.steps]

    def texts(self) -> list[str]:
        """All of it in words, in order."""
        stops, starts = map(stop_text, self.units), map(start_text, dict.fromkeys([*self.again, *self.units]))
        rest = [step.text for _plan, steps in self.rest for step in steps]
        return [*(step.text for step in self.first), *stops, *rest, *starts, *self.papers]


def apply(devices: Sequence[Mapping[str, t.Any]], options: Options, papers: bool = True) -> Result:
    """Bring the devices (``[{device, state}]``) to their wished state; no other is touched, but companions where they are to come along.

    ``papers`` False: neither the record nor the udev rule is changed. FleetError when the wish is refused (then nothing was changed) or
    when a step failed (then the message says which, and what was put back).
    """
    if not options.check:
        leases.check(options.state_dir, options.token)
    if not devices:
        return Result(False, [])
    run = _Run(options, papers, repair=False)
    work = run.plan(devices)
    if options.check or not (work.texts() or run.unfinished.words):
        return run.predicted(work)
    with leases.exclusive(options.state_dir, _LOCK):
        # What was seen before the lock may have changed under another writer.
        run = _Run(options, papers, repair=True)
        return run.carry_out(run.plan(devices))


class _Run:
    def __init__(self, options: Options, papers: bool, repair: bool) -> None:
        self.options = options
        self.papers = papers
        self.eyes = Eyes(options)
        self.hands = Hands(self.eyes)
        self.journal = Journal(options.state_dir / JOURNAL)
        self.services = Services(options.systemctl, options.driver_services, self.journal)
        self.unfinished = self.journal.unfinished(repair)
        self.record = passthrough_papers.remembered(options.state_dir)
        begun = {
            address: dict(entry) for address, entry in self.unfinished.before.items() if isinstance(entry, dict) and "identity" in entry
        }
        self.known: _Entries = {**begun, **self.record}

    # What would be done

    def plan(self, devices: Sequence[Mapping[str, t.Any]]) -> Work:
        """Everything that is to be done, or one FleetError before anything is changed."""
        wishes = self.eyes.wishes(devices, self.known)
        ground, mates = self.eyes.ground(), self.eyes.mates(wishes)
        devices_now = {wish.address: self.eyes.device(wish.address) for wish in wishes}
        cleared = self.options.cleared and self.options.check
        if cleared:
            devices_now = {address: replace(device, vfs=()) for address, device in devices_now.items()}
        passthrough.refuse_unfit(devices_now, wishes, ground, mates)
        running = self._running(wishes, devices_now)
        seens = self.eyes.seen(wishes, devices_now, running)
        if cleared:
            seens = {address: passthrough.without_parts(seen) for address, seen in seens.items()}
        passthrough.refuse_busy(seens, wishes)
        plans = [self._plan(seens[wish.address], wish, ground) for wish in wishes]
        entries = self._entries(plans)
        units = running if any(step.action == "unbind" and step.value == "nvidia" for plan in plans for step in plan.steps) else []
        said = [self.unfinished.words] if self.unfinished.words else []
        return Work(
            plans,
            passthrough.loads(plans, ground),
            units,
            self.unfinished.stopped,
            entries,
            self._papers(entries),
            [*passthrough.notes(plans, ground, mates), *said],
        )

    def _plan(self, seen: Seen, wish: Wish, ground: passthrough.Ground) -> Plan:
        return passthrough.plan(seen, wish, self._entry(seen, wish), ground, self._turned_off(wish.address))

    def _running(self, wishes: Sequence[Wish], devices: Mapping[str, Device]) -> list[str]:
        """Services that hold NVIDIA's driver and run, where it has something to give away."""
        if any(wish.vfio and devices[wish.address].driver == "nvidia" for wish in wishes):
            return self.services.running()
        return []

    def _entry(self, seen: Seen, wish: Wish) -> dict[str, t.Any]:
        """What is known of the device: from the record as far as it is the same piece of hardware, and from what it is now."""
        device = seen.device
        old = self.known.get(device.address, {})
        if old and pci.differs(old["identity"], device) is not None:
            old = {}
        entry = dict(old)
        here = {name: value for name, value in device.identity.items() if value is not None}
        entry["identity"] = {**device.identity, **(old.get("identity") or {}), **here}
        if not device.with_vfio and device.driver is not None:
            entry["host_driver"] = device.driver
            entry["host_module"] = self.eyes.sysfs.link(DRIVERS, device.driver, "module")
            # What a run turned off that died later was on before it.
            entry["persistence"] = seen.persistence or bool(wish.vfio and self._turned_off(device.address))
        for name in ("host_driver", "host_module"):
            entry.setdefault(name, None)
        entry.setdefault("persistence", False)
        if wish.vfio:
            entry["vfio_driver"] = device.driver if device.with_vfio else self.options.vfio_driver
            entry["persist"] = self.options.persist
            entry["because"] = wish.because if not old else old.get("because")
            entry["parent"] = self._parent(device)
        return entry

    def _turned_off(self, address: str) -> bool:
        begun = self.unfinished.before.get(address)
        return isinstance(begun, Mapping) and bool(begun.get("persistence"))

    def _parent(self, device: Device) -> dict[str, t.Any] | None:
        """Of a virtual function: the device that has to make it again after a boot, and how many it had."""
        if device.physical is None:
            return None
        parent = pci.glance(self.eyes.sysfs, device.physical, self.eyes.proc)
        return {"address": parent.address, "vfs": len(parent.vfs)}

    def _entries(self, plans: Sequence[Plan]) -> _Entries:
        """What is to be remembered afterwards."""
        if not self.papers:
            return self.record
        entries = dict(self.record)
        for plan in plans:
            if plan.wish.vfio:
                old = self.record.get(plan.address) or {}
                entries[plan.address] = {**plan.entry, **{name: old.get(name) for name in ("by", "since")}}
            else:
                entries.pop(plan.address, None)
        return entries

    def _papers(self, entries: Mapping[str, t.Any]) -> list[str]:
        """The changes of the record and of the udev rule, in words."""
        found = []
        for address in sorted({*entries, *self.record}):
            if entries.get(address) != self.record.get(address):
                found.append(f"{address}: {'remember' if address in entries else 'forget'} it")
        if self.papers and passthrough_papers.rules_text(entries) != passthrough_papers.rules_there(self.options.udev_rules):
            verb = "write" if passthrough_papers.rules_text(entries) else "remove"
            found.append(f"{verb} {self.options.udev_rules}")
        return found

    def predicted(self, work: Work) -> Result:
        """The result without a change: from what was seen, and what the steps lead to."""
        drivers = {plan.address: _driver_after(plan) for plan in work.plans}
        return self._result(work, work.texts(), drivers)

    def _result(self, work: Work, steps: list[str], drivers: Mapping[str, str | None]) -> Result:
        before, after, devices = [], [], []
        for plan in work.plans:
            device, identity = plan.seen.device, plan.entry["identity"]
            before.append(passthrough.line(plan.address, identity["uuid"], device.driver, self.record.get(plan.address)))
            after.append(passthrough.line(plan.address, identity["uuid"], drivers[plan.address], work.entries.get(plan.address)))
            shown = {"group": device.group, "identity": identity}
            devices.append(
                {
                    "device": plan.address,
                    "state": "vfio" if plan.wish.vfio else "host",
                    "companion_of": plan.wish.because,
                    "before": {"driver": device.driver, **shown},
                    "after": {"driver": drivers[plan.address], **shown},
                }
            )
        texts = ["".join(f"{line}\n" for line in sorted(lines)) for lines in (before, after)]
        return Result(bool(steps), steps, texts[0], texts[1], devices, list(work.notes))

    # What is done

    def carry_out(self, work: Work) -> Result:
        """All steps, in order. On failure everything is put back that can be, and FleetError says so."""
        texts, done = work.texts(), list[str]()
        if not texts:
            self.journal.finish("the wish was found to be true", self._elsewhere(work))
            return self.predicted(work)
        moving = [plan for plan in work.plans if plan.steps]
        self.journal.begin(
            {plan.address: plan.entry for plan in moving},
            {plan.address: {"vfio": plan.wish.vfio, "persist": self.options.persist} for plan in moving},
            texts,
        )
        touched: list[Plan] = []
        ending = _Ending("done")
        try:
            ending = self._attempt(work, touched, done)
        finally:
            troubles = self.services.start(done, self.unfinished.stopped)
        if ending.error is None:
            ending = self._write_papers(work, done)
        self.journal.finish(ending.outcome, [*self._elsewhere(work), *ending.left], self.services.stopped)
        if ending.error is not None:
            raise FleetError(
                "; ".join([ending.outcome, *troubles]), hint=_RUN_AGAIN if ending.left else ending.error.hint
            ) from ending.error
        if troubles:
            raise FleetError(f"the devices are as wished, but {'; '.join(troubles)}")
        return self._result(work, done, {plan.address: self._driver(plan.address) for plan in work.plans})

    def _elsewhere(self, work: Work) -> list[str]:
        """Devices that an earlier run left half done and that are not meant now."""
        named = {plan.address for plan in work.plans}
        return [address for address in self.unfinished.wish if address not in named]

    def _driver(self, address: str) -> str | None:
        return self.eyes.sysfs.link(DEVICES, address, "driver")

    def _attempt(self, work: Work, touched: list[Plan], done: list[str]) -> _Ending:
        try:
            for step in work.first:
                touched += [plan for plan in work.plans if plan.address == step.address]
                self._take(step, done)
            self.services.stop(work.units, done)
            for plan, steps in work.rest:
                if plan not in touched:
                    touched.append(plan)
                for step in steps:
                    self._take(step, done)
        except leases.LeaseError as error:
            return _Ending(str(error), [plan.address for plan in touched], error)
        except FleetError as error:
            return self._put_back(error, touched)
        return _Ending("done")

    def _take(self, step: Step, done: list[str]) -> None:
        leases.check(self.options.state_dir, self.options.token)
        self.hands.take(step)
        done.append(step.text)

    def _put_back(self, error: FleetError, touched: Sequence[Plan]) -> _Ending:
        """The last one that was touched first. A device that a write waits for is locked: it is left, and said to be."""
        left, words = [], []
        for plan in reversed(touched):
            if isinstance(error, Stuck) and plan is touched[-1]:
                left.append(plan.address)
                words.append(f"{plan.address} is between two drivers as long as it waits")
                continue
            try:
                leases.check(self.options.state_dir, self.options.token)
                if self.hands.undo(plan):
                    words.append(f"{plan.address} is with {self._driver(plan.address) or 'no driver'} again")
            except FleetError as trouble:
                left.append(plan.address)
                words.append(f"{plan.address} could not be put back: {trouble}")
        return _Ending("; ".join([error.message if error.file is None else f"{error.file}: {error.message}", *words]), left, error)

    def _write_papers(self, work: Work, done: list[str]) -> _Ending:
        """The record first: without it nobody knows whose the rule's devices are."""
        try:
            self._remember(work.entries)
            rules = passthrough_papers.rules_text(work.entries)
            if self.papers and rules != passthrough_papers.rules_there(self.options.udev_rules):
                passthrough_papers.write_rules(self.options.udev_rules, rules)
        except FleetError as error:
            words = f"the devices are as wished now, and a boot will not find them so: {error}"
            return _Ending(words, [plan.address for plan in work.plans if plan.steps], error)
        done += work.papers
        return _Ending("done")

    def _remember(self, entries: Mapping[str, Mapping[str, t.Any]]) -> None:
        if entries == self.record:
            return
        holder = leases.current(self.options.state_dir)
        new = {"by": holder.holder if holder is not None else None, "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        signed = {address: {**entry, **new} if entry.get("since") is None else entry for address, entry in entries.items()}
        passthrough_papers.remember(self.options.state_dir, signed, self.options.udev_rules)


@dataclass(frozen=True)
class _Ending:
    """How a run ended. ``left``: devices that are neither as wished nor as before."""

    outcome: str
    left: Sequence[str] = ()
    error: FleetError | None = None


def _driver_after(plan: Plan) -> str | None:
    """Who has the device in the end."""
    probes = [step for step in plan.steps if step.action == "probe"]
    if not probes:
        return plan.seen.device.driver
    return probes[-1].value or KNOWN_AFTER_APPLY
