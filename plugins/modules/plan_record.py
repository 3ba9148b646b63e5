#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record on a host which plan it carries."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_record
short_description: Record on a host which plan it carries
version_added: 0.1.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Decides whether a host may begin a plan, and records when it begins and when it is done.
  - Refuses a plan that is older than the one that the host carries, another plan of the same serial number, and a plan that was made
    from a state that differs from what the host observes now; it says what differs. The plan that the host has begun or carried out
    already is always taken, for then the run repairs.
  - Says which replicas must be stopped before the layout changes, and which left the plan.
  - A plan whose layout is true already and that starts no service is not recorded on a host that carries none, so that taking over a
    running host changes nothing on it.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
options:
  state:
    description:
      - V(begun) checks the plan and records that it was begun.
      - V(done) records that it was carried out.
      - V(read) returns the record.
    type: str
    choices:
      - begun
      - done
      - read
    required: true
  plan:
    description:
      - The host's plan as it is in its file. Needed unless O(state=read).
    type: dict
requirements:
  - nvidia-ml-py (Python package) on the host
seealso:
  - module: gpuops.fleet.host_lease
  - module: gpuops.fleet.mig
"""

EXAMPLES = r"""
- name: Begin the plan
  gpuops.fleet.plan_record:
    state: begun
    plan: "{{ work.plan }}"
  register: begun

- name: Finish the plan
  gpuops.fleet.plan_record:
    state: done
    plan: "{{ work.plan }}"
"""

RETURN = r"""
needed:
  description: Whether there is anything to record or to do. V(false) when the host has carried out this very plan.
  returned: when O(state) is V(begun) or V(done)
  type: bool
  sample: true
stop:
  description: Replicas that must not run while the layout changes, because their device changes or they left the plan.
  returned: when O(state) is V(begun) or V(done)
  type: list
  elements: str
  sample: [receipt-ocr-1]
gone:
  description: Replicas that left the plan.
  returned: when O(state) is V(begun) or V(done)
  type: list
  elements: str
  sample: []
rolled:
  description: Replicas that stay where they are and may run by another manifest than the plan's, or publish other ports.
  returned: when O(state) is V(begun) or V(done)
  type: list
  elements: str
  sample: []
new:
  description: Replicas that no plan before had on this host.
  returned: when O(state) is V(begun) or V(done)
  type: list
  elements: str
  sample: []
layout:
  description: The plan's layout as O(gpuops.fleet.mig#module:layout) takes it.
  returned: when O(state) is V(begun) or V(done)
  type: list
  elements: dict
  sample: [{gpu: GPU-5c1f, mig: true, instances: [{profile: 3g.40gb, start: 0}]}]
record:
  description: The plan that the host carries. V(none) when it carries none.
  returned: success
  type: dict
  sample: {serial: 3, digest: 'sha256:9b1c', state: started}
diff:
  description: The record before and after.
  returned: success
  type: dict
  sample: {before: '', after: "plan serial 3 started"}
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record as records
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_run import base_lines

SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["begun", "done", "read"], "required": True},
    "plan": {"type": "dict"},
    "lease": {"type": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when the host does not take the plan."""
    state_dir = Path(params["state_dir"])
    record: t.Mapping[str, t.Any] | None = records.read(state_dir)
    if params["state"] == "read":
        return {"changed": False, "record": records.summary(record), "diff": {"before": _words(record), "after": _words(record)}}
    plan = params["plan"]
    records.check_plan(plan)
    if not check:
        leases.check(state_dir, params["lease"])
    decide = records.begin if params["state"] == "begun" else records.finish
    observed = base_lines(records.gpus_of(plan))
    if check and params["state"] == "done":
        # In check mode nothing recorded that the plan was begun: predict from what would have been recorded.
        record = records.begin(plan, record, observed).record or record
    outcome = decide(plan, record, observed)
    after: t.Mapping[str, t.Any] | None = record if outcome.record is None else outcome.record
    changed = after != record
    if after is not None and changed and not check:
        records.write(state_dir, after)
    return {
        "changed": changed,
        "needed": outcome.needed,
        "stop": outcome.stop,
        "gone": outcome.gone,
        "rolled": outcome.rolled,
        "new": outcome.new,
        "layout": records.wish_of(plan),
        "record": records.summary(after),
        "diff": {"before": _words(record), "after": _words(after)},
    }


def _words(record: t.Mapping[str, t.Any] | None) -> str:
    return "" if record is None else f"plan serial {record['serial']} {record['digest']} {record['state']}\n"


def main() -> None:
    """Entry point."""
    required = [("state", "begun", ("plan",)), ("state", "done", ("plan",))]
    module = AnsibleModule(argument_spec=SPEC, required_if=required, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
