#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring GPUs to the vGPUs that are wished."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu
short_description: Give virtual machines parts of GPUs
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Brings the GPUs that are named to the vGPUs that are wished, with the smallest change. What is already as wished stays, with the guest
    that uses it; GPUs that are not named are not touched.
  - Which framework a GPU has is seen on the host at run time, mediated devices (mdev) or the vendor's own on virtual functions.
    Types are named, and found by name in what the host lists, because their numbers differ from driver to driver.
  - Before the first change the module proves, as far as it can be known, that every wish can stand on its GPU. One impossible wish, or one
    vGPU in use that would have to go, and nothing is changed on any GPU.
  - In use is what a process has open through VFIO, and what a guest of libvirt is defined with, whether it runs or not.
  - Mediated devices get names (UUIDs) of the host, GPU, type and number, so that a guest finds the same ones after every run and boot.
  - If a step fails, what was there before is put back and the message says which step failed, with the kernel's own word.
    If the module or the host dies in the middle, the next run brings the GPUs to the wish from wherever they are.
  - A write that the kernel does not answer is left alone at its deadline, and the message names the process that waits and for whom.
  - Neither vGPUs nor virtual functions survive a boot. The wish is kept in C(vgpus.json) below O(state_dir), and
    C(gpuops-fleet-agent vgpus) brings it back.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.attributes.door
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.sys
attributes:
  check_mode:
    support: full
    details:
      - Predicts the steps that a run takes.
      - While virtual functions are off, the names of mediated devices on them are known after apply, and so is whether the driver
        offers the types that are wished.
options:
  gpus:
    description:
      - GPUs and the vGPUs that they shall have.
    type: list
    elements: dict
    default: []
    suboptions:
      gpu:
        description: UUID or PCI address of a GPU. One of it and O(gpus[].parent) is needed.
        type: str
      parent:
        description:
          - Another parent of mediated devices, by its name in C(/sys/class/mdev_bus), such as V(mtty) of the kernel's samples.
          - Its types are named by name or by directory (V(mtty-1)).
        type: str
      vgpus:
        description:
          - All vGPUs that the GPU shall have; others are removed.
          - If left out, the vGPUs that are there stay.
        type: list
        elements: dict
        suboptions:
          type:
            description:
              - Type as the host lists it (V(NVIDIA A100D-10C)) or short (V(A100D-10C)).
              - A type such as V(A100D-1-10C) is backed by a GPU instance, which module M(gpuops.fleet.mig) makes before.
            type: str
            required: true
          count:
            description: How many of them.
            type: int
            default: 1
          gpu_instance:
            description:
              - A GPU instance that has to be there for it, as V(1g.10gb@0). Which one it gets is the driver's choice.
            type: str
          placement:
            description: Placement id in mixed-size mode, one that C(nvidia-smi vgpu -c -v) lists.
            type: int
          params:
            description:
              - Parameters of the plugin (C(vgpu_params)), such as V(frame_rate_limiter), V(disable_vnc), V(enable_uvm),
                V(enable_debugging) and V(enable_profiling).
              - If left out, it keeps those that it has; V({}) clears them. They are written only while nobody uses the vGPU.
            type: dict
      mixed:
        description:
          - Whether vGPUs of different sizes share the GPU (mixed-size mode). It changes only while the GPU has none.
        type: bool
        default: false
      scheduler:
        description:
          - How time-sliced vGPUs share the GPU's time, set at run time. It changes only while the GPU has none.
          - If left out, the policy stays as it is.
        type: dict
        suboptions:
          policy:
            description: Which policy.
            type: str
            required: true
            choices: [best-effort, equal-share, fixed-share]
          slice_ms:
            description: Length of a time slice in milliseconds, 1 to 30. Switches the round robin that adapts itself off.
            type: int
          frequency_hz:
            description: How many rounds in a second, 63 to 960, with the round robin that adapts itself.
            type: int
      vfs:
        description:
          - With V(auto), virtual functions are switched on where the vGPUs that are wished need them, with O(sriov_manage).
          - With V(off), they are switched off; only with O(gpus[].vgpus=[]).
        type: str
        choices: [auto, 'off']
        default: auto
      instances:
        description:
          - GPU instances that module M(gpuops.fleet.mig) makes earlier in the same play, as V(1g.10gb@0).
          - In check mode, where they are not made, they count as there. Otherwise it has no effect.
        type: list
        elements: str
  config:
    description:
      - File in the v1 format of NVIDIA vgpu-device-manager (C(vgpu-configs)), on the controller. Needs O(label).
    type: path
  label:
    description:
      - Which of the labels in O(config).
    type: str
  selectors:
    description:
      - Entries of such a file as plain data. The action plugin of this module fills it from O(config) and O(label).
    type: list
    elements: dict
    default: []
  limits:
    description:
      - How many vGPUs of a type a GPU has at most, by type, for what the host does not tell. The action plugin fills it.
    type: dict
    default: {}
  sriov_manage:
    description:
      - NVIDIA's program that switches virtual functions.
    type: path
    default: /usr/lib/nvidia/sriov-manage
  nvidia_smi:
    description:
      - Name or path of the program that reads and sets mixed-size mode and scheduler.
    type: path
    default: nvidia-smi
  cleared:
    description:
      - Whether earlier tasks of the same play stop who is on the GPUs and take their MIG mode away.
      - In check mode, where that is not done, it counts as done. Otherwise it has no effect.
    type: bool
    default: false
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
  deadline:
    description:
      - How long one write may wait in the kernel, in seconds.
    type: float
    default: 30
requirements:
  - root
  - NVIDIA's vGPU host driver for NVIDIA's GPUs
  - nvidia-ml-py (Python package) on the host, for what NVML knows beside sysfs, GPU instances above all
seealso:
  - module: gpuops.fleet.vgpu_info
  - module: gpuops.fleet.mig
"""

EXAMPLES = r"""
- name: Eight equal vGPUs on one GPU
  gpuops.fleet.vgpu:
    gpus:
      - gpu: '0000:3b:00.0'
        vgpus:
          - {type: A100D-10C, count: 8}

- name: Two vGPUs that are backed by GPU instances
  gpuops.fleet.vgpu:
    gpus:
      - gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
        vgpus:
          - {type: A100D-3-40C, count: 2}

- name: Sizes side by side, with a scheduler
  gpuops.fleet.vgpu:
    gpus:
      - gpu: '0000:3b:00.0'
        mixed: true
        scheduler: {policy: equal-share, frequency_hz: 480}
        vgpus:
          - {type: A100D-40C}
          - {type: A100D-20C, count: 2, params: {enable_uvm: 1}}

- name: Take all of them away, and the virtual functions
  gpuops.fleet.vgpu:
    gpus:
      - gpu: '0000:3b:00.0'
        vgpus: []
        vfs: 'off'

- name: Use a file of vgpu-device-manager
  gpuops.fleet.vgpu:
    config: "{{ inventory_dir }}/vgpu.yaml"
    label: A100D-10C
"""

RETURN = r"""
steps:
  description: What was done, or in check mode would be done, in this order.
  returned: success
  type: list
  elements: str
  sample:
    - "0000:3b:00.0: virtual functions on (sriov-manage -e)"
    - "0000:3b:00.0: create A100D-10C on 0000:3b:00.4"
diff:
  description: Virtual functions, modes and vGPUs of the named GPUs, one a line, before and after.
  returned: success
  type: dict
  contains:
    before:
      description: As found.
      type: str
      sample: |
        0000:3b:00.0 virtual functions off
    after:
      description: As left, or in check mode as predicted.
      type: str
      sample: |
        0000:3b:00.0 virtual functions on
        0000:3b:00.0 A100D-10C on 0000:3b:00.4
gpus:
  description: The named GPUs after the run, or in check mode as predicted.
  returned: success
  type: list
  elements: dict
  contains:
    gpu:
      description: PCI address, or name of the parent.
      type: str
      sample: '0000:3b:00.0'
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
    mixed:
      description: Whether mixed-size mode is on. V(none) where the driver does not tell.
      type: bool
      sample: false
    scheduler:
      description: The scheduler, as far as it was asked for.
      type: str
      sample: equal-share 480 Hz
    vgpus:
      description: The vGPUs, each with RV(ignore:type), RV(ignore:place), RV(ignore:uuid), RV(ignore:params) and RV(ignore:users).
        The place is the virtual function, which a guest gets as a PCI device in the vendor's framework, or the parent.
        The UUID is that of a mediated device.
      type: list
      elements: dict
      sample: [{type: A100D-10C, place: '0000:3b:00.4', uuid: null, params: {}, users: []}]
notes:
  description: What else is worth knowing, such as an earlier run that did not come to its end.
  returned: success
  type: list
  elements: str
  sample: []
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_room import Limit
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_run import Options, apply

_VGPU: dict[str, t.Any] = {
    "type": {"type": "str", "required": True},
    "count": {"type": "int", "default": 1},
    "gpu_instance": {"type": "str"},
    "placement": {"type": "int"},
    "params": {"type": "dict"},
}
_SCHEDULER: dict[str, t.Any] = {
    "policy": {"type": "str", "required": True, "choices": ["best-effort", "equal-share", "fixed-share"]},
    "slice_ms": {"type": "int"},
    "frequency_hz": {"type": "int"},
}
_GPU: dict[str, t.Any] = {
    "gpu": {"type": "str"},
    "parent": {"type": "str"},
    "vgpus": {"type": "list", "elements": "dict", "options": _VGPU},
    "mixed": {"type": "bool", "default": False},
    "scheduler": {"type": "dict", "options": _SCHEDULER},
    "vfs": {"type": "str", "choices": ["auto", "off"], "default": "auto"},
    "instances": {"type": "list", "elements": "str"},
}
SPEC: dict[str, t.Any] = {
    "gpus": {"type": "list", "elements": "dict", "default": [], "options": _GPU},
    "config": {"type": "path"},
    "label": {"type": "str"},
    "selectors": {"type": "list", "elements": "dict", "default": []},
    "limits": {"type": "dict", "default": {}},
    "sriov_manage": {"type": "path", "default": "/usr/lib/nvidia/sriov-manage"},
    "nvidia_smi": {"type": "path", "default": "nvidia-smi"},
    "machine_id": {"type": "path", "default": "/etc/machine-id"},
    "libvirt_dir": {"type": "path", "default": "/etc/libvirt/qemu"},
    "deadline": {"type": "float", "default": 30},
    "cleared": {"type": "bool", "default": False},
    "lease": {"type": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "proc_root": {"type": "path", "default": "/proc"},
    "sys_root": {"type": "path", "default": "/sys"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError for a wish that is refused and for a step that failed."""
    if params["config"] is not None:
        raise FleetError("such a file is read on the controller", field="config", hint="call it as gpuops.fleet.vgpu in a playbook")
    options = Options(
        state_dir=Path(params["state_dir"]),
        sys_root=Path(params["sys_root"]),
        proc_root=Path(params["proc_root"]),
        machine_id=Path(params["machine_id"]),
        libvirt_dir=Path(params["libvirt_dir"]),
        sriov_manage=params["sriov_manage"],
        nvidia_smi=params["nvidia_smi"],
        deadline=params["deadline"],
        limits={name: Limit(**limit) for name, limit in params["limits"].items()},
        token=params["lease"],
        check=check,
        cleared=params["cleared"],
    )
    result = apply(params["gpus"], params["selectors"], options)
    return {
        "changed": result.changed,
        "steps": result.steps,
        "diff": {"before": result.before, "after": result.after},
        "gpus": result.gpus,
        "notes": result.notes,
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
