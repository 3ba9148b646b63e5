#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the files of a gateway, and have it load them without losing a connection."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_config
short_description: Install the configuration of a gateway, and load it without losing a connection
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Writes the configuration of HAProxy with its maps and pages. HAProxy itself judges them before anything is replaced.
  - A HAProxy that runs with other files loads them, although the files are there already, because somebody may have been interrupted.
    Its old workers end the requests that they have in hand. Servers that are drained, taken out or lent an address stay so.
  - If it cannot load them, it serves on as before, and the files of before are put back.
  - A HAProxy that does not run is not started.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
options:
  state:
    description:
      - With V(absent) all files are removed. Stop HAProxy before.
    type: str
    choices:
      - present
      - absent
    default: present
  config:
    description:
      - Text of the configuration, as M(gpuops.fleet.gateway_routes) returns it. Needed with O(state=present).
    type: str
  files:
    description:
      - Name below O(directory) to text. What else is in that directory is removed.
    type: dict
    default: {}
  path:
    description:
      - File of the configuration.
    type: path
    default: /etc/haproxy/gpuops-fleet.cfg
  directory:
    description:
      - Directory of maps and pages. The configuration names it.
    type: path
    default: /etc/haproxy/gpuops-fleet
  program:
    description:
      - Name or path of HAProxy, 2.6 or newer.
    type: path
    default: haproxy
  socket:
    description:
      - HAProxy's admin socket.
    type: path
    default: /run/gpuops-fleet-gateway/admin.sock
  master_socket:
    description:
      - Socket of HAProxy's master process.
    type: path
    default: /run/gpuops-fleet-gateway/master.sock
  state_file:
    description:
      - Where HAProxy reads at its start how servers were.
    type: path
    default: /var/lib/gpuops-fleet-gateway/servers
  reload_timeout:
    description:
      - Longest time until the new files are in force, in seconds.
    type: int
    default: 60
seealso:
  - module: gpuops.fleet.gateway_routes
  - module: gpuops.fleet.gateway_server
"""

EXAMPLES = r"""
- name: Install what the routes are
  gpuops.fleet.gateway_config:
    config: "{{ routes.config }}"
    files: "{{ routes.files }}"
"""

RETURN = r"""
running:
  description: Whether HAProxy runs.
  returned: success
  type: bool
  sample: true
steps:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [write /etc/haproxy/gpuops-fleet.cfg, load the new configuration]
diff:
  description: The files before and after. Of keys only the first digits of their hashes are shown, of pages only their length.
  returned: success
  type: dict
  sample: {before: '', after: "# /etc/haproxy/gpuops-fleet.cfg"}
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.haproxy_files import Wish, install, remove

SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "config": {"type": "str"},
    # Hashes of keys are in it. Hidden, every piece of a page or a map would be gone from the diff too: the role keeps it out of the log.
    "files": {"type": "dict", "default": {}},
    "path": {"type": "path", "default": "/etc/haproxy/gpuops-fleet.cfg"},
    "directory": {"type": "path", "default": "/etc/haproxy/gpuops-fleet"},
    "program": {"type": "path", "default": "haproxy"},
    "socket": {"type": "path", "default": "/run/gpuops-fleet-gateway/admin.sock"},
    "master_socket": {"type": "path", "default": "/run/gpuops-fleet-gateway/master.sock"},
    "state_file": {"type": "path", "default": "/var/lib/gpuops-fleet-gateway/servers"},
    "reload_timeout": {"type": "int", "default": 60},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when HAProxy refuses the files or cannot load them."""
    path, directory, state_file = (Path(params[name]) for name in ("path", "directory", "state_file"))
    if params["state"] == "absent":
        steps = remove(path, directory, state_file, check)
        return {"changed": bool(steps), "running": Path(params["socket"]).exists(), "steps": steps, "diff": {"before": "", "after": ""}}
    wish = Wish(
        program=params["program"],
        path=path,
        config=params["config"],
        directory=directory,
        files={str(name): str(text) for name, text in params["files"].items()},
        socket=params["socket"],
        master=params["master_socket"],
        state_file=state_file,
        reload_seconds=params["reload_timeout"],
    )
    outcome = install(wish, check)
    diff = {"before": outcome.before, "after": outcome.after}
    return {"changed": bool(outcome.steps), "running": outcome.running, "steps": outcome.steps, "diff": diff}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, required_if=[("state", "present", ("config",))], supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
