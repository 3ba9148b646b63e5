# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image requires, as NVIDIA's container toolkit reads it: ``NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535,driver<536``.

A space is "or", a comma "and". Properties: ``cuda``, ``driver``, ``arch`` (versions) and ``brand`` (a word); any other is passed over.
Source: github.com/NVIDIA/nvidia-container-toolkit, internal/requirements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import Version, version

_CONSTRAINT = re.compile(r"([a-z]+)(<=|>=|!=|=|<|>)([A-Za-z0-9._-]+)")
_CUDA = re.compile(r"[1-9][0-9]?(?:\.[0-9]{1,4}){0,3}(?:[-+~_][A-Za-z0-9.+~_-]*)?")
_COMPARE: dict[str, Callable[[Version, Version], bool]] = {
    "=": lambda have, want: have == want,
    "!=": lambda have, want: have != want,
    "<": lambda have, want: have < want,
    "<=": lambda have, want: have <= want,
    ">": lambda have, want: have > want,
    ">=": lambda have, want: have >= want,
}


@dataclass(frozen=True)
class Properties:
    """What a requirement is held against. Empty or None: not known, and what is not known holds."""

    cuda: Version = ()
    driver: Version = ()
    arch: Version = ()
    brands: frozenset[str] | None = None

    def with_cuda(self, cuda: Version) -> Properties:
        """The same with another CUDA."""
        return replace(self, cuda=cuda)


class Unreadable(ValueError):
    """A requirement that is not of this grammar; its text is the part that is not."""


def holds(requirement: str, properties: Properties) -> bool:
    """Does one ``NVIDIA_REQUIRE_*`` hold? An empty one does. :raises Unreadable: not of the grammar."""
    alternatives = _alternatives(requirement)
    return not alternatives or any(all(_met(*each, properties) for each in constraints) for constraints in alternatives)


def cuda_doubt(text: str) -> str | None:
    """What is wrong with a ``CUDA_VERSION``: it begins with no release of CUDA, such as 12.4.1 or 12.6.0.022. None: nothing."""
    return None if _CUDA.fullmatch(text) else f"its CUDA_VERSION '{text[:60]}' is not a release of CUDA"


def doubts(variables: Iterable[str]) -> list[str]:
    """What nobody can read in the variables of an image (``NAME=VALUE``): one text each."""
    found = []
    for name, _sign, value in (text.partition("=") for text in variables):
        if name == "CUDA_VERSION":
            found.append(cuda_doubt(value))
        elif name.startswith("NVIDIA_REQUIRE_"):
            try:
                holds(value, Properties())
            except Unreadable as error:
                found.append(f"its {name} cannot be read at '{str(error)[:60]}'")
    return [doubt for doubt in found if doubt]


@lru_cache(maxsize=1024)
def _alternatives(requirement: str) -> tuple[tuple[tuple[str, str, str], ...], ...]:
    return tuple(tuple(_constraint(part) for part in text.split(",") if part) for text in requirement.split())


def _constraint(text: str) -> tuple[str, str, str]:
    found = _CONSTRAINT.fullmatch(text)
    if (
        found is None
        or (found[1] in ("cuda", "driver", "arch") and not version(found[3]))
        or (found[1] == "brand" and found[2] not in ("=", "!="))
    ):
        raise Unreadable(text)
    return found[1], found[2], found[3]


def _met(name: str, sign: str, value: str, properties: Properties) -> bool:
    if name == "brand":
        return properties.brands is None or (value in properties.brands) == (sign == "=")
    have: Version = {"cuda": properties.cuda, "driver": properties.driver, "arch": properties.arch}.get(name, ())
    return not have or _COMPARE[sign](have, version(value))
