#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load a driver, or say in one line why the kernel refuses it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_loaded
short_description: Load a driver, or say in one line why the kernel refuses it
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Loads the kernel module of the driver that is installed. Where another one is loaded and nobody uses it, that one is unloaded first.
  - Where nouveau drives the GPU, or somebody uses the driver that is loaded, nothing is touched, and RV(pending) says what waits for a
    reboot. The module never reboots.
  - When the kernel refuses, the module fails with one line that has the kernel's own word and what it means, such as no GPU, a key that
    Secure Boot rejects, a module for another kernel.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.sys
attributes:
  diff_mode:
    support: N/A
    details: Which module is loaded is told by RV(before) and RV(driver).
options:
  root:
    description:
      - Directory below which the host's files are.
    type: path
    default: /
  kind:
    description:
      - Which driver it is. V(vgpu-host) has C(nvidia-vgpu-vfio) in place of the module that CUDA needs.
    type: str
    choices: [ordinary, vgpu-host]
    default: ordinary
  modprobe:
    description:
      - Name or path of the program that loads modules.
    type: path
    default: modprobe
  dmesg:
    description:
      - Name or path of the program that shows the kernel's messages. Its last word on the driver is told when the kernel refuses.
    type: path
    default: dmesg
  timeout:
    description:
      - Longest time for one of them, in seconds.
    type: int
    default: 120
seealso:
  - module: gpuops.fleet.driver_built
  - module: gpuops.fleet.gpu_info
"""

EXAMPLES = r"""
- name: Load the driver
  gpuops.fleet.driver_loaded:
  register: driver
"""

RETURN = r"""
driver:
  description: Version of the driver that is installed.
  returned: success
  type: str
  sample: 580.95.05
before:
  description: Version of the one that was loaded; V(none) where none was.
  returned: success
  type: str
  sample: null
pending:
  description: What waits for a reboot, and why; V(none) where the installed driver is loaded.
  returned: success
  type: str
  sample: null
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.driver_load import Options, load
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

SPEC: dict[str, t.Any] = {
    "root": {"type": "path", "default": "/"},
    "proc_root": {"type": "path", "default": "/proc"},
    "sys_root": {"type": "path", "default": "/sys"},
    "kind": {"type": "str", "default": "ordinary", "choices": ["ordinary", "vgpu-host"]},
    "modprobe": {"type": "path", "default": "modprobe"},
    "dmesg": {"type": "path", "default": "dmesg"},
    "timeout": {"type": "int", "default": 120},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = load(Options(**module.params), module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
