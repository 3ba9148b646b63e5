#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say with which scheduler of vGPUs NVIDIA's driver starts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_scheduler
short_description: Say with which scheduler of vGPUs NVIDIA's driver starts
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Writes the scheduler of time-sliced vGPUs into a file of its own in C(modprobe.d), for all GPUs or for one. Without a wish the file is
    taken away.
  - It counts from the next time that the driver is loaded (RV(pending)). Nothing is loaded or rebooted here. For a policy at once, until
    the driver ends, see option O(gpuops.fleet.vgpu#module:gpus[].scheduler) of module M(gpuops.fleet.vgpu).
  - Another file that gives the same parameter of the kernel module is named, and nothing is changed.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
options:
  schedulers:
    description:
      - One entry for all GPUs, or entries for single ones, or both.
    type: list
    elements: dict
    default: []
    suboptions:
      gpu:
        description: PCI address of a GPU. When left out, the entry is for all GPUs.
        type: str
      policy:
        description: Which policy.
        type: str
        required: true
        choices: [best-effort, equal-share, fixed-share]
      slice_ms:
        description: Length of a time slice in milliseconds, 1 to 30.
        type: int
      frequency_hz:
        description: How many rounds in a second, 63 to 960; only with V(equal-share).
        type: int
      averaging:
        description: Averaging factor of those rounds, 1 to 60. When left out, 33, as NVIDIA's.
        type: int
  path:
    description:
      - The file.
    type: path
    default: /etc/modprobe.d/gpuops-fleet-vgpu.conf
  dmesg:
    description:
      - Name or path of the program that shows the kernel's messages.
    type: path
    default: dmesg
seealso:
  - module: gpuops.fleet.vgpu
"""

EXAMPLES = r"""
- name: Equal shares everywhere, fixed ones of 2 ms on one GPU
  gpuops.fleet.vgpu_scheduler:
    schedulers:
      - {policy: equal-share}
      - {gpu: '0000:3b:00.0', policy: fixed-share, slice_ms: 2}
  register: scheduler

- name: Say what waits
  ansible.builtin.debug:
    msg: "{{ scheduler.pending }}"
  when: scheduler.pending is not none
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
  sample: /etc/modprobe.d/gpuops-fleet-vgpu.conf
parameters:
  description: What the kernel module is given.
  returned: success
  type: dict
  sample: {NVreg_RegistryDwords: RmPVMRL=0x01}
pending:
  description: What waits for a reboot; V(none) when nothing does.
  returned: success
  type: str
  sample: the driver that is loaded was not given NVreg_RegistryDwords="RmPVMRL=0x01"
leftover:
  description: What nobody wishes any more and is in force until a reboot; V(none) when nothing is.
  returned: success
  type: str
  sample: null
kernel:
  description: What the kernel says of schedulers, once the wish is in force.
  returned: success
  type: list
  elements: str
  sample: []
diff:
  description: The file before and after.
  returned: success
  type: dict
  contains:
    before:
      description: Its text, empty when there was none.
      type: str
    after:
      description: Its text.
      type: str
    before_header:
      description: Its path.
      type: str
    after_header:
      description: Its path.
      type: str
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_scheduler import Options, apply

_ENTRY: dict[str, t.Any] = {
    "gpu": {"type": "str"},
    "policy": {"type": "str", "required": True, "choices": ["best-effort", "equal-share", "fixed-share"]},
    "slice_ms": {"type": "int"},
    "frequency_hz": {"type": "int"},
    "averaging": {"type": "int"},
}
SPEC: dict[str, t.Any] = {
    "schedulers": {"type": "list", "elements": "dict", "default": [], "options": _ENTRY},
    "path": {"type": "path", "default": "/etc/modprobe.d/gpuops-fleet-vgpu.conf"},
    "dmesg": {"type": "path", "default": "dmesg"},
    "proc_root": {"type": "path", "default": "/proc"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError: nothing was changed."""
    options = Options(
        schedulers=params["schedulers"],
        path=Path(params["path"]),
        proc_root=Path(params["proc_root"]),
        state_dir=Path(params["state_dir"]),
        dmesg=params["dmesg"],
        lease=params["lease"],
    )
    return apply(options, check)


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
