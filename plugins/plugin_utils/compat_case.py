# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is judged, and how: a host, a GPU, an image, and the findings about the three."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts, Confidence, Fact, minor, version
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_requires import cuda_doubt

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue

Effect = t.Literal["no", "limited", "warn"]
Answer = t.Literal["no", "limited", "ok"]
Data = Mapping[str, t.Any]

EFFECTS: tuple[Effect, ...] = ("no", "limited", "warn")

# Boards of a data centre by their catalogue ids: P100, T4, A10, A100, L4, L40S, H20, GH200, B200, GB300 and so on.
_DATA_CENTRE = re.compile(r"(?:tesla-)?(?:gb|gh|[abhklmptv])[0-9]")
# NVML's brand of other boards. Which of two a driver prints depends on its age: either fits.
_BRANDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("geforce", frozenset({"geforce", "geforcertx"})),
    ("rtx-a", frozenset({"nvidiartx", "quadrortx"})),
    ("rtx-pro", frozenset({"nvidia", "nvidiartx"})),
    ("rtx-", frozenset({"geforce", "geforcertx"})),
    ("quadro", frozenset({"quadro", "quadrortx"})),
    ("titan", frozenset({"titan", "titanrtx"})),
)
_DATA_CENTRE_BRANDS = frozenset({"tesla", "nvidia"})
_LEAST_CUDA = re.compile(r"(?<![a-z])cuda>=([0-9.]+)")
_TRUE = frozenset({"1", "t", "true"})


@dataclass(frozen=True)
class CompatGpu:
    """A GPU: the board's catalogue id (``v100-sxm2-32gb``) and compute capability (``7.0``); ``mig``: can it be cut. None: not known."""

    board: str
    capability: str | None
    virtualization: str | None = None
    mig: bool | None = None

    @property
    def data_centre(self) -> bool:
        """Is it one of those that forward compatibility is for? A workstation's may be one, which nobody has verified: then it is not."""
        return _DATA_CENTRE.match(self.board) is not None

    @property
    def brands(self) -> frozenset[str] | None:
        """What its driver may call its brand; None: not known, as inside a virtual machine with a vGPU."""
        if self.virtualization == "vgpu":
            return None
        if self.data_centre:
            return _DATA_CENTRE_BRANDS
        return next((brands for start, brands in _BRANDS if self.board.startswith(start)), None)


@dataclass(frozen=True)
class CompatHost:
    """A host. None: not known. ``present``: does a driver answer; ``engine``: does Docker; ``specs``: is a CDI specification there.

    ``runtime``: NVIDIA's is among Docker's; ``vgpu_host``: the driver of the host below, when this one is a vGPU's guest.
    ``gcc``: the one that is installed; ``kernel_gcc``: the one that built the kernel, where none of its major version is there.
    """

    name: str
    gpus: tuple[CompatGpu, ...] = ()
    present: bool | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    flavour: str | None = None
    os_id: str | None = None
    os_version: str | None = None
    kernel: str | None = None
    gcc: str | None = None
    kernel_gcc: str | None = None
    engine: bool | None = None
    docker: str | None = None
    cdi: bool | None = None
    runtime: bool | None = None
    specs: bool | None = None
    container_toolkit: str | None = None
    vgpu_host: str | None = None


@dataclass(frozen=True)
class CompatImage:
    """An image and what its service wants of a GPU. ``requires``: one text for each ``NVIDIA_REQUIRE_*``; ``unrequired``: switched off.

    ``cuda_source``: where its CUDA is from, if not from its own variables. ``capability``: the least, declared for this very image;
    those of its ``runtime`` are for all images of that kind. ``forward``: it is declared to carry ``cuda-compat``. ``mig``: on a slice.
    ``doubts``: what of it cannot be right. ``undeclared``: the same by its own variables, judged as well where what is declared asks less.
    """

    name: str
    cuda: str | None = None
    cuda_source: str | None = None
    cuda_confidence: Confidence = "A"
    requires: tuple[str, ...] = ()
    unrequired: bool = False
    capability: str | None = None
    forward: bool = False
    mig: bool = False
    runtime: str | None = None
    runtime_capability: str | None = None
    runtime_driver: str | None = None
    doubts: tuple[str, ...] = ()
    undeclared: CompatImage | None = None


@dataclass(frozen=True)
class Finding:
    """One rule that had something to say. ``remedy`` is empty where there is none."""

    effect: Effect
    rule: str
    message: str
    remedy: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Verdict:
    """The answer for one host, GPU and image, with its findings: the worst first."""

    host: str
    board: str
    image: str
    findings: tuple[Finding, ...]

    @property
    def answer(self) -> Answer:
        """``no``, ``limited`` or ``ok``: the worst effect; a warning counts for none."""
        effects = {finding.effect for finding in self.findings}
        return "no" if "no" in effects else "limited" if "limited" in effects else "ok"

    def lines(self) -> list[str]:
        """One line a finding, and one for its remedy."""
        lines = []
        for each in self.findings:
            lines.append(f"{self.host}: {self.board}: {each.effect}: {each.message} ({each.rule}; {each.source})")
            if each.remedy:
                lines.append(f"{self.host}: {self.board}: remedy: {each.remedy}")
        return lines

    def data(self) -> dict[str, t.Any]:
        """As plain data, for JSON."""
        findings = [
            {"effect": each.effect, "rule": each.rule, "message": each.message, "remedy": each.remedy}
            | {"source": each.source, "confidence": each.confidence}
            for each in self.findings
        ]
        return {"host": self.host, "gpu": self.board, "image": self.image, "answer": self.answer, "findings": findings}


@dataclass(frozen=True)
class Case:
    """What a rule looks at. ``today`` is a date such as ``2026-11-21``, or None."""

    facts: CompatFacts
    host: CompatHost
    gpu: CompatGpu
    image: CompatImage
    today: str | None = None

    @property
    def month(self) -> str | None:
        """The month of ``today``."""
        return None if self.today is None else self.today[:7]

    @property
    def branch(self) -> int | None:
        """The branch of the host's driver; None where there is none or it is not known."""
        numbers = version(self.host.driver)
        return numbers[0] if numbers else None

    @property
    def speaks(self) -> tuple[int, ...]:
        """The newest CUDA that the host's driver speaks: NVML's word, else by the branch; () where nobody knows."""
        known = self.host.driver_cuda or (self.facts.branch_cuda(self.branch) if self.branch else None)
        return minor(version(known)) if known else ()

    @property
    def spoken(self) -> Fact[None]:
        """Who says that it speaks that: the host itself, or the facts of its branch."""
        return Fact(None, "A", "facts of the host") if self.host.driver_cuda else self.facts.branch_cuda_source()


def host_of(name: str, facts: Data, catalogue: Catalogue, more: Data | None = None) -> CompatHost:
    """A host from its facts (docs/facts.md). ``more``: ``container_toolkit``, which rules over the facts (what a role is about to install,
    say), and ``vgpu_host``, for a guest that does not see the driver of the host below itself.
    """
    driver, system, engine = facts.get("driver") or {}, facts.get("host") or {}, facts.get("engine") or {}
    docker, gcc, known = engine.get("docker") or {}, system.get("gcc") or {}, more or {}
    here = docker.get("present")
    told = {} if here is False else docker  # what an engine that does not answer can do is not known
    gpus = tuple(
        CompatGpu(
            catalogue.board_id(gpu.get("device_id"), gpu.get("name")),
            gpu.get("compute_capability"),
            gpu.get("virtualization"),
            gpu["mig"] is not None if "mig" in gpu else None,
        )
        for gpu in facts.get("gpus") or []
    )
    return CompatHost(
        name,
        gpus,
        present=driver.get("present"),
        driver=driver.get("version"),
        driver_cuda=driver.get("cuda"),
        flavour=driver.get("flavour"),
        os_id=(system.get("os") or {}).get("id"),
        os_version=(system.get("os") or {}).get("version"),
        kernel=system.get("kernel"),
        gcc=gcc.get("installed"),
        kernel_gcc=gcc.get("kernel") if gcc.get("matching") is False else None,
        engine=here,
        docker=told.get("version"),
        cdi=told.get("cdi"),
        runtime=None if told.get("runtimes") is None else "nvidia" in told["runtimes"],
        specs=None if engine.get("cdi_specs") is None else bool(engine["cdi_specs"]),
        container_toolkit=known.get("container_toolkit") or engine.get("container_toolkit"),
        vgpu_host=driver.get("vgpu_host") or known.get("vgpu_host"),
    )


def image_of(facts: CompatFacts, name: str, variables: Iterable[str] | None = None, **declared: t.Any) -> CompatImage:
    """An image from its variables (``Config.Env``: ``NAME=VALUE``; None: nobody has read them) and what is declared of it.

    CUDA is ``CUDA_VERSION``, else the least ``cuda>=`` that the image requires, else that of its tag. A declared one rules over all three,
    but an older one turns no answer into a better one: what the image says itself is judged as well then.
    """
    values = {key: value for key, _separator, value in (text.partition("=") for text in variables or ())}
    requires = tuple(
        values[key] for key in sorted(values) if key.startswith("NVIDIA_REQUIRE_") and not key.startswith("NVIDIA_REQUIRE_JETPACK")
    )
    unrequired = values.get("NVIDIA_DISABLE_REQUIRE", "").lower() in _TRUE
    least = sorted((each for text in requires for each in _LEAST_CUDA.findall(text) if version(each)), key=version)
    written = values.get("CUDA_VERSION") or None
    doubt = cuda_doubt(written) if written else None
    exact = None if doubt else written
    found: dict[str, t.Any] = {"cuda": exact or next(iter(least), None)}
    by_tag = facts.image_cuda(name) if found["cuda"] is None else None
    if by_tag is not None:
        found = {"cuda": by_tag.value, "cuda_source": by_tag.source, "cuda_confidence": by_tag.confidence}
    found["doubts"] = (doubt,) if doubt else ()
    own = CompatImage(name, requires=() if unrequired else requires, unrequired=unrequired, **{**declared, **found})
    cuda = declared.get("cuda")
    if cuda is None or _same(cuda, own.cuda):
        return own
    found.update(cuda=cuda, cuda_source="declared", cuda_confidence="A")
    if own.cuda is not None and (exact is not None or version(cuda) < version(own.cuda)):
        says = f"its own variables say {own.cuda}" if own.cuda_source is None else f"its tag says {own.cuda}"
        # An image without a requirement is held to its CUDA_VERSION by NVIDIA's legacy hook, whatever is declared.
        both = version(cuda) < version(own.cuda) or not (requires or unrequired)
        found["doubts"] += (f"CUDA {cuda} is declared, and {says}: {'both are judged' if both else 'the declared one is judged'}",)
        found["undeclared"] = replace(own, name="") if both else None
    return replace(own, **found)


def _same(declared: str, own: str | None) -> bool:
    """Does what is declared only leave out what the image says more exactly: 12.4 of 12.4.1?"""
    return own is not None and f"{own}.".startswith(f"{declared}.")
