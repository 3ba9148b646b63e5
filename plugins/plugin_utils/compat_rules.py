# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about driver, CUDA and GPU: each looks at one case and says what it has found. docs/compat.md lists them."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterator

from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import Case, CompatGpu, Effect, Finding
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import (
    Architecture,
    Confidence,
    CudaNeed,
    Fact,
    Version,
    minor,
    trimmed,
    version,
    weakest,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_requires import Properties, Unreadable, holds

_LOST = "what needs a newer driver fails with cudaErrorCallRequiresNewerDriver"
_NO_CUDA: Version = (0, 1)
# How a remedy ends that opens nothing on the host itself.
NOT_HERE: t.Final = "place the service on another host"
_UPGRADE = re.compile(r"upgrade to R([0-9]+)(?:: ([0-9.]+) or newer)?")
# What the host itself said, and what a manifest declares, is no fact from outside.
HOST = Fact(None, "A", "facts of the host")
DECLARED = Fact(None, "A", "declared for this image")
IMAGE = Fact(None, "A", "variables of the image")


def finding(effect: Effect, rule: str, message: str, remedy: str, *facts: Fact[t.Any]) -> Finding:
    """A finding that stands on these facts, the first of which is named. What stands on one that nobody verified only warns."""
    confidence: Confidence = weakest(*(fact.confidence for fact in facts))
    return Finding("warn" if confidence == "U" else effect, rule, message, remedy, facts[0].source, confidence)


def known_gpu(case: Case, gpu: CompatGpu | None = None) -> Fact[Architecture] | None:
    """The generation of the case's GPU, or of another of its host."""
    found = gpu or case.gpu
    return case.facts.architecture(found.capability, found.board)


def judge_driver(case: Case) -> Iterator[Finding]:
    """Is there a driver, and do the facts reach as far as it?"""
    if case.host.present is False:
        yield finding("no", "driver", "no driver answers", "install the driver, or say why it does not load", HOST)
    elif case.branch is not None and case.branch > case.facts.newest_branch:
        message = f"R{case.branch} is newer than what is known here: R{case.facts.newest_branch} is the newest"
        yield finding("warn", "driver", message, "", HOST)


# ---- toolkit and driver


def judge_cuda_driver(case: Case) -> Iterator[Finding]:
    """CUDA of the image against the host's driver: floor, minor version compatibility, forward compatibility."""
    cuda, driver = case.image.cuda, version(case.host.driver)
    if cuda is None:
        message = "CUDA of the image is not known, so it was not judged"
        yield finding("warn", "cuda-driver", message, "read the image's variables, or declare its CUDA", DECLARED)
        return
    if not driver:
        return
    known = case.facts.toolkit(cuda)
    if known is None:
        yield finding("warn", "cuda-driver", f"CUDA {cuda} is not known here, so its driver was not judged", "", DECLARED)
        return
    facts = (Fact(None, known.confidence, known.source), Fact(None, case.image.cuda_confidence, ""))
    if driver < version(known.value.floor):
        yield _below(case, known.value.floor, facts)
    elif not _own(case, known.value, driver):
        own = f"its own driver, {known.value.driver}" if known.value.driver else "its own driver"
        message = f"CUDA {cuda} on driver {case.host.driver}, older than {own}: minor version compatibility; {_LOST}"
        by_speech = () if known.value.driver else (case.spoken,)
        yield finding("limited", "cuda-driver", message, upgrade(case, known.value.driver or known.value.floor), *facts, *by_speech)


def _own(case: Case, need: CudaNeed, driver: Version) -> bool:
    """Is the driver at least the toolkit's own?"""
    if need.driver is not None:
        return driver >= version(need.driver)
    return case.speaks >= minor(version(case.image.cuda))


def _below(case: Case, floor: str, facts: tuple[Fact[t.Any], ...]) -> Finding:
    """A driver below the floor: only forward compatibility helps, on a data-centre GPU and on a branch that is listed for it."""
    cuda, listed = case.image.cuda or "", _listed(case)
    if listed is not None and case.gpu.data_centre:
        message = f"CUDA {cuda} on driver {case.host.driver}: forward compatibility, with the cuda-compat of the image; {_LOST}"
        return finding("limited", "forward-compat", message, upgrade(case, floor), listed, *facts)
    known = known_gpu(case)
    never = known is not None and known.value.last_cuda is not None and minor(version(cuda)) > minor(version(known.value.last_cuda))
    message = f"CUDA {cuda} needs driver {floor} or newer, here is {case.host.driver}"
    if listed is not None:
        message += f"; forward compatibility is for data-centre GPUs, which {case.gpu.board} is not"
    # No driver helps a GPU that this CUDA does not know any more.
    return finding("no", "cuda-driver", message, "" if never else upgrade(case, floor), *facts)


def _listed(case: Case) -> Fact[None] | None:
    """Who says that the image runs on this branch by forward compatibility: itself, or NVIDIA's table for one that is declared to."""
    try:
        # Whatever speaks of CUDA shall not hold: the branch itself has to be named.
        have = properties(case).with_cuda(_NO_CUDA)
        if case.image.requires and all(holds(text, have) for text in case.image.requires):
            return case.facts.forward_source()
    except Unreadable:
        return None
    table = case.facts.forward(case.image.cuda or "") if case.image.forward else None
    return Fact(None, table.confidence, table.source) if table is not None and case.branch in table.value else None


def upgrade(case: Case, floor: str) -> str:
    """Which driver would do: one with fixes that every GPU of the host still has."""
    least = version(floor)[0]
    holder = _last(case)
    last = holder[1] if holder else None
    if holder and last is not None and last < least:
        return f"R{last} is the last branch for the {holder[0]} in {case.host.name}: {NOT_HERE}"
    fits = [branch for branch in case.facts.upgrades(case.month) if branch >= least and (last is None or branch <= last)]
    branch = fits[0] if fits else least
    release = floor if branch == least else case.facts.first_release(branch)
    text = f"upgrade to R{branch}: {release} or newer" if release else f"upgrade to R{branch}"
    return f"{text}; it is the last branch for the {holder[0]} in {case.host.name}" if holder and last == branch else text


def driver_of(remedy: str) -> Version:
    """The least driver that would do, of a remedy that is an :func:`upgrade`; () of another one."""
    found = _UPGRADE.match(remedy)
    return version(found[2] or found[1]) if found else ()


def _last(case: Case) -> tuple[str, int] | None:
    """The GPU of the host whose last branch is the oldest: (board, branch)."""
    ends = []
    for gpu in case.host.gpus or (case.gpu,):
        known = known_gpu(case, gpu)
        if known is not None and known.value.last_branch is not None:
            ends.append((known.value.last_branch, gpu.board))
    return min(ends)[::-1] if ends else None


# ---- what the image itself requires


def properties(case: Case) -> Properties:
    """The host and the GPU as a requirement sees them."""
    return Properties(trimmed(case.speaks), version(case.host.driver), version(case.gpu.capability), case.gpu.brands)


def enforced(case: Case) -> bool:
    """Will NVIDIA's legacy hook hold the image to its requirement? CDI never does."""
    toolkit = version(case.host.container_toolkit)
    newer = version(case.facts.container_toolkit().value[1])
    return bool(case.host.runtime) and not case.host.cdi and bool(toolkit) and toolkit < newer


def judge_requires(case: Case) -> Iterator[Finding]:
    """``NVIDIA_REQUIRE_*`` of the image; a legacy image has one that it does not write down."""
    hook, source = enforced(case), case.facts.requires_source()
    texts = case.image.requires
    if not texts and hook and not case.image.unrequired and case.image.cuda and case.image.cuda_source is None:
        texts = ("cuda>=" + ".".join(map(str, minor(version(case.image.cuda)))),)
    if case.branch is None:
        return
    have = properties(case)
    mended = have.with_cuda(max(have.cuda, _family(case)))
    for text in texts:
        try:
            if holds(text, have):
                continue
            helped = holds(text, mended)
        except Unreadable as error:
            yield finding("warn", "image-requires", f"the image's requirement cannot be read at '{error}'", "", source)
            continue
        shown = text if len(text) <= 60 else f"{text[:60]}..."
        # What the image asks it says itself; that the host lacks it stands on what its driver speaks.
        sure = (source, case.spoken) if "cuda" in text else (source,)
        mending = () if hook else (case.facts.families_source(),)
        if helped and not hook:
            message = f"the image requires '{shown}': minor version compatibility mends it, and nothing enforces it; {_LOST}"
            yield finding("limited", "image-requires", message, _least(case), *sure, *mending)
        else:
            why = ", and NVIDIA's runtime will refuse it" if hook else ""
            message = f"the image requires '{shown}', which does not hold here{why}"
            yield finding("no", "image-requires", message, _least(case), *sure, *mending)


def _family(case: Case) -> Version:
    """The newest CUDA that minor version compatibility reaches with the host's driver: (12, 999) from 525.60.13 on."""
    driver = version(case.host.driver)
    reached = [major for major, floor in case.facts.families() if driver >= floor]
    return (max(reached), 999) if reached else ()


def _least(case: Case) -> str:
    known = case.facts.toolkit(case.image.cuda) if case.image.cuda else None
    return upgrade(case, known.value.driver or known.value.floor) if known else "take another image, or another host"


# ---- the GPU


def judge_branch(case: Case) -> Iterator[Finding]:
    """Does this branch of the driver still drive the GPU, or drive it already?"""
    known = known_gpu(case)
    if known is None:
        what = f"compute capability {case.gpu.capability}" if case.gpu.capability else "its compute capability"
        yield finding("warn", "gpu-branch", f"{what} is not known here, so the GPU was not judged", "", HOST)
        return
    if case.branch is None:
        return
    name, last, first = known.value.name, known.value.last_branch, known.value.first_branch
    if last is not None and case.branch > last:
        message = f"R{case.branch} does not drive {name} any more: R{last} is its last branch"
        yield finding("no", "gpu-branch", message, f"go back to R{last} on {case.host.name}", known)
    elif first is not None and case.branch < first:
        calculated: Fact[None] = Fact(None, "C", known.source)
        message = f"R{case.branch} does not drive {name} yet: R{first} is its first branch"
        yield finding("no", "gpu-branch", message, upgrade(case, case.facts.first_release(first) or str(first)), known, calculated)


def judge_modules(case: Case) -> Iterator[Finding]:
    """Open kernel modules drive nothing before Turing, proprietary ones nothing from Blackwell on."""
    known = known_gpu(case)
    if known is None or case.host.flavour not in ("open", "proprietary") or known.value.modules in ("any", case.host.flavour):
        return
    source: Fact[None] = Fact(None, known.confidence, case.facts.modules_source())
    message = f"the {case.host.flavour} kernel modules do not drive {known.value.name}: it needs the {known.value.modules} ones"
    against = [gpu.board for gpu, other in _others(case) if other.modules not in ("any", known.value.modules)]
    remedy = f"install the {known.value.modules} kernel modules on {case.host.name}"
    if against:
        remedy = f"move it to another host: the {against[0]} in {case.host.name} needs the other modules"
    yield finding("no", "modules", message, remedy, source)


def judge_mix(case: Case) -> Iterator[Finding]:
    """Two GPUs in one host that no one driver drives: a V100 and a B200."""
    known = known_gpu(case)
    if known is None:
        return
    mine = known.value
    for gpu, other in _others(case):
        modules = {mine.modules, other.modules} == {"open", "proprietary"}
        if modules or _apart(mine, other) or _apart(other, mine):
            why = "one needs the open kernel modules, the other the proprietary ones" if modules else "no branch drives both"
            effect: Effect = "no" if modules and case.host.flavour is None else "warn"
            message = f"{case.gpu.board} and {gpu.board} cannot share a host: {why}"
            source: Fact[None] = Fact(None, known.confidence, case.facts.modules_source())
            yield finding(effect, "host-mix", message, f"move one of the two out of {case.host.name}", source)
            return


def _others(case: Case) -> list[tuple[CompatGpu, Architecture]]:
    """The host's GPUs with a known generation, by board."""
    found = {gpu.board: (gpu, known.value) for gpu in case.host.gpus if (known := known_gpu(case, gpu)) is not None}
    return [found[board] for board in sorted(found)]


def _apart(old: Architecture, new: Architecture) -> bool:
    return old.last_branch is not None and new.first_branch is not None and old.last_branch < new.first_branch


def judge_gpu_cuda(case: Case) -> Iterator[Finding]:
    """CUDA of the image against the GPU: older than its first, newer than its last, or with a part of it only."""
    known = known_gpu(case)
    if known is None or case.image.cuda is None:
        return
    mine, cuda = known.value, minor(version(case.image.cuda))
    tag: Fact[None] = Fact(None, case.image.cuda_confidence, "")
    if cuda < minor(version(mine.first_cuda)):
        message = f"CUDA {case.image.cuda} does not know {mine.name} ({case.gpu.capability}): {mine.first_cuda} is the first that does"
        yield finding("no", "gpu-cuda", message, f"take an image with CUDA {mine.first_cuda} or newer, or another GPU", known, tag)
    elif mine.last_cuda is not None and cuda > minor(version(mine.last_cuda)):
        message = (
            f"CUDA {case.image.cuda} does not know {mine.name} ({case.gpu.capability}) any more: {mine.last_cuda} is the last that does"
        )
        yield finding("no", "gpu-cuda", message, f"take an image with CUDA {mine.last_cuda} or older, or another GPU", known, tag)
    elif mine.full_cuda is not None and cuda < minor(version(mine.full_cuda)):
        message = f"CUDA {case.image.cuda} supports {mine.name} in part: all of it from {mine.full_cuda} on"
        yield finding("limited", "gpu-cuda", message, f"take an image with CUDA {mine.full_cuda} or newer", known, tag)


def judge_floors(case: Case) -> Iterator[Finding]:
    """Floors: one declared for this very image blocks, one of a whole runtime warns."""
    have, image = version(case.gpu.capability), case.image
    if have and version(image.capability) > have:
        message = f"the image needs compute capability {image.capability}, {case.gpu.board} has {case.gpu.capability}"
        remedy = f"take an image built for {case.gpu.capability} or older, or a GPU of {image.capability} or newer"
        yield finding("no", "image-floor", message, remedy, DECLARED)
    runtime: Fact[None] = Fact(None, "B", "data/runtimes.yml")
    if have and version(image.runtime_capability) > have:
        built = f"runtime {image.runtime} is built for compute capability {image.runtime_capability} and newer"
        message = f"{built}, {case.gpu.board} has {case.gpu.capability}"
        yield finding("warn", "runtime-floor", message, "see what this very image is built for", runtime)
    driver = version(case.host.driver)
    if driver and version(image.runtime_driver) > driver:
        message = f"runtime {image.runtime} is built for driver {image.runtime_driver} and newer, here is {case.host.driver}"
        yield finding("warn", "runtime-floor", message, "see what this very image is built for", runtime)


def judge_variables(case: Case) -> Iterator[Finding]:
    """What an image says of itself and cannot be right, or is not what its manifest declares."""
    for doubt in case.image.doubts:
        yield finding("warn", "image-variables", doubt, "see what the image was built with", IMAGE)
