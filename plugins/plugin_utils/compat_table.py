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
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat import Gate, named
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import EFFECTS, CompatImage, Finding, Verdict, host_of, image_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Bar, Bars
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


@dataclass(frozen=True)
class Judged:
    """``verdicts``: host by host, service by service, one for each kind of GPU; the image of each is its service.

    ``unread``: hosts that were not judged, and why.
    """

    verdicts: tuple[Verdict, ...]
    services: tuple[str, ...]
    unread: Mapping[str, str]

    def data(self) -> list[dict[str, t.Any]]:
        """As plain data, for JSON: ``host``, ``gpu``, ``service``, ``answer``, ``findings``."""
        entries = [each.data() for each in self.verdicts]
        return [{"host": each["host"], "gpu": each["gpu"], "service": each.pop("image"), **each} for each in entries]

    def table(self) -> list[str]:
        """A line for each kind of GPU of a host, a column for each service; below it every finding once, with whom it concerns.

        More services than a screen is wide share a column where their answers are the same on every line.
        """
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for each in self.verdicts:
            rows.setdefault((each.host, each.board), {})[each.image] = each.answer
        columns = {name: (name, [row[name] for row in rows.values()]) for name in self.services}
        if len(columns) > _COLUMNS:
            alike: dict[tuple[str, ...], list[str]] = {}
            for name, (_title, answers) in columns.items():
                alike.setdefault(tuple(answers), []).append(name)
            columns = {names[0]: (_names(names), list(answers)) for answers, names in alike.items()}
        cells = [[*place, *(answers[number] for _title, answers in columns.values())] for number, place in enumerate(rows)]
        lines = table([["HOST", "GPU", *(title for title, _answers in columns.values())], *cells])
        return [*lines, *(f"{name} was not judged: {reason}" for name, reason in sorted(self.unread.items())), *self._findings()]

    def _findings(self) -> list[str]:
        met: dict[Finding, tuple[dict[str, None], dict[str, None]]] = {}
        for verdict in self.verdicts:
            for finding in verdict.findings:
                places, services = met.setdefault(finding, ({}, {}))
                places[f"{verdict.host} {verdict.board}"] = None
                services[verdict.image] = None
        lines = []
        for finding in sorted(met, key=lambda each: EFFECTS.index(each.effect)):
            places, services = met[finding]
            whom = "every service" if len(services) == len(self.services) > 1 else _names(services)
            lines.append(f"{finding.effect}: {_names(places)}: {whom}: {finding.message} ({finding.rule}; {finding.source})")
            if finding.remedy:
                lines.append(f"  remedy: {finding.remedy}")
        return lines


def _names(names: Iterable[str]) -> str:
    known = list(names)
    shown = ", ".join(known[:_NAMES])
    return shown if len(known) <= _NAMES else f"{shown} and {len(known) - _NAMES} more"


def image_of_service(facts: CompatFacts, manifest: Data, known: Data, variables: Mapping[str, Sequence[str]]) -> CompatImage:
    """What a service asks of a GPU. ``known``: data/runtimes.yml. ``variables``: of images, by their names in manifests."""
    image, name = manifest["image"] or manifest["service"], manifest["runtime"]
    entry = runtimes.entry(known, name)
    found = image_of(
        facts,
        image,
        variables.get(image),
        mig=manifest["gpu"]["isolation"] == "slice",
        runtime=name,
        runtime_capability=entry["capability"] or None,
        runtime_driver=entry["driver"] or None,
    )
    return CompatImage(**{**vars(found), "name": manifest["service"]})


@dataclass(frozen=True)
class Judge:
    """What the gate knows beside hosts. ``runtimes``: data/runtimes.yml. ``variables``: of images, by their names in manifests."""

    facts: CompatFacts
    runtimes: Data
    variables: Mapping[str, Sequence[str]]

    def images(self, manifests: Iterable[Data]) -> list[CompatImage]:
        """What each service asks of a GPU."""
        return [image_of_service(self.facts, manifest, self.runtimes, self.variables) for manifest in manifests]

    def bars(self, catalogue: Catalogue, hosts: Mapping[str, Data], manifests: Iterable[Data]) -> dict[str, Bars]:
        """Where each service must not be placed: service -> (host, board) -> why. ``hosts``: name -> facts.

        It knows no date: an end of support bars nothing. Nor does an engine that does not answer, for it may be stopped just now:
        whoever carries a plan out will say so, and nobody moves away for that.
        """
        states = [replace(host_of(name, facts, catalogue), engine=None) for name, facts in sorted(hosts.items())]
        found: dict[str, dict[tuple[str, str], Bar]] = {}
        for host, image, group in Gate(self.facts).verdicts([state for state in states if state.gpus], self.images(manifests)):
            for verdict in group:
                if verdict.answer == "no":
                    worst = named(verdict, host).findings[0]
                    remedy = worst.remedy and f"{host}: {worst.remedy}"
                    found.setdefault(image.name, {})[(host, verdict.board)] = Bar(f"{worst.message}; rule {worst.rule}", remedy)
        return dict(found)


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
    states = [host_of(name, host["facts"], catalogue) for name, host in read.items()]
    unread.update({state.name: "it has no GPU that can be seen" for state in states if not state.gpus})
    found = Gate(facts, today).verdicts([state for state in states if state.gpus], images)
    verdicts = tuple(named(each, host) for host, _image, group in found for each in group)
    return Judged(verdicts, tuple(image.name for image in images), unread)
