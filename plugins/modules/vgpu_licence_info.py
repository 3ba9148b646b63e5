#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show whether the vGPUs of a virtual machine have their licence."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_licence_info
short_description: Show whether the vGPUs of a virtual machine have their licence
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Reads the state of the licences from C(nvidia-smi -q), and for a GPU without one the last word of NVIDIA's daemon C(nvidia-gridd) from
    its journal. It changes nothing, and stops nothing.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
options:
  wait:
    description:
      - How long to wait for licences, in seconds.
    type: float
    default: 0
  require:
    description:
      - Whether a GPU without a licence is a failure, as is a host on which none wants one or whose driver does not answer. Otherwise
        RV(problem) has the same line.
    type: bool
    default: false
  nvidia_smi:
    description:
      - Name or path of NVIDIA's program.
    type: path
    default: nvidia-smi
  journalctl:
    description:
      - Name or path of the program that shows the journal.
    type: path
    default: journalctl
  unit:
    description:
      - Unit of NVIDIA's daemon.
    type: str
    default: nvidia-gridd.service
seealso:
  - module: gpuops.fleet.vgpu_licence
"""

EXAMPLES = r"""
- name: Wait a minute for the licence
  gpuops.fleet.vgpu_licence_info:
    wait: 60
  register: licence

- name: Say what is wrong
  ansible.builtin.debug:
    msg: "{{ licence.problem }}"
  when: licence.problem is not none
"""

RETURN = r"""
state:
  description: V(licensed) where all have one, V(unlicensed), V(none) where no GPU wants one, or V(unknown).
  returned: success
  type: str
  sample: licensed
gpus:
  description: GPUs that want a licence.
  returned: success
  type: list
  elements: dict
  contains:
    gpu:
      description: PCI address.
      type: str
      sample: '0000:02:01.0'
    name:
      description: Its name, which has the type of the vGPU.
      type: str
      sample: NVIDIA H100-80C
    product:
      description: The licensed product.
      type: str
      sample: NVIDIA Virtual Compute Server
    status:
      description: The driver's own words.
      type: str
      sample: 'Licensed (Expiry: 2026-11-23 8:25:0 GMT)'
    licensed:
      description: Whether it has one.
      type: bool
      sample: true
    restricted:
      description: Whether the driver says that the GPU works with less because of that.
      type: bool
      sample: false
    expiry:
      description: Until when, in UTC; V(none) where the driver does not say.
      type: str
      sample: '2026-11-23T08:25:00Z'
problem:
  description: What is wrong, in one line; V(none) when nothing is.
  returned: success
  type: str
  sample: null
words:
  description: The last word of the daemon on it, where a GPU has no licence; V(none) where it has none.
  returned: success
  type: str
  sample: null
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_licence import Options, look

SPEC: dict[str, t.Any] = {
    "wait": {"type": "float", "default": 0},
    "require": {"type": "bool", "default": False},
    "nvidia_smi": {"type": "path", "default": "nvidia-smi"},
    "journalctl": {"type": "path", "default": "journalctl"},
    "unit": {"type": "str", "default": "nvidia-gridd.service"},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = look(Options(**module.params))
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
