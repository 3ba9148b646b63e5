#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make one server of a gateway ready, drain it, or take it out."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_server
short_description: Make a replica ready at a gateway, drain it, or take it out
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Tells a HAProxy that runs, by its socket, whether a server of a service gets requests. Nothing is reloaded and no connection is lost.
  - The state is also written where HAProxy reads it at its next start, so that a drain or an address outlives a reload and a reboot.
  - A service that the gateway has no route to, and a replica that it does not know yet, is no error, and nothing is done.
  - Runs on the host of the gateway.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
options:
  service:
    description:
      - Name of the service.
    type: str
    required: true
  server:
    description:
      - Name of the server, which is the replica's (V(receipt-ocr-1)), or V(<service>-surge-<host>) for the one that stands by on a host.
    type: str
    required: true
  state:
    description:
      - V(ready) gives it requests. With O(wait) it first proves itself to HAProxy's own health checks, while it gets none.
      - V(drain) gives it no new ones. With O(wait), waits until those in hand have ended, those of workers before a reload included.
      - V(maint) takes it out, and HAProxy checks it no longer.
    type: str
    choices:
      - ready
      - drain
      - maint
    default: ready
  address:
    description:
      - Address or name of the host that has it. The server is left where it is if left out.
      - A server that stands by is lent it.
      - A replica's own server has its place from M(gpuops.fleet.gateway_config). With V(ready) it goes to this one before that only if it
        gets no requests or does not answer at another host's address; or if the address is the same, and O(port) is not.
        With V(drain) or V(maint) nothing is done when it is at another address. It has moved to another host then, and what that host's
        replica gets is none of the business of the one that leaves. Requests that were sent to this address before a reload are waited for.
    type: str
  port:
    description:
      - Port where it listens. Needed with O(address) and V(ready).
    type: int
  wait:
    description:
      - Longest time to wait, in seconds. With V(0) nothing is waited for.
      - A server that is not healthy by then is put back, and the module fails. Requests that are still in hand by then are no failure,
        see RV(sessions).
    type: float
    default: 0
  socket:
    description:
      - HAProxy's admin socket.
    type: path
    default: /run/gpuops-fleet-gateway/admin.sock
  master_socket:
    description:
      - Socket of HAProxy's master process, which knows the workers before a reload.
    type: path
    default: /run/gpuops-fleet-gateway/master.sock
  state_file:
    description:
      - Where HAProxy reads at its start how servers were.
    type: path
    default: /var/lib/gpuops-fleet-gateway/servers
seealso:
  - module: gpuops.fleet.gateway_config
"""

EXAMPLES = r"""
- name: Give a replica no new requests, and let those in hand end
  gpuops.fleet.gateway_server:
    service: receipt-ocr
    server: receipt-ocr-1
    state: drain
    wait: 30
"""

RETURN = r"""
known:
  description: Whether the gateway knows the server. If not, nothing was done.
  returned: success
  type: bool
  sample: true
sessions:
  description: Requests that the server has in hand. Not counted with O(state=ready).
  returned: success
  type: int
  sample: 0
steps:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: ['svc_receipt-ocr/receipt-ocr-1: ready at 10.0.0.7:18000 -> drain at 10.0.0.7:18000']
diff:
  description: State and place of the server before and after.
  returned: success
  type: dict
  sample: {before: "svc_ocr/ocr-1: ready at 10.0.0.7:18000", after: "svc_ocr/ocr-1: drain at 10.0.0.7:18000"}
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.haproxy import Runtime, Wish, change

SPEC: dict[str, t.Any] = {
    "service": {"type": "str", "required": True},
    "server": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["ready", "drain", "maint"], "default": "ready"},
    "address": {"type": "str"},
    "port": {"type": "int"},
    "wait": {"type": "float", "default": 0},
    "socket": {"type": "path", "default": "/run/gpuops-fleet-gateway/admin.sock"},
    "master_socket": {"type": "path", "default": "/run/gpuops-fleet-gateway/master.sock"},
    "state_file": {"type": "path", "default": "/var/lib/gpuops-fleet-gateway/servers"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when the gateway does not answer, or the server is not healthy in time."""
    # Playbook gateway writes that file first of all: without it, no gateway was ever brought here.
    if not Path(params["state_file"]).exists() and not Path(params["socket"]).exists():
        nothing = {"changed": False, "known": False, "sessions": 0, "steps": [], "diff": {"before": "", "after": ""}}
        return {**nothing, "msg": "there is no gateway on this host yet: nothing to do; playbook gateway brings it"}
    names = ("service", "server", "state", "wait", "address", "port")
    outcome = change(
        Runtime(params["socket"], params["master_socket"]), Wish(**{name: params[name] for name in names}), params["state_file"], check
    )
    result = {
        "changed": bool(outcome.steps),
        "known": outcome.known,
        "sessions": outcome.sessions,
        "steps": outcome.steps,
        "diff": {"before": outcome.before, "after": outcome.after},
    }
    return {**result, "msg": outcome.message} if outcome.message else result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
