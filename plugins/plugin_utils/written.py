# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of hosts' variables: they name the host and the variable, and where it was written, which any of a dozen files may hold."""

from __future__ import annotations

import contextlib
import importlib
import re
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import FleetErrors

# What ansible-core itself tells people with; it has no public name yet. One before 2.19 does not know: then nothing is added.
Origin: t.Any = None
with contextlib.suppress(ImportError):
    Origin = importlib.import_module("ansible._internal._datatag._tags").Origin

_OF_HOSTS = re.compile(r"hosts? ([^,]+?)(?:,.*| and .*)?")
_INDEX = re.compile(r"\[([0-9]+)\]")


def one_for_all(name: str, values: Mapping[str, object]) -> FleetError | None:
    """What is wrong where hosts, each with its value, say different things of what is one for the whole site; None where they do not."""
    first = min(values, default="")
    other = min((host for host in values if values[host] != values[first]), default=None)
    if other is None:
        return None
    wrong = f"it is not as on {first}, and it is one for the whole site"
    return FleetError(wrong, file=f"host {other}", field=name, hint="write it once, in group_vars/all or for gpu_hosts")


def with_origin(error: FleetError, hosts: t.Any) -> FleetError:
    """The error, of which each part that speaks of a variable of a host says in which file and line that was written.

    ``hosts``: what a door was given, host -> {policy}, as Ansible gave it: with its tags.
    """
    if isinstance(error, FleetErrors):
        return FleetErrors([with_origin(each, hosts) for each in error.errors])
    named = _OF_HOSTS.fullmatch(error.file or "")
    host = hosts.get(named[1]) if named and isinstance(hosts, Mapping) else None
    place = origin_of(host.get("policy"), error.field or "") if isinstance(host, Mapping) else None
    if place is None:
        return error
    message, hint = (error.message, f"{error.hint} ({place})") if error.hint else (f"{error.message} ({place})", None)
    return FleetError(message, file=error.file, line=error.line, field=error.field, hint=hint)


def origin_of(data: t.Any, field: str) -> str | None:
    """``FILE:LINE`` of a field (``fleet_gpu_layouts[0].slices``), or of the nearest thing around it. None where that is not known."""
    found: t.Any = None
    whole = data
    while Origin is not None and field:
        tagged: tuple[t.Any, ...]
        if isinstance(data, Mapping):
            keys = [key for key in data if field == str(key) or field.startswith((f"{key}.", f"{key}["))]
            if not keys:
                break
            key = max(keys, key=lambda one: len(str(one)))
            field, first, data = field[len(str(key)) :].removeprefix("."), data is whole, data[key]
            tagged = _of_variable(key, data) if first else (key, data)
        elif (index := _INDEX.match(field)) and isinstance(data, list) and int(index[1]) < len(data):
            field, data = field[index.end() :].removeprefix("."), data[int(index[1])]
            tagged = (data,)
        else:
            break
        found = next(filter(None, map(Origin.get_tag, tagged)), found)
    if found is None or not found.path:
        return None
    return f"{found.path}:{found.line_num}" if found.line_num else str(found.path)


def _of_variable(name: t.Any, value: t.Any) -> tuple[t.Any, ...]:
    """Whose tag says where a variable was written: of several files that have it, its name may be from one and its value from another."""
    own, other = Origin.get_tag(name), Origin.get_tag(value)
    same = own is not None and other is not None and own.path == other.path
    return (name,) if same else (value,)
