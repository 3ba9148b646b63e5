#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the host agent, or take it away."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_agent
short_description: Install the agent that heals a GPU host with no controller near
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Installs the collection's own host code as a versioned package with a virtual environment of its own, its configuration, and the
    systemd units that run it. Role P(gpuops.fleet.host_agent#role) has the units; use the role.
  - A package is unpacked beside the one in use and proven to run, then the link C(current) is set to it. The one before is kept,
    older ones are removed. Only a package that the host does not have travels to it.
  - C(systemctl daemon-reload) is not called without need. While a container runs that got its GPU in another way than by CDI it is
    not called at all, because it would take that GPU away; the module then warns that a changed unit takes effect at the next boot.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.door
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.engine
options:
  state:
    description:
      - V(absent) stops and removes units, packages, configuration. Services that run are left running, and what the host remembers
        of plan and layout stays; nobody restores the layout or starts services after a boot then.
    type: str
    choices:
      - present
      - absent
    default: present
  root:
    description: Directory on the host for the packages. A path without white space.
    type: path
    default: /opt/gpuops-fleet
  config_path:
    description: The agent's configuration on the host.
    type: path
    default: /etc/gpuops-fleet/agent.json
  config:
    description: What stands in it. A setting that is left out has the agent's default.
    type: dict
    default: {}
    suboptions:
      state_dir:
        description: What the host remembers.
        type: path
      services_dir:
        description: Where the replicas' projects are.
        type: path
      secrets_dir:
        description: Where secrets of running services are.
        type: path
      proc_root:
        description: Where the kernel's C(proc) file system is mounted.
        type: path
      sys_root:
        description: Where the kernel's C(sysfs) file system is mounted.
        type: path
      docker_socket:
        description: Socket of the Docker engine.
        type: path
      docker:
        description: Name or path of Docker's program.
        type: str
      gpu_access:
        description: How compose files name devices, V(cdi) or V(nvidia).
        type: str
        choices:
          - cdi
          - nvidia
      cdi_spec:
        description: The engine's CDI specification.
        type: path
      nvidia_ctk:
        description: Name or path of the program that makes it.
        type: str
      nvidia_smi:
        description: Name or path of the program that resets a GPU.
        type: str
      sriov_manage:
        description: Name or path of the program that switches virtual functions of GPUs.
        type: str
      driver_services:
        description: Systemd units that hold the driver.
        type: list
        elements: str
      allow_reset:
        description: Whether a GPU whose mode waits for a reset is reset.
        type: bool
      driver_wait:
        description: Longest wait for the driver, in seconds.
        type: int
      health_wait:
        description: Longest wait for a started service, in seconds.
        type: int
      command_wait:
        description: Longest time for one command of Docker, in seconds.
        type: int
      lease_wait:
        description: Longest wait for a play that holds the host, in seconds.
        type: int
      lease_seconds:
        description: How long the agent's own lease lasts after its last step, in seconds.
        type: int
      parallel:
        description: How many services are started at a time.
        type: int
  unit_dir:
    description: Directory on the host for units.
    type: path
    default: /etc/systemd/system
  units:
    description: The units. With O(state=absent) only their names count.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Its file name.
        type: str
        required: true
      text:
        description: Its file's content.
        type: str
        default: ''
      running:
        description: Whether it is kept running. It is started anew when the package, the configuration or its own file changed.
        type: bool
        default: false
      enabled:
        description: Whether it is started at a boot. One that a timer starts is not.
        type: bool
        default: true
  wheel:
    description:
      - Path on the controller of a wheel of C(nvidia-ml-py), for a host whose Python has no C(pynvml). It travels in the package.
    type: path
  pip:
    description:
      - Whether the package's virtual environment gets C(nvidia-ml-py) by C(pip) from the index that the host is set up for.
    type: bool
    default: false
  python:
    description:
      - Python on the host of which the virtual environment is made, 3.9 or newer. The one that Ansible runs there, or the one below
        its virtual environment, if left out.
    type: path
  downgrade:
    description: Whether an agent that is newer than this collection is replaced.
    type: bool
    default: false
  systemctl:
    description: Name or path of systemd's program on the host.
    type: path
    default: systemctl
  package:
    description: The action plugin sets it. Path on the host of the package that travelled.
    type: path
  version:
    description: The action plugin sets it. The release of the package.
    type: str
    default: ''
  digest:
    description: The action plugin sets it. Digest of the package's files.
    type: str
    default: ''
requirements:
  - systemd and Python 3.9 or newer with its module C(venv) on the host
  - nvidia-ml-py (Python package) on the host, if neither O(wheel) nor O(pip) brings it
"""

EXAMPLES = r"""
- name: Install the host agent
  ansible.builtin.include_role:
    name: gpuops.fleet.host_agent

- name: Take it away
  ansible.builtin.include_role:
    name: gpuops.fleet.host_agent
  vars:
    host_agent_state: absent
"""

RETURN = r"""
steps:
  description: What was done, or would be in check mode, in order.
  returned: success
  type: list
  elements: str
  sample: [install agent 0.2.0-3f0c9b1d2e4a below /opt/gpuops-fleet, use agent 0.2.0-3f0c9b1d2e4a]
notes:
  description: What a person should know; each is a warning as well.
  returned: success
  type: list
  elements: str
  sample: []
package_needed:
  description: For the action plugin. Nothing was done, because the host does not have the package.
  returned: success
  type: bool
  sample: false
diff:
  description: Files before and after, and the steps.
  returned: success
  type: list
  elements: dict
  sample:
    - before: ''
      after: "install agent 0.2.0-3f0c9b1d2e4a below /opt/gpuops-fleet"
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_install import Options, absent, present
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_units import Unit
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

_UNIT: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "text": {"type": "str", "default": ""},
    "running": {"type": "bool", "default": False},
    "enabled": {"type": "bool", "default": True},
}
_CONFIG: dict[str, t.Any] = {
    "state_dir": {"type": "path"},
    "services_dir": {"type": "path"},
    "secrets_dir": {"type": "path"},
    "proc_root": {"type": "path"},
    "sys_root": {"type": "path"},
    "docker_socket": {"type": "path"},
    "docker": {"type": "str"},
    "gpu_access": {"type": "str", "choices": ["cdi", "nvidia"]},
    "cdi_spec": {"type": "path"},
    "nvidia_ctk": {"type": "str"},
    "nvidia_smi": {"type": "str"},
    "sriov_manage": {"type": "str"},
    "driver_services": {"type": "list", "elements": "str"},
    "allow_reset": {"type": "bool"},
    "driver_wait": {"type": "int"},
    "health_wait": {"type": "int"},
    "command_wait": {"type": "int"},
    "lease_wait": {"type": "int"},
    "lease_seconds": {"type": "int"},
    "parallel": {"type": "int"},
}
SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "root": {"type": "path", "default": "/opt/gpuops-fleet"},
    "config_path": {"type": "path", "default": "/etc/gpuops-fleet/agent.json"},
    "config": {"type": "dict", "default": {}, "options": _CONFIG},
    "unit_dir": {"type": "path", "default": "/etc/systemd/system"},
    "units": {"type": "list", "elements": "dict", "default": [], "options": _UNIT},
    "wheel": {"type": "path"},
    "pip": {"type": "bool", "default": False},
    "python": {"type": "path"},
    "downgrade": {"type": "bool", "default": False},
    "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
    "systemctl": {"type": "path", "default": "systemctl"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
    "package": {"type": "path"},
    "version": {"type": "str", "default": ""},
    "digest": {"type": "str", "default": ""},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when the agent cannot be installed or removed, or another holds the host."""
    if params["state"] == "present" and not params["digest"]:
        raise FleetError("the package is made by this module's action plugin", field="digest", hint="call the module by its full name")
    options = Options(
        root=Path(params["root"]),
        state_dir=Path(params["state_dir"]),
        config_path=Path(params["config_path"]),
        unit_dir=Path(params["unit_dir"]),
        units=[Unit(unit["name"], unit["text"], unit["running"], unit["enabled"]) for unit in params["units"]],
        version=params["version"],
        digest=params["digest"],
        config={name: value for name, value in params["config"].items() if value is not None},
        package=Path(params["package"]) if params["package"] else None,
        brings_pynvml=bool(params["wheel"]),
        python=params["python"] or "",
        pip=params["pip"],
        downgrade=params["downgrade"],
        docker_socket=Path(params["docker_socket"]),
        systemctl=params["systemctl"],
        token=params["lease"] or None,
        check=check,
    )
    if not check:
        leases.check(options.state_dir, options.token, any_agent=True)
    result = (present if params["state"] == "present" else absent)(options)
    files = [
        {"before": before, "after": after, "before_header": path, "after_header": path}
        for (path, before), (_path, after) in zip(result.before, result.after)
    ]
    steps = {"before": "", "after": "".join(f"{step}\n" for step in result.steps), "before_header": "steps", "after_header": "steps"}
    return {
        "changed": bool(result.steps),
        "steps": result.steps,
        "notes": result.notes,
        "package_needed": result.package_needed,
        "diff": [*files, *([steps] if result.steps else [])],
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    for note in result["notes"]:
        module.warn(note)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
