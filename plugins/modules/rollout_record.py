#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record a rollout on its host: that it begins, its steps, and in the ledger how it ended."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_record
short_description: Record a rollout on its host, step by step, and in the ledger how it ended
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Notes when the rollout of a replica began and when each of its steps was done, and writes one row into the host's ledger when it has
    come to an end. M(gpuops.fleet.ledger_info) returns the rows.
  - One that nobody brought to its end is written as V(interrupted) when the next begins.
  - This is for the books alone. What a rollout still has to do is found on the host.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease_if_given
attributes:
  check_mode:
    support: full
  diff_mode:
    support: N/A
    details: A row is added; nothing is replaced.
  idempotent:
    support: none
    details: Each call is another event.
options:
  name:
    description:
      - Name of the replica, C(<service>-<number>).
    type: str
    required: true
  state:
    description:
      - What happens.
    type: str
    choices:
      - begun
      - step
      - ended
    required: true
  to_digest:
    description:
      - Digest of the manifest that is to serve. Needed with O(state=begun).
    type: str
  image:
    description:
      - Its image. Needed with O(state=begun).
    type: str
  by:
    description:
      - Who rolls it out.
    type: str
    default: ansible
  way:
    description:
      - Whether the new version proves itself beside the old one, or the old one is stopped first. Needed with O(state=begun).
    type: str
    choices:
      - side-by-side
      - stop-first
  step:
    description:
      - What was done. Needed with O(state=step).
    type: str
  seconds:
    description:
      - Seconds of the parts that came last in this step, by name, as RV(gpuops.fleet.service_gate#module:seconds) has them. They are
        recorded as steps of their own.
    type: dict
    default: {}
  outcome:
    description:
      - How it ended. V(serving) when the new version serves, V(kept) when the old one never ceased to, V(restored) when the old one
        serves again, V(failed) when neither does. Needed with O(state=ended).
    type: str
    choices:
      - serving
      - kept
      - restored
      - failed
  reason:
    description:
      - Why the new version does not serve.
    type: str
    default: ''
seealso:
  - module: gpuops.fleet.ledger_info
"""

EXAMPLES = r"""
- name: Note that a rollout begins
  gpuops.fleet.rollout_record:
    name: receipt-ocr-1
    state: begun
    to_digest: "{{ placement.manifest }}"
    image: "{{ manifest.image }}"
    way: stop-first
    by: alice
"""

RETURN = r"""
rollout:
  description: The row that was written. V(none) before the end.
  returned: success
  type: dict
  sample:
    service: receipt-ocr
    replica: 1
    way: stop-first
    outcome: serving
    steps: [{step: drain, seconds: 30.2}]
reason:
  description: O(reason) as one line.
  returned: success
  type: str
  sample: ''
"""

import time
import typing as t
from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.rollouts import OUTCOMES, WAYS, Begun, Record
from ansible_collections.gpuops.fleet.plugins.module_utils.versions import Versions
from ansible_collections.gpuops.fleet.plugins.module_utils.words import without_names

SPEC: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["begun", "step", "ended"], "required": True},
    "to_digest": {"type": "str"},
    "image": {"type": "str"},
    "by": {"type": "str", "default": "ansible"},
    "way": {"type": "str", "choices": list(WAYS)},
    "step": {"type": "str"},
    "seconds": {"type": "dict", "default": {}},
    "outcome": {"type": "str", "choices": list(OUTCOMES)},
    "reason": {"type": "str", "default": ""},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}
NEEDED = [("state", "begun", ["to_digest", "image", "way"]), ("state", "step", ["step"]), ("state", "ended", ["outcome"])]


def run(params: t.Mapping[str, t.Any], check: bool, now: float) -> dict[str, t.Any]:
    """The module's result at the moment ``now``, UTC seconds. FleetError when something cannot be written."""
    state_dir, name = Path(params["state_dir"]), params["name"]
    if params["lease"] and not check:
        leases.check(state_dir, params["lease"])
    record, row, reason = Record(state_dir, name, check), None, without_names(params["reason"], name)
    if params["state"] == "begun":
        serving = Versions(state_dir, name).serving()
        service, _dash, number = name.rpartition("-")
        replica = int(number) if number.isdigit() else None
        begun = (serving.digest if serving else None, params["to_digest"], params["image"], params["by"], params["way"])
        record.begin(Begun(service or name, replica, *begun, now))
    elif params["state"] == "step":
        record.step(params["step"], now, _seconds(params["seconds"]))
    else:
        row = record.end(now, params["outcome"], reason)
    return {"changed": params["state"] != "ended" or row is not None, "rollout": asdict(row) if row else None, "reason": reason}


def _seconds(parts: t.Mapping[str, t.Any]) -> dict[str, float | None]:
    try:
        return {str(name): None if value is None else float(value) for name, value in parts.items()}
    except (TypeError, ValueError):
        raise FleetError("expected seconds by name", field="seconds", hint="write such as {healthy: 21.4}") from None


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, required_if=NEEDED)
    try:
        result = run(module.params, module.check_mode, time.time())
    except FleetError as error:
        module.fail_json(msg=f"{module.params['name']}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
