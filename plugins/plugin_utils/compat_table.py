# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All services on all hosts, as the gate sees them: one table for people, and the same as data."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import runtimes
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat import Answers, Gate, named, told
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import EFFECTS, CompatImage, Finding, host_of, image_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_rules import NOT_HERE, driver_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Bar, Bars, Deed
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import absence, table

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts

Data = Mapping[str, t.Any]

_DATE = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")
# So many names are written out in one line; of the others only their number.
_NAMES = 4
# More columns than this are no table that a person reads.
_COLUMNS = 12
# Rules whose remedy is another image, and how a remedy ends that does nothing to the host.
_OF_IMAGE: t.Final = frozenset({"gpu-cuda", "image-floor"})
_ELSEWHERE: t.Final = "another host"


@dataclass(frozen=True)
class Judged:
    """``rows``: host by host, what the gate answered to each kind of its GPUs; ``services``: what the numbers in it mean.

    ``unread``: hosts that were not judged, and why.
    """

    rows: tuple[tuple[str, tuple[Answers, ...]], ...]
    services: tuple[str, ...]
    unread: Mapping[str, str]

    def data(self) -> list[dict[str, t.Any]]:
        """As plain data, for JSON: ``host``, ``gpu``, ``service``, ``answer``, ``findings``; host by host, service by service."""
        entries: list[dict[str, t.Any]] = []
        for host, answers in self.rows:
            found: list[tuple[int, dict[str, t.Any]]] = []
            for verdict, numbers in answers:
                plain = named(verdict, host).data()
                found += [(number, plain) for number in numbers]
            for number, plain in sorted(found, key=lambda each: each[0]):
                entries.append({"service": self.services[number], **{key: plain[key] for key in ("host", "gpu", "answer", "findings")}})
        return entries

    def table(self) -> list[str]:
        """A line for each kind of GPU of a host, a column for each service; below it every finding once, with whom it concerns.

        More services than a screen is wide share a column where their answers are the same on every line.
        """
        lines: dict[tuple[str, str], list[str]] = {}
        for host, answers in self.rows:
            for verdict, numbers in answers:
                row = lines.setdefault((host, verdict.board), [""] * len(self.services))
                answer = verdict.answer
                for number in numbers:
                    row[number] = answer
        columns = [([name], [cells[number] for cells in lines.values()]) for number, name in enumerate(self.services)]
        if len(columns) > _COLUMNS:
            alike: dict[tuple[str, ...], list[str]] = {}
            for names, cells in columns:
                alike.setdefault(tuple(cells), []).extend(names)
            columns = [(who, list(answers)) for answers, who in alike.items()]
        body = [[*place, *(cells[number] for _who, cells in columns)] for number, place in enumerate(lines)]
        head = ["HOST", "GPU", *(_names(who) for who, _cells in columns)]
        unread = [f"{name} was not judged: {reason}" for name, reason in sorted(self.unread.items())]
        return [*table([head, *body]), *unread, *self._findings()]

    def _findings(self) -> list[str]:
        """Hosts that are told the same share a line; in a remedy that names the host itself, it is then 'that host'."""
        met: dict[Finding, tuple[dict[str, str], set[int]]] = {}
        for host, answers in self.rows:
            for verdict, numbers in answers:
                for finding in verdict.findings:
                    places, concerned = met.setdefault(finding, ({}, set()))
                    places[f"{host} {verdict.board}"] = host
                    concerned.update(numbers)
        lines = []
        for finding in sorted(met, key=lambda each: EFFECTS.index(each.effect)):
            places, concerned = met[finding]
            hosts = set(places.values())
            each = told(finding, hosts.pop() if len(hosts) == 1 else "that host")
            services = [self.services[number] for number in sorted(concerned)]
            whom = "every service" if len(services) == len(self.services) > 1 else _names(services)
            lines.append(f"{each.effect}: {_names(places)}: {whom}: {each.message} ({each.rule}; {each.source})")
            if each.remedy:
                lines.append(f"  remedy: {each.remedy}")
        return lines


def _names(names: Iterable[str]) -> str:
    known = list(names)
    shown = ", ".join(known[:_NAMES])
    return shown if len(known) <= _NAMES else f"{shown} and {len(known) - _NAMES} more"


def image_of_service(facts: CompatFacts, manifest: Data, known: Data, variables: Mapping[str, Sequence[str]]) -> CompatImage:
    """What a service asks of a GPU. ``known``: data/runtimes.yml. ``variables``: of images, by their names in manifests or by digest.

    What the manifest declares (``needs``) rules over them.
    """
    image, name, needs = manifest["image"] or manifest["service"], manifest["runtime"], manifest.get("needs") or {}
    entry = runtimes.entry(known, name)
    found = image_of(
        facts,
        image,
        variables.get(image, variables.get(image.rpartition("@")[2])),
        cuda=needs.get("cuda"),
        capability=needs.get("capability"),
        forward=bool(needs.get("forward_compat")),
        mig=manifest["gpu"]["isolation"] == "slice",
        runtime=name,
        runtime_capability=entry["capability"] or None,
        runtime_driver=entry["driver"] or None,
    )
    return replace(found, name=manifest["service"])


@dataclass(frozen=True)
class Judge:
    """What the gate knows beside hosts. ``runtimes``: data/runtimes.yml. ``variables``: of images, by their names in manifests."""

    facts: CompatFacts
    runtimes: Data
    variables: Mapping[str, Sequence[str]]

    def images(self, manifests: Iterable[Data]) -> list[CompatImage]:
        """What each service asks of a GPU."""
        return [image_of_service(self.facts, manifest, self.runtimes, self.variables) for manifest in manifests]

    def bars(
        self, catalogue: Catalogue, hosts: Mapping[str, Data], manifests: Iterable[Data], below: Mapping[str, str] | None = None
    ) -> dict[str, Bars]:
        """Where each service must not be placed: service -> (host, board) -> why. ``hosts``: name -> facts.

        ``below``: of :func:`drivers_below`.

        It knows no date: an end of support bars nothing. Nor does an engine that does not answer, for it may be stopped just now:
        whoever carries a plan out will say so, and nobody moves away for that. Which boards can be cut the planner sees for itself.
        """
        known = below or {}
        found_hosts = [host_of(name, facts, catalogue, {"vgpu_host": known.get(name)}) for name, facts in sorted(hosts.items())]
        states = [replace(host, engine=None, gpus=tuple(replace(gpu, mig=None) for gpu in host.gpus)) for host in found_hosts]
        found: dict[str, dict[tuple[str, str], Bar]] = {}
        images = self.images(manifests)
        for host, answers in Gate(self.facts).answers([state for state in states if state.gpus], images):
            for verdict, numbers in answers:
                if verdict.answer == "no":
                    refusal = _bar([told(each, host) for each in verdict.findings if each.effect == "no"], host)
                    for number in numbers:
                        found.setdefault(images[number].name, {})[(host, verdict.board)] = refusal
        return dict(found)


def _bar(findings: Sequence[Finding], host: str) -> Bar:
    """All that keeps a service from a GPU as one bar: the first of it as the reason, and what it takes together; nothing, where nothing is
    known that would take away one of them."""
    worst = next((each for each in findings if not each.remedy), findings[0])
    reason = f"{worst.message}; rule {worst.rule}"
    if not worst.remedy:
        return Bar(reason, "")
    found = dict.fromkeys(_deed(each) for each in findings)
    deeds = tuple(each for each in found if not any(other != each and other.does(each) for other in found))
    return Bar(reason, "; and ".join(f"{host}: {each.words}" for each in deeds), deeds)


def _deed(finding: Finding) -> Deed:
    """A remedy as something that is done to a host, for all of its services, or to the image of one."""
    of_host = finding.rule not in _OF_IMAGE and not finding.remedy.endswith(_ELSEWHERE)
    return Deed(finding.remedy, of_host, driver_of(finding.remedy), not finding.remedy.endswith(NOT_HERE))


def drivers_below(hosts: Mapping[str, Data]) -> dict[str, str]:
    """Virtual machine -> driver of the host below it, where its ``fleet_parent`` names one whose facts are known. ``hosts``: as below."""
    found = {}
    for name, host in hosts.items():
        parent = (host.get("policy") or {}).get("fleet_parent")
        facts = (hosts.get(parent.get("host") or "") or {}).get("facts") if isinstance(parent, Mapping) else None
        if driver := ((facts or {}).get("driver") or {}).get("version"):
            found[name] = driver
    return found


def judge_services(
    facts: CompatFacts,
    catalogue: Catalogue,
    hosts: Mapping[str, Data],
    images: Sequence[CompatImage],
    today: str | None = None,
) -> Judged:
    """All images on all hosts. ``hosts``: name -> {facts, ...}, as the filter ``fleet_hosts`` gives them.

    :raises FleetError: ``today`` is not a date.
    """
    if today is not None and not _DATE.fullmatch(today):
        raise FleetError(f"'{today}' is not a date", field="today", hint="write it as 2026-11-21")
    read = {name: host for name, host in sorted(hosts.items()) if host.get("facts")}
    unread = {name: absence(host) or "it has no facts" for name, host in hosts.items() if name not in read}
    below = drivers_below(hosts)
    states = [host_of(name, host["facts"], catalogue, {"vgpu_host": below.get(name)}) for name, host in read.items()]
    unread.update({state.name: "it has no GPU that can be seen" for state in states if not state.gpus})
    rows = tuple(Gate(facts, today).answers([state for state in states if state.gpus], images))
    return Judged(rows, tuple(image.name for image in images), unread)
