# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that a plan is made from as one short word, the same in every process: is the next plan asked for the same?"""

from __future__ import annotations

import hashlib
import typing as t
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass, replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Problem, Solution, carried_out, port_set

# Hexadecimal digits: by chance two plans are the same once in 10**19.
DIGITS = 16


def asked_of(problem: Problem, solution: Solution, leases: Mapping[str, str], *others: t.Any) -> str:
    """The word for a problem, and ``others``, once its plan is carried out. ``leases``: replica -> when its lease ends."""
    then = carried_out(problem, solution)
    # Those of replicas that leave end with them.
    lasting = {name: leases[name] for name in leases.keys() & {place.name for place in then.previous}}
    # Whoever is to leave listens until the plan is carried out, and the plan no longer says who that is.
    then = replace(then, hosts=tuple(replace(host, listening=host.listening - port_set(host.ports)) for host in then.hosts))
    # Plans are read in another order than they are made in.
    return word_of(replace(then, previous=()), set(then.previous), lasting, others)


def word_of(*things: t.Any) -> str:
    """The word for dataclasses, mappings, sets, sequences and plain values; in whatever order sets and mappings have theirs."""
    return hashlib.sha256(_text(things, {}).encode()).hexdigest()[:DIGITS]


def _text(value: t.Any, known: dict[int, str]) -> str:
    """``known``: by identity what has been written before, for thousands of GPUs have one geometry."""
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if id(value) not in known:
        known[id(value)] = _written(value, known)
    return known[id(value)]


def _written(value: t.Any, known: dict[int, str]) -> str:
    if is_dataclass(value):
        parts = [f"{each.name}={_text(getattr(value, each.name), known)}" for each in fields(value)]
    elif isinstance(value, Mapping):
        parts = sorted(f"{_text(key, known)}:{_text(entry, known)}" for key, entry in value.items())
    elif isinstance(value, Set):
        parts = sorted(_text(entry, known) for entry in value)
    elif isinstance(value, list | tuple):
        parts = [_text(entry, known) for entry in value]
    else:
        raise TypeError(f"nothing is known of {type(value).__name__}")
    return f"{type(value).__name__}({','.join(parts)})"
