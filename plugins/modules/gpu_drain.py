#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drain a GPU or a host, and release it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_drain
short_description: Drain a GPU or a whole host, and release it
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Records on the host that a GPU, or the whole host, is drained, which means that it gets nothing new and what is on it goes elsewhere;
    who says so, why and until when. M(gpuops.fleet.gpu_info) reads it, and the next plan obeys. This module touches nothing that runs.
  - There is one drain at most for each GPU, and one for the whole host. Both can be there at once.
  - Whoever drained something may change that and release it. Another person's drain is refused unless O(over) names that person, because
    somebody may have a hand in the machine. A drain whose time is over is anybody's.
  - Releasing what is not drained is no change.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
options:
  state:
    description:
      - V(present) drains, V(absent) releases.
    type: str
    choices:
      - present
      - absent
    default: present
  gpu:
    description:
      - UUID, PCI address or index of the GPU. A lost GPU has no index; name it by UUID or PCI address.
      - A GPU that is not there any more can be released by the UUID that its drain has.
      - If left out, the whole host is meant.
    type: str
  by:
    description:
      - Who says so.
    type: str
    required: true
  reason:
    description:
      - Why, in a few words for the others. Needed with O(state=present).
    type: str
  until:
    description:
      - When the drain ends by itself. A date means the end of that day in UTC, a date-time without an offset is UTC. It must be
        in the future.
      - If left out, the drain has no end but its release.
    type: str
  force:
    description:
      - Whether a replica that finds no place elsewhere is taken out of the plan. If not, it stays and serves until there is one.
    type: bool
    default: false
  over:
    description:
      - Whose drain may be changed or released, where it is another's than O(by).
    type: str
  proc_root:
    description:
      - Where the kernel's C(proc) file system is mounted; it knows the UUIDs of GPUs that NVML has lost.
    type: path
    default: /proc
requirements:
  - nvidia-ml-py (Python package) on the host, to find a GPU by its index
seealso:
  - module: gpuops.fleet.gpu_info
  - module: gpuops.fleet.plan
"""

EXAMPLES = r"""
- name: Take a GPU out of use until its fan is replaced
  gpuops.fleet.gpu_drain:
    gpu: '0000:07:00.0'
    by: lin
    reason: fan
    until: '2026-12-01'

- name: Give it back
  gpuops.fleet.gpu_drain:
    state: absent
    gpu: '0000:07:00.0'
    by: lin
"""

RETURN = r"""
gpu:
  description: UUID of the GPU; V(none) when the whole host is meant.
  returned: success
  type: str
  sample: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
drain:
  description: The drain, or in check mode the one that there would be; V(none) when it is released.
  returned: success
  type: dict
  sample: {by: lin, reason: fan, since: '2026-11-21T12:00:00Z', until: '2026-12-01T23:59:59Z', force: false}
diff:
  description: All drains of the host, one a line, before and after.
  returned: success
  type: dict
  sample: {before: '', after: "GPU-5c1f: drained by lin (fan) until 2026-12-01"}
"""

import re
import typing as t
from datetime import datetime, timezone
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import drains
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.host import kernel_gpus
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import NvmlError, pci_address, short_uuid
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_papers import remembered

SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "gpu": {"type": "str"},
    "by": {"type": "str", "required": True},
    "reason": {"type": "str"},
    "until": {"type": "str"},
    "force": {"type": "bool", "default": False},
    "over": {"type": "str"},
    "lease": {"type": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "proc_root": {"type": "path", "default": "/proc"},
}


_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def uuid_of(
    name: str, proc_root: str, found: t.Sequence[t.Mapping[str, t.Any]], present: bool, away: t.Mapping[str, str] | None = None
) -> str:
    """UUID of the GPU that ``name`` means: one that is drained already, that the kernel holds (NVML may have lost it), that was given to a
    virtual machine (``away``: address to UUID), or that NVML knows.

    FleetError when there is none; but a GPU that is gone can be released by its full UUID any number of times.
    """
    wanted = name.strip()
    known = {str(drain["gpu"]) for drain in found if drain["gpu"] is not None}
    listed = {**(away or {}), **kernel_gpus(proc_root)}
    known.update(uuid for uuid in listed.values() if uuid is not None)
    for uuid in sorted(known):
        if uuid.lower() == wanted.lower():
            return uuid
    begin = [uuid for uuid in sorted(known) if short_uuid(uuid) == wanted.lower()]
    if len(begin) == 1:
        return begin[0]
    address = pci_address(wanted)
    at = None if address is None else listed.get(address)
    if at is not None:
        return at
    try:
        with Nvml() as nvml:
            return nvml.uuid(nvml.find(wanted))
    except NvmlError as error:
        if not present and _UUID.fullmatch(wanted):
            return wanted
        raise FleetError(
            f"there is no GPU '{name}' on this host ({error})", field="gpu", hint="name its UUID, PCI address or index"
        ) from error


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when the drain is refused."""
    now = datetime.now(timezone.utc)
    present = params["state"] == "present"
    for name in ("by", *(("reason",) if present else ())):
        if not (params[name] or "").strip():
            raise FleetError("expected a few words, found none", field=name, hint="the others want to know")
    until = drains.parse_until(params["until"], now) if present else None

    identities = {address: entry["identity"] for address, entry in remembered(Path(params["state_dir"])).items()}
    away = {address: str(identity["uuid"]) for address, identity in identities.items() if identity.get("uuid")}

    def wish(found: t.Sequence[t.Mapping[str, t.Any]]) -> drains.Wish:
        gpu = None if params["gpu"] is None else uuid_of(params["gpu"], params["proc_root"], found, present, away)
        return drains.Wish(present, gpu, params["by"].strip(), (params["reason"] or "").strip(), until, params["force"], params["over"])

    before, after, decided = drains.change(Path(params["state_dir"]), wish, params["lease"], now, check)
    mine = next((drain for drain in after if drain["gpu"] == decided.gpu), None) if present else None
    return {
        "changed": before != after,
        "gpu": decided.gpu,
        "drain": None if mine is None else {key: value for key, value in mine.items() if key != "gpu"},
        "diff": {"before": drains.lines(before, now), "after": drains.lines(after, now)},
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, required_if=[("state", "present", ("reason",))], supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
