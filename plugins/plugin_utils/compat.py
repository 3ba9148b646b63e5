# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate: may this image run on this GPU of this host? ``ok``, ``limited`` (something is lost) or ``no``; docs/compat.md.

Pure: facts, cases and the date come in, verdicts go out, the same for the same.
"""

from __future__ import annotations

import typing as t
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
    compat_rules.judge_variables,
    compat_around.judge_mig,
)
# Stands for a host's name in findings that many hosts share; no host bears it.
_NAME = "\0"


def judge(facts: CompatFacts, host: CompatHost, gpu: CompatGpu, image: CompatImage, today: str | None = None) -> Verdict:
    """One verdict. ``today`` is a date such as ``2026-11-21``; without one, ends of support that have a date are not judged."""
    case = Case(facts, host, gpu, image, today)
    return Verdict(host.name, gpu.board, image.name, _sorted([*_findings(case, _OF_HOST), *_about_image(case)]))


def _findings(case: Case, rules: tuple[_Rule, ...]) -> list[Finding]:
    return [each for rule in rules for each in rule(case)]


def _about_image(case: Case) -> list[Finding]:
    """Also of what the image says itself, where its manifest declares something else and both are judged."""
    findings = _findings(case, _OF_IMAGE)
    if case.image.undeclared is not None:
        own = replace(case, image=case.image.undeclared)
        findings += [each for each in _findings(own, _OF_IMAGE) if each not in findings]
    return findings


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda each: EFFECTS.index(each.effect)))


class Answers(t.NamedTuple):
    """One verdict on a kind of GPU, and the images that get it, by their numbers in the order in which they were given."""

    verdict: Verdict
    images: tuple[int, ...]


class Gate:
    """Answers for many hosts and images: what is alike is judged once."""

    def __init__(self, facts: CompatFacts, today: str | None = None) -> None:
        self.facts = facts
        self.today = today
        # By what the rules about images see of a host: hosts whose kernels differ share these findings.
        self._of_images: dict[CompatHost, list[list[tuple[Finding, ...]]]] = {}

    def answers(self, hosts: Iterable[CompatHost], images: Iterable[CompatImage]) -> Iterator[tuple[str, tuple[Answers, ...]]]:
        """(host, its answers), host by host: for each kind of GPU of the host every image once.

        The verdicts bear no name of an image, and hosts that differ only in name share theirs: :func:`named` makes those of one of them.
        """
        alike: dict[CompatImage, list[int]] = {}
        for number, image in enumerate(images):
            alike.setdefault(replace(image, name=""), []).append(number)
        numbers = [tuple(each) for each in alike.values()]
        rows: dict[CompatHost, tuple[Answers, ...]] = {}
        for host in hosts:
            kind = _kind(host)
            row = rows.get(kind)
            if row is None:
                row = rows[kind] = tuple(self._row(kind, list(alike), numbers))
            yield host.name, row

    def _row(self, kind: CompatHost, images: list[CompatImage], numbers: list[tuple[int, ...]]) -> Iterator[Answers]:
        """All images on one kind of host; those whose findings are the same share a verdict."""
        nothing, bare = CompatImage(""), _without_system(kind)
        of_images = self._of_images.get(bare)
        if of_images is None:
            cases = [[Case(self.facts, bare, gpu, image, self.today) for image in images] for gpu in kind.gpus]
            of_images = self._of_images[bare] = [[tuple(_about_image(case)) for case in row] for row in cases]
        for gpu, found in zip(kind.gpus, of_images, strict=True):
            of_host = _findings(Case(self.facts, kind, gpu, nothing, self.today), _OF_HOST)
            together: dict[tuple[Finding, ...], list[int]] = {}
            for findings, alike in zip(found, numbers, strict=True):
                together.setdefault(findings, []).extend(alike)
            for findings, which in together.items():
                yield Answers(Verdict(kind.name, gpu.board, "", _sorted([*of_host, *findings])), tuple(which))


def _kind(host: CompatHost) -> CompatHost:
    """What a host is but for its name, and for how many GPUs of a kind it has in which order."""
    gpus = sorted(set(host.gpus), key=lambda gpu: (gpu.board, gpu.capability or "", gpu.virtualization or "", str(gpu.mig)))
    return replace(host, name=_NAME, gpus=tuple(gpus))


def _without_system(host: CompatHost) -> CompatHost:
    """What the rules about images see of a host: hosts whose kernels differ share their findings."""
    return replace(host, os_id=None, os_version=None, kernel=None, gcc=None, specs=None)


def named(verdict: Verdict, host: str, image: str = "") -> Verdict:
    """A verdict of a :class:`Gate` for one of the hosts, and one of the images, that it holds for."""
    return Verdict(host, verdict.board, image, tuple(told(each, host) for each in verdict.findings))


def told(finding: Finding, host: str) -> Finding:
    """A finding of a :class:`Gate` in the words of one host."""
    if _NAME not in finding.message and _NAME not in finding.remedy:
        return finding
    return replace(finding, remedy=finding.remedy.replace(_NAME, host), message=finding.message.replace(_NAME, host))
