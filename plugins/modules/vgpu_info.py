#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show vGPUs, and what there is room for."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_info
short_description: Show the vGPUs of a host
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Shows which GPUs of a host offer vGPUs and in which framework, the vGPUs that are there and who uses each, and what there is room for.
  - It changes nothing.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.sys
options:
  gpus:
    description:
      - UUIDs or PCI addresses of GPUs, or names of other parents of mediated devices. All that offer vGPUs if left out.
    type: list
    elements: str
    default: []
  nvidia_smi:
    description:
      - Name or path of the program that reads mixed-size mode and scheduler.
    type: path
    default: nvidia-smi
  machine_id:
    description:
      - File with the host's identity, of which the names of mediated devices are made.
    type: path
    default: /etc/machine-id
  libvirt_dir:
    description:
      - Where libvirt keeps the guests that are defined. A directory that is not there has none.
    type: path
    default: /etc/libvirt/qemu
requirements:
  - nvidia-ml-py (Python package) on the host, for what NVML knows beside sysfs
seealso:
  - module: gpuops.fleet.vgpu
"""

EXAMPLES = r"""
- name: See what there is
  gpuops.fleet.vgpu_info:
  register: seen

- name: Keep it as a file of vgpu-device-manager
  ansible.builtin.copy:
    content: "{{ seen.gpus | gpuops.fleet.vgpu_configs('before-the-move') }}"
    dest: vgpu.yaml
    mode: '0644'
  delegate_to: localhost
"""

RETURN = r"""
gpus:
  description: GPUs and other parents that offer vGPUs, or those that were named.
  returned: success
  type: list
  elements: dict
  contains:
    gpu:
      description: PCI address, or name of the parent.
      type: str
      sample: '0000:3b:00.0'
    index:
      description: Which one it is among the host's NVIDIA GPUs by PCI address, from 0. V(none) for another parent.
      type: int
      sample: 0
    uuid:
      description: UUID of the GPU. V(none) where its driver does not tell.
      type: str
      sample: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
    framework:
      description: V(mdev) or V(vendor). V(none) while virtual functions are off.
      type: str
      sample: vendor
    vfs:
      description: How many virtual functions are on.
      type: int
      sample: 16
    total_vfs:
      description: How many it can have. 0 without SR-IOV.
      type: int
      sample: 16
    mixed:
      description: Whether mixed-size mode is on. V(none) where the driver does not tell.
      type: bool
      sample: false
    scheduler:
      description: How time-sliced vGPUs share its time. V(none) where the driver does not tell.
      type: str
      sample: best-effort
    vgpus:
      description: The vGPUs, each with RV(ignore:type), RV(ignore:place), RV(ignore:uuid), RV(ignore:params) and RV(ignore:users).
      type: list
      elements: dict
      sample:
        - type: A100D-10C
          place: '0000:3b:00.4'
          uuid: null
          params: {}
          users: ['process 4242 (qemu-system-x86, virtual machine ocr)']
    types:
      description: Types that it has, each with RV(ignore:type), RV(ignore:available) (at how many places one more can be made now) and
        RV(ignore:most) (the most of one GPU, V(none) where the host does not tell).
      type: list
      elements: dict
      sample: [{type: A100D-10C, available: 15, most: 8}]
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_run import Options, info

SPEC: dict[str, t.Any] = {
    "gpus": {"type": "list", "elements": "str", "default": []},
    "nvidia_smi": {"type": "path", "default": "nvidia-smi"},
    "machine_id": {"type": "path", "default": "/etc/machine-id"},
    "libvirt_dir": {"type": "path", "default": "/etc/libvirt/qemu"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "proc_root": {"type": "path", "default": "/proc"},
    "sys_root": {"type": "path", "default": "/sys"},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params
    options = Options(
        state_dir=Path(params["state_dir"]),
        sys_root=Path(params["sys_root"]),
        proc_root=Path(params["proc_root"]),
        machine_id=Path(params["machine_id"]),
        libvirt_dir=Path(params["libvirt_dir"]),
        nvidia_smi=params["nvidia_smi"],
        check=True,
    )
    try:
        gpus = info(params["gpus"], options)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, gpus=gpus)


if __name__ == "__main__":
    main()
