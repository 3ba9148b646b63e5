# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a host's plan and the manifests to what the hands are told: each replica with its manifest and devices. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import devices_of, managed, name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest

Data = t.Mapping[str, t.Any]


def devices(entry: Data) -> list[dict[str, t.Any]]:
    """The variables of a replica's ``.env``, as module ``slice_env`` takes them. The host reads the plan's lines in the same way."""
    return devices_of(entry)


def managed_services(plan: Data, manifests: t.Iterable[Manifest], file: str) -> list[dict[str, t.Any]]:
    """The replicas that the collection itself starts on this host: [{name, manifest, placement, devices}], in the plan's order.

    An adopted service is left alone. ``file`` is the plan's own path. Raises FleetError when a manifest is gone or reads differently
    from when the plan was made: what a review has not seen is not started.
    """
    known = {manifest.service: manifest for manifest in manifests}
    result: list[dict[str, t.Any]] = []
    for entry in plan["services"]:
        if not managed(entry):
            continue
        manifest = known.get(entry["service"])
        if manifest is None:
            wrong = f"the plan places service '{entry['service']}', and no manifest describes it"
            raise FleetError(wrong, file=file, hint="run playbook plan again")
        if manifest.digest() != entry["manifest"]:
            wrong = f"{manifest.file} has changed since plan {plan['serial']} was made"
            raise FleetError(wrong, file=file, field=entry["service"], hint="run playbook plan again")
        result.append({"name": name_of(entry), "manifest": manifest.data(), "placement": dict(entry), "devices": devices(entry)})
    return result


def mps_daemons(plan: Data) -> list[dict[str, t.Any]]:
    """The GPUs that services share through MPS, as option ``daemons`` of module ``mps``, in the plan's order."""
    return [{"gpu": line["gpu"]} for line in plan["layout"] if line.get("mode") == "shared" and line.get("sharing") == "mps"]
