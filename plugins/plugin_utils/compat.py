# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate: may this image run on this GPU of this host? ``ok``, ``limited`` (something is lost) or ``no``; docs/compat.md.

Pure: facts, cases and the date come in, verdicts go out, the same for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

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

_Rule = Callable[[Case], Iterator[Finding]]
# What does not look at the image: the same for all services of a host.
_OF_HOST: tuple[_Rule, ...] = (
    compat_rules.judge_driver,
    compat_rules.judge_branch,
    compat_rules.judge_modules,
    compat_rules.judge_mix,
    compat_around.judge_engine,
    compat_around.judge_container_toolkit,
    compat_around.judge_vgpu,
    compat_around.judge_system,
    compat_around.judge_gcc,
    compat_around.judge_age,
)
_OF_IMAGE: tuple[_Rule, ...] = (
    compat_rules.judge_gpu_cuda,
    compat_rules.judge_cuda_driver,
    compat_rules.judge_requires,
    compat_rules.judge_floors,
    compat_around.judge_mig,
)
# Stands for a host's name in findings that many hosts share; no host bears it.
_NAME = "\0"


def judge(facts: CompatFacts, host: CompatHost, gpu: CompatGpu, image: CompatImage, today: str | None = None) -> Verdict:
    """One verdict. ``today`` is a date such as ``2026-11-21``; without one, ends of support that have a date are not judged."""
    case = Case(facts, host, gpu, image, today)
    return _verdict(case, _findings(case, _OF_HOST))


def _findings(case: Case, rules: tuple[_Rule, ...]) -> list[Finding]:
    return [each for rule in rules for each in rule(case)]


def _verdict(case: Case, of_host: list[Finding]) -> Verdict:
    findings = [*of_host, *_findings(case, _OF_IMAGE)]
    findings.sort(key=lambda each: EFFECTS.index(each.effect))
    return Verdict(case.host.name, case.gpu.board, case.image.name, tuple(findings))


class Gate:
    """Verdicts for many hosts and images: what is alike is judged once."""

    def __init__(self, facts: CompatFacts, today: str | None = None) -> None:
        self.facts = facts
        self.today = today

    def verdicts(
        self, hosts: Iterable[CompatHost], images: Iterable[CompatImage]
    ) -> Iterator[tuple[str, CompatImage, tuple[Verdict, ...]]]:
        """(host, image, one verdict for each kind of GPU of the host), host by host.

        Hosts that differ only in name share their verdicts: :func:`named` makes those of one of them.
        """
        wanted = list(images)
        plain = [replace(image, name="") for image in wanted]
        rows: dict[CompatHost, list[tuple[Verdict, ...]]] = {}
        for host in hosts:
            kind = _kind(host)
            row = rows.get(kind)
            if row is None:
                row = rows[kind] = self._row(kind, wanted, plain)
            for image, verdicts in zip(wanted, row, strict=True):
                yield host.name, image, verdicts

    def _row(self, kind: CompatHost, images: list[CompatImage], plain: list[CompatImage]) -> list[tuple[Verdict, ...]]:
        """Verdicts of all images on one kind of host."""
        nothing = CompatImage("")
        of_host = [_findings(Case(self.facts, kind, gpu, nothing, self.today), _OF_HOST) for gpu in kind.gpus]
        alike: dict[CompatImage, tuple[Verdict, ...]] = {}
        for image in plain:
            if image not in alike:
                cases = [Case(self.facts, kind, gpu, image, self.today) for gpu in kind.gpus]
                alike[image] = tuple(_verdict(case, findings) for case, findings in zip(cases, of_host, strict=True))
        return [tuple(replace(verdict, image=image.name) for verdict in alike[bare]) for image, bare in zip(images, plain, strict=True)]


def _kind(host: CompatHost) -> CompatHost:
    """What a host is but for its name, and for how many GPUs of a kind it has in which order."""
    gpus = sorted(set(host.gpus), key=lambda gpu: (gpu.board, gpu.capability or "", gpu.virtualization or ""))
    return replace(host, name=_NAME, gpus=tuple(gpus))


def named(verdict: Verdict, host: str) -> Verdict:
    """A verdict of a :class:`Gate` for one of the hosts that it holds for."""
    findings = tuple(
        replace(each, remedy=each.remedy.replace(_NAME, host), message=each.message.replace(_NAME, host)) for each in verdict.findings
    )
    return replace(verdict, host=host, findings=findings)
