#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Have the Docker engine take up its settings, without harm to what runs on it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_act
short_description: Have the Docker engine take up its settings, without harm to what runs on it
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Reloads or restarts the engine when M(gpuops.fleet.daemon_json) left something waiting for it, or when the engine itself says that a
    setting is not in force. Nothing is done otherwise.
  - A restart is refused while containers run that it would stop. That is so unless live-restore is in force and every setting that
    changed is one that it holds over, or the whole host is drained (M(gpuops.fleet.gpu_drain)).
  - A reload of systemd is refused while containers run that would lose their GPU to it, which are those that got it from NVIDIA's hook.
  - Afterwards, the engine answers, what was wished is in force, containers run on as the same start of the same container, and each sees
    the GPUs that it saw before (C(nvidia-smi -L) inside, or its device nodes where it has no such program). Anything else is an error
    that names them.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.engine
attributes:
  check_mode:
    support: full
    details: What would be refused is refused in check mode as well, so that a task with C(check_mode) asks whether an act is allowed now.
  idempotent:
    support: partial
    details: Full with O(action=auto). The others are done each time.
options:
  action:
    description:
      - V(auto) does what is waiting.
      - V(reload) and V(restart) are done whether something waits or not.
      - V(daemon_reload) has systemd read its units again, as the installation of most packages does.
    type: str
    choices:
      - auto
      - reload
      - restart
      - daemon_reload
    default: auto
  settings:
    description:
      - Settings that have to be in force, as given to M(gpuops.fleet.daemon_json). What the engine tells of itself is looked at.
    type: dict
    default: {}
  reload:
    description:
      - Keys that M(gpuops.fleet.daemon_json) returned as V(reload). They count in check mode only, where it has left nothing on the host.
    type: list
    elements: str
    default: []
  restart:
    description:
      - The same of V(restart).
    type: list
    elements: str
    default: []
  path:
    description:
      - The engine's settings file, which is proved once more before a restart.
    type: path
    default: /etc/docker/daemon.json
  dockerd:
    description:
      - Name or path of the engine's program, to prove it with.
    type: path
    default: dockerd
  pid_file:
    description:
      - The file in which the engine writes its process.
    type: path
    default: /var/run/docker.pid
  service:
    description:
      - The engine's unit.
    type: str
    default: docker.service
  systemctl:
    description:
      - Name or path of systemd's program.
    type: path
    default: systemctl
  dev_root:
    description:
      - Where device nodes are.
    type: path
    default: /dev
  timeout:
    description:
      - Longest wait for the engine to act, and then for its settings to be in force, in seconds each.
    type: float
    default: 120
seealso:
  - module: gpuops.fleet.daemon_json
"""

EXAMPLES = r"""
- name: Ask for CDI
  gpuops.fleet.daemon_json:
    settings: {live-restore: true, features: {cdi: true}}
  register: written

- name: Have the engine take it up
  gpuops.fleet.engine_act:
    settings: {live-restore: true, features: {cdi: true}}
    reload: "{{ written.reload }}"
    restart: "{{ written.restart }}"

- name: Ask whether packages may be installed that have systemd read its units again
  gpuops.fleet.engine_act:
    action: daemon_reload
  check_mode: true
"""

RETURN = r"""
action:
  description: What was done, or would be. V(none) also when no engine runs.
  returned: success
  type: str
  sample: restart
steps:
  description: What was done, or would be, in words.
  returned: success
  type: list
  elements: str
  sample: ['have the engine read its settings again for live-restore', 'restart the engine for features/cdi']
running:
  description: Whether an engine runs.
  returned: success
  type: bool
  sample: true
live_restore:
  description: Whether live-restore is in force now. Null when no engine runs.
  returned: success
  type: bool
  sample: true
kept:
  description: Containers that ran through it, by name.
  returned: success
  type: list
  elements: str
  sample: [receipt-ocr-1]
stopped:
  description: Containers of a drained host that it stopped, by name.
  returned: success
  type: list
  elements: str
  sample: []
diff:
  description: The steps.
  returned: success
  type: dict
  contains:
    before:
      description: Always empty.
      type: str
    after:
      description: One step a line.
      type: str
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.daemon_json import Waiting
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_act import Options, act
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

SPEC: dict[str, t.Any] = {
    "action": {"type": "str", "choices": ["auto", "reload", "restart", "daemon_reload"], "default": "auto"},
    "settings": {"type": "dict", "default": {}},
    "reload": {"type": "list", "elements": "str", "default": []},
    "restart": {"type": "list", "elements": "str", "default": []},
    "path": {"type": "path", "default": "/etc/docker/daemon.json"},
    "dockerd": {"type": "path", "default": "dockerd"},
    "pid_file": {"type": "path", "default": "/var/run/docker.pid"},
    "service": {"type": "str", "default": "docker.service"},
    "systemctl": {"type": "path", "default": "systemctl"},
    "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
    "proc_root": {"type": "path", "default": "/proc"},
    "dev_root": {"type": "path", "default": "/dev"},
    "timeout": {"type": "float", "default": 120},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError as of ``act``."""
    result = act(
        Options(
            action=params["action"],
            settings=params["settings"],
            promised=Waiting(tuple(params["reload"]), tuple(params["restart"])),
            socket=params["docker_socket"],
            service=params["service"],
            systemctl=params["systemctl"],
            path=Path(params["path"]),
            dockerd=params["dockerd"],
            pid_file=Path(params["pid_file"]),
            state_dir=Path(params["state_dir"]),
            proc_root=Path(params["proc_root"]),
            dev_root=Path(params["dev_root"]),
            timeout=params["timeout"],
            token=params["lease"],
            check=check,
        )
    )
    told = {"running": result.running, "live_restore": result.live_restore, "kept": result.kept, "stopped": result.stopped}
    diff = {"before": "", "after": "".join(f"{step}\n" for step in result.steps)}
    return {"changed": bool(result.steps), "action": result.action, "steps": result.steps, **told, "diff": diff}


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
