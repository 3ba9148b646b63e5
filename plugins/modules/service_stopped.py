#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record that a service is stopped on a host until it is deployed again, or that it no longer is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_stopped
short_description: Record that a service is stopped on a host until it is deployed again
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Records on the host that somebody stopped a service, who and why. Role P(gpuops.fleet.model_service#role), the host agent at a boot and
    its watch leave the service alone as long as that stands.
  - Stops and starts nothing itself.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
options:
  service:
    description:
      - The service, without the number of a replica.
    type: str
    required: true
  state:
    description:
      - V(present) when it is stopped, V(absent) when it is to run again.
    type: str
    choices:
      - present
      - absent
    default: present
  by:
    description:
      - Who stops it. Needed with O(state=present).
    type: str
  reason:
    description:
      - Why, for others.
    type: str
    default: ''
seealso:
  - module: gpuops.fleet.service_version_info
"""

EXAMPLES = r"""
- name: Record that the service stays stopped
  gpuops.fleet.service_stopped:
    service: receipt-ocr
    by: alice
    reason: its customer left
"""

RETURN = r"""
stopped:
  description: Every service that is stopped on this host, by name.
  returned: success
  type: dict
  sample: {receipt-ocr: {by: alice, reason: its customer left, since: '2026-11-21T12:00:00Z'}}
diff:
  description: A line for each, before and after.
  returned: success
  type: dict
  sample: {before: '', after: "receipt-ocr: stopped by alice (its customer left) since 2026-11-21T12:00:00Z"}
"""

import typing as t
from datetime import datetime, timezone
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import stopped
from ansible_collections.gpuops.fleet.plugins.module_utils.drains import stamp
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.words import clean

SPEC: dict[str, t.Any] = {
    "service": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "by": {"type": "str"},
    "reason": {"type": "str", "default": ""},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def run(params: t.Mapping[str, t.Any], check: bool, now: datetime) -> dict[str, t.Any]:
    """The module's result at the moment ``now``. FleetError when the file is damaged, or another holds the host."""
    stop = None
    if params["state"] == "present":
        stop = {"by": clean(params["by"]), "reason": clean(params["reason"]), "since": stamp(now)}
    before, after = stopped.change(Path(params["state_dir"]), params["service"], stop, params["lease"], check)
    return {"changed": before != after, "stopped": after, "diff": {"before": stopped.lines(before), "after": stopped.lines(after)}}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, required_if=[("state", "present", ["by"])])
    try:
        result = run(module.params, module.check_mode, datetime.now(timezone.utc))
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
