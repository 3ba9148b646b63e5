# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services that somebody stopped on this host, and that stay so over plays and boots until they are deployed again.

``<state_dir>/stopped.json``: ``{format: 1, services: {<service>: {by, reason, since}}}``; ``since`` as ``2026-11-21T12:00:00Z``. Role
``model_service``, the host agent at a boot and its watch read it.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json

FORMAT = 1
FILE = "stopped.json"
_KEYS = ("by", "reason", "since")

Stops = dict[str, dict[str, str]]


def read(state_dir: Path) -> Stops:
    """Who stopped which service, by its name. FleetError when the file is damaged."""
    path = state_dir / FILE
    data = read_json(path)
    if data is None:
        return {}
    services = data.get("services")
    fits = isinstance(services, dict) and all(isinstance(one, dict) and set(_KEYS) <= set(one) for one in services.values())
    if data.get("format") != FORMAT or not fits:
        hint = "look at it and remove it; then stop again what shall be stopped"
        raise FleetError("this file does not say what is stopped, in a way that this version can read", file=str(path), hint=hint)
    return {name: {key: str(one[key]) for key in _KEYS} for name, one in t.cast("dict[str, t.Any]", services).items()}


def service_of(replica: str) -> str:
    """The service of ``receipt-ocr-1``, and of ``receipt-ocr-surge``."""
    return replica.rpartition("-")[0]


def words(stop: Mapping[str, str]) -> str:
    """``stopped by alice (mask of 12) since 2026-11-21T12:00:00Z``"""
    reason = f" ({stop['reason']})" if stop["reason"] else ""
    return f"stopped by {stop['by']}{reason} since {stop['since']}"


def why_stopped(stops: Stops, replica: str) -> str | None:
    """Who stopped a replica's service, in words; None when nobody did."""
    stop = stops.get(service_of(replica))
    return None if stop is None else words(stop)


def change(state_dir: Path, service: str, stop: Mapping[str, str] | None, token: str | None, check: bool) -> tuple[Stops, Stops]:
    """Record that a service is stopped, or with ``None`` that it no longer is; (before, after). Who stopped it first stays the one.

    FleetError when another holds the host.
    """
    before = read(state_dir)
    if check:
        return before, _changed(before, service, stop)
    leases.check(state_dir, token)
    with leases.exclusive(state_dir, "stopped"):
        before = read(state_dir)
        after = _changed(before, service, stop)
        if after != before:
            write_json(state_dir / FILE, {"format": FORMAT, "services": after})
    return before, after


def _changed(before: Stops, service: str, stop: Mapping[str, str] | None) -> Stops:
    others = {name: one for name, one in before.items() if name != service}
    if stop is None:
        return others
    return {**others, service: before.get(service, dict(stop))}


def lines(stops: Stops) -> str:
    """A line for each service, for a diff."""
    return "".join(f"{name}: {words(one)}\n" for name, one in sorted(stops.items()))
