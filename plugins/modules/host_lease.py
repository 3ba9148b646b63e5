#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold a host for the whole of a play."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_lease
short_description: Hold a GPU host for the whole of a play
version_added: 0.1.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Takes, renews and gives back a lease on a host, so that one writer at a time changes it.
    Whoever comes second is told who holds the host, what for and for how long.
  - Modules that change the host take the token as O(gpuops.fleet.mig#module:lease), and stop when the lease was lost.
  - A lease whose time is over is taken over by the next writer, and named to it.
  - A lease is a lock that is gone after the play, and no part of what the host shall be. So this module never reports a change.
  - In check mode it takes and gives back nothing, and RV(token) is empty.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
attributes:
  diff_mode:
    support: N/A
    details: A lease is a lock, not a part of the host's state.
options:
  state:
    description:
      - V(held) takes the lease, or renews it when O(token) is given. V(released) gives it back.
      - V(read) only tells who holds the host, as RV(held_by).
    type: str
    choices:
      - held
      - released
      - read
    default: held
  holder:
    description:
      - Who holds it, in words that help whoever waits. Needed with O(state=held).
    type: str
  purpose:
    description:
      - What it is held for.
    type: str
    default: apply
  seconds:
    description:
      - How long it lasts, in seconds, after it was taken or last used. A module that is given the token renews it.
    type: int
    default: 1800
  wait:
    description:
      - With O(state=held), for how long to wait for whoever holds the host, in seconds.
    type: int
    default: 0
    version_added: 0.2.0
  token:
    description:
      - The token of the lease, to renew it or to give it back.
    type: str
  force:
    description:
      - With O(state=released), take the lease away from whoever holds it.
    type: bool
    default: false
seealso:
  - module: gpuops.fleet.mig
"""

EXAMPLES = r"""
- name: Hold the host
  gpuops.fleet.host_lease:
    holder: "{{ lookup('ansible.builtin.env', 'USER') }}"
    purpose: carry out the plan
  register: lease

- name: Give the host back
  gpuops.fleet.host_lease:
    state: released
    token: "{{ lease.token }}"
"""

RETURN = r"""
token:
  description: What the other modules take as their O(ignore:lease). Empty in check mode and when the lease was given back.
  returned: success
  type: str
  sample: 6f1d8f7e6b0a4a578c881f0f0f3b6f0e
expires:
  description: When the lease is over, in seconds since 1970 (UTC). V(none) without a lease.
  returned: success
  type: int
  sample: 1795219200
held_by:
  description: With O(state=read), who holds the host, what for, since when and until when. Empty when nobody does.
  returned: success
  type: str
  sample: alice (deploy receipt-ocr), since 2026-11-21T12:00:03Z, until 2026-11-21T12:30:03Z unless it goes on working
taken_over:
  description: The lease whose time was over and that this one replaces. V(none) when there was none.
  returned: success
  type: str
  sample: took over the lease of alice (apply), which had run out
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.lease import acquire, await_lease, holder_now, release

SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["held", "released", "read"], "default": "held"},
    "holder": {"type": "str"},
    "purpose": {"type": "str", "default": "apply"},
    "seconds": {"type": "int", "default": 1800},
    "wait": {"type": "int", "default": 0},
    "token": {"type": "str", "no_log": False},
    "force": {"type": "bool", "default": False},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when another holds the host."""
    result: dict[str, t.Any] = {"changed": False, "token": "", "expires": None, "held_by": "", "taken_over": None}
    state_dir, token = Path(params["state_dir"]), params["token"] or None
    if params["state"] == "read":
        found = holder_now(state_dir)
        return {**result, "held_by": "" if found is None else found.times()}
    if check:
        return result
    if params["state"] == "released":
        release(state_dir, token, params["force"])
        return result
    if params["wait"] and token is None:
        lease, over = await_lease(state_dir, params["holder"], params["purpose"], params["seconds"], params["wait"])
    else:
        lease, over = acquire(state_dir, params["holder"], params["purpose"], params["seconds"], token)
    return {**result, "token": lease.token, "expires": lease.expires, "taken_over": over}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, required_if=[("state", "held", ("holder",))], supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    if result["taken_over"]:
        module.warn(result["taken_over"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
