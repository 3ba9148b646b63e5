# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate: may this image run on this GPU of this host? ``ok``, ``limited`` (something is lost) or ``no``; docs/compat.md.

Pure: facts, cases and the date come in, verdicts go out, the same for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils import compat_around, compat_rules
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import (
    EFFECTS,
    Case,
    CompatGpu,
    CompatHost,
    CompatImage,
    Finding,
    Verdict,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts

_RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    compat_rules.judge_driver,
    compat_rules.judge_branch,
    compat_rules.judge_modules,
    compat_rules.judge_mix,
    compat_rules.judge_gpu_cuda,
    compat_rules.judge_cuda_driver,
    compat_rules.judge_requires,
    compat_rules.judge_floors,
    compat_around.judge_engine,
    compat_around.judge_container_toolkit,
    compat_around.judge_mig,
    compat_around.judge_vgpu,
    compat_around.judge_system,
    compat_around.judge_gcc,
    compat_around.judge_age,
)
# Stands for a host's name in findings that many hosts share; no host bears it.
_NAME = "\0"


def judge(facts: CompatFacts, host: CompatHost, gpu: CompatGpu, image: CompatImage, today: str | None = None) -> Verdict:
    """One verdict. ``today`` is a date such as ``2026-11-21``; without one, ends of support that have a date are not judged."""
    case = Case(facts, host, gpu, image, today)
    findings = [each for rule in _RULES for each in rule(case)]
    findings.sort(key=lambda each: EFFECTS.index(each.effect))
    return Verdict(host.name, gpu.board, image.name, tuple(findings))


@dataclass(frozen=True)
class _Kind:
    """Hosts that differ in nothing but their names."""

    host: CompatHost
    gpus: tuple[CompatGpu, ...]


class Gate:
    """Verdicts for many hosts and images: what is alike is judged once."""

    def __init__(self, facts: CompatFacts, today: str | None = None) -> None:
        self.facts = facts
        self.today = today
        self._kinds: dict[CompatHost, _Kind] = {}

    def kind(self, host: CompatHost) -> _Kind:
        """What the host is but for its name and for how many GPUs of a kind it has, in whatever order."""
        gpus = tuple(sorted(set(host.gpus), key=lambda gpu: (gpu.board, gpu.capability or "", gpu.virtualization or "")))
        plain = replace(host, name=_NAME, gpus=gpus)
        return self._kinds.setdefault(plain, _Kind(plain, gpus))

    def verdicts(
        self, hosts: Iterable[CompatHost], images: Iterable[CompatImage]
    ) -> Iterator[tuple[str, CompatImage, tuple[Verdict, ...]]]:
        """(host, image, one verdict for each kind of GPU of the host), host by host. A verdict's own host is filled in by :func:`named`."""
        wanted = list(images)
        rows: dict[int, list[tuple[CompatImage, tuple[Verdict, ...]]]] = {}
        for host in hosts:
            kind = self.kind(host)
            row = rows.get(id(kind))
            if row is None:
                row = [(image, tuple(judge(self.facts, kind.host, gpu, image, self.today) for gpu in kind.gpus)) for image in wanted]
                rows[id(kind)] = row
            for image, verdicts in row:
                yield host.name, image, verdicts


def named(verdict: Verdict, host: str) -> Verdict:
    """A verdict of a :class:`Gate` for one of the hosts that it holds for."""
    findings = tuple(
        replace(each, remedy=each.remedy.replace(_NAME, host), message=each.message.replace(_NAME, host)) for each in verdict.findings
    )
    return replace(verdict, host=host, findings=findings)
