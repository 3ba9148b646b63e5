#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge settings into the Docker engine's own file."""

from __future__ import annotations

DOCUMENTATION = r"""
module: daemon_json
short_description: Merge settings into the Docker engine's daemon.json
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Puts O(settings) into the engine's settings file and leaves everything else in it as it is, its owner and mode included. Mappings are
    merged by key. Lists get what they lack, and nothing is taken out of them.
  - A file that is no JSON is never replaced. The message names line and column.
  - A wished value that contradicts one that is there is refused, and both are named, unless O(replace) is set.
  - The engine's own program proves the result before the file is replaced, all at once, where it is installed (C(dockerd --validate)).
  - Says what the engine has to do for the settings to be in force, and remembers it on the host until M(gpuops.fleet.engine_act) has
    done it.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
options:
  settings:
    description:
      - What the engine shall be told, by key as in Docker's own documentation.
      - In the lists C(labels), C(exec-opts) and C(storage-opts) two items with the same name before C(=) contradict each other, in
        C(default-address-pools) two of the same C(base).
    type: dict
    required: true
  path:
    description:
      - The engine's settings file. It is made when it is missing.
    type: path
    default: /etc/docker/daemon.json
  replace:
    description:
      - Whether a wished value replaces one that contradicts it.
    type: bool
    default: false
  dockerd:
    description:
      - Name or path of the engine's program, to prove the result with.
    type: path
    default: dockerd
  pid_file:
    description:
      - The file in which the engine writes its process. An engine that does not run reads its settings when it starts.
    type: path
    default: /var/run/docker.pid
seealso:
  - module: gpuops.fleet.engine_act
  - name: Docker daemon configuration
    description: Every key, and which of them a reload puts in force.
    link: https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file
"""

EXAMPLES = r"""
- name: Keep containers running while the engine restarts, and bound their logs
  gpuops.fleet.daemon_json:
    settings:
      live-restore: true
      log-driver: json-file
      log-opts:
        max-size: 50m
        max-file: '5'
"""

RETURN = r"""
action:
  description:
    - What the engine has to do. V(none) also when no engine runs. What an earlier play wrote and never put in force counts as well.
  returned: success
  type: str
  sample: restart
reload:
  description: Keys that a reload puts in force.
  returned: success
  type: list
  elements: str
  sample: [live-restore]
restart:
  description: Keys that are in force only after a restart. Those of C(features) are named one by one.
  returned: success
  type: list
  elements: str
  sample: [features/cdi, log-driver]
diff:
  description: The file before and after, without passwords in addresses.
  returned: success
  type: dict
  contains:
    before:
      description: Text of the file, empty when there was none.
      type: str
    after:
      description: Text of the file.
      type: str
    before_header:
      description: Path of the file.
      type: str
    after_header:
      description: Path of the file.
      type: str
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.daemon_json import Options, apply
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

SPEC: dict[str, t.Any] = {
    "settings": {"type": "dict", "required": True},
    "path": {"type": "path", "default": "/etc/docker/daemon.json"},
    "replace": {"type": "bool", "default": False},
    "dockerd": {"type": "path", "default": "dockerd"},
    "pid_file": {"type": "path", "default": "/var/run/docker.pid"},
    "proc_root": {"type": "path", "default": "/proc"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError as of ``apply``."""
    path = Path(params["path"])
    result = apply(
        Options(
            path=path,
            wished=params["settings"],
            state_dir=Path(params["state_dir"]),
            replace=params["replace"],
            dockerd=params["dockerd"],
            pid_file=Path(params["pid_file"]),
            proc_root=Path(params["proc_root"]),
            token=params["lease"],
            check=check,
        )
    )
    diff = {"before": result.before, "after": result.after, "before_header": str(path), "after_header": str(path)}
    waiting = {"action": result.waiting.action, "reload": list(result.waiting.reload), "restart": list(result.waiting.restart)}
    return {"changed": result.changed, **waiting, "diff": diff}


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
