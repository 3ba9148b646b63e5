#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring GPUs to a MIG layout."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig
short_description: Cut GPUs into MIG slices
version_added: 0.1.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Brings the GPUs that are named to the MIG mode and the slices that are wished, with the smallest change.
    What is already as wished stays, with the containers on it; GPUs that are not named are not touched.
  - Before the first change the module proves, from the placements that the driver reports, that every wish can stand on its GPU.
    One impossible wish, or one slice in use that would have to go, and nothing is changed on any GPU.
  - In use is what a process computes on or has open, what a container that is not removed asked for by name, running or not,
    and what a virtual machine was given. An engine that does not answer counts as one that holds everything.
  - If a step fails, the layout from before is put back and the message says which step failed, with NVML's own word. While an error lasts,
    everything that can be is put back, and the message names the slices that are missing.
    If the module or the host dies in the middle, the next run brings the GPUs to the wish from wherever they are.
  - A profile is found by its compute slices and attributes, however a driver rounded its GB, so that V(3g.39gb) finds V(3g.40gb).
  - A mode that is not in force after the run is in RV(pending), with the reason. No slice is made on such a GPU.
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
      - A board whose mode change may wait for a reset (Ampere) is predicted to wait.
        If the driver brings the mode into force at once, the run goes on and makes the slices as well.
      - That a virtual machine cannot reset its GPU is known before where the kernel offers no reset, else only when C(nvidia-smi) says so.
      - Drivers up to R535 show what a board can be cut into only while MIG is on. Until then, where a slice will be is known after apply.
options:
  layout:
    description:
      - GPUs and what they shall be.
    type: list
    elements: dict
    default: []
    suboptions:
      gpu:
        description:
          - UUID, PCI address (any case, domain of four or eight digits or none) or index of a GPU.
          - An index may mean another GPU after a change of hardware.
        type: str
        required: true
      mig:
        description: Whether MIG is on.
        type: bool
        default: true
      instances:
        description:
          - All slices that the GPU shall have; others are destroyed. Each is a GPU instance with compute instances.
          - If left out, the slices that are there stay.
        type: list
        elements: dict
        suboptions:
          profile:
            description:
              - MIG profile, as in V(1g.10gb) or V(1g.10gb+me).
              - V(1c.3g.20gb) is a compute instance of one compute slice in a slice 3g.20gb.
                Several share one such slice as far as it holds them.
            type: str
            required: true
          start:
            description:
              - Memory slice at which it starts.
              - If left out, one is chosen so that the fewest slices that exist have to go, and then so that what stays free is of most use.
            type: int
          count:
            description: How many of them; only without O(layout[].instances[].start), or for compute instances.
            type: int
            default: 1
          compute:
            description:
              - What is made of the slice's compute instances, without which nobody can use it.
              - With V(full), a slice that has none is given one that fills it. One that is cut further stays so.
              - With V(exact), it has one that fills it and no other. So layout files are read.
              - With V(keep), a slice that is there keeps what it has, even nothing; only with O(layout[].instances[].start).
            type: str
            choices: [full, exact, keep]
            default: full
          temporary:
            description:
              - The slice is there for a while only, as for the new version of a service beside the old one.
                The host remembers that, also when whoever made it dies. Its facts tell it, and plans leave such a slice out.
              - Only with O(layout[].instances[].start).
            type: bool
            default: false
            version_added: 0.2.0
  config:
    description:
      - Layout file in the v1 format of NVIDIA mig-parted, on the controller. Needs O(label).
    type: path
  label:
    description:
      - Which of the layouts in O(config).
    type: str
  selectors:
    description:
      - Entries of a layout file as plain data. The action plugin of this module fills it from O(config) and O(label).
    type: list
    elements: dict
    default: []
  reset:
    description:
      - Whether a GPU whose mode waits for a reset may be reset, with C(nvidia-smi -r). Exactly that GPU, and only when nothing uses it.
      - If not, the mode stays pending.
    type: bool
    default: false
  nvidia_smi:
    description:
      - Name or path of the program that resets a GPU, for which NVML has no call.
    type: path
    default: nvidia-smi
  drain:
    description:
      - If containers of this collection (label C(gpuops.service)) are in the way and nobody else is,
        name them in RV(drain) and change nothing, instead of failing. Whoever asked stops them and calls again.
    type: bool
    default: false
    version_added: 0.2.0
  drained:
    description:
      - Replicas (compose projects) that were stopped for this change.
      - In check mode, where they still run, they count as stopped. Otherwise it has no effect.
    type: list
    elements: str
    default: []
    version_added: 0.2.0
  driver_services:
    description:
      - Systemd units that hold the driver. Those of them that run are stopped while a GPU changes its mode or is reset,
        and started again whatever happens; after a crash, the next run starts them.
    type: list
    elements: str
    default: []
    version_added: 0.2.0
  systemctl:
    description:
      - Name or path of the program that stops and starts them. A host without it has no such services.
    type: path
    default: systemctl
    version_added: 0.2.0
  remember:
    description:
      - Whether the host keeps this layout to bring it back after a boot, which C(gpuops-fleet-agent restore) does.
    type: bool
    default: true
    version_added: 0.2.0
  docker_socket:
    description:
      - Unix socket of the Docker engine. Empty, or where no such file is, the host has no engine.
    type: path
    default: /var/run/docker.sock
    version_added: 0.2.0
  sys_root:
    version_added: 0.2.0
requirements:
  - nvidia-ml-py (Python package) on the host
  - root
seealso:
  - module: gpuops.fleet.gpu_info
  - module: gpuops.fleet.slice_env
"""

EXAMPLES = r"""
- name: Cut one GPU for six small models and a larger one
  gpuops.fleet.mig:
    layout:
      - gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
        instances:
          - {profile: 1g.20gb, start: 6}
          - {profile: 1g.10gb, count: 6}

- name: Give a GPU back as a whole
  gpuops.fleet.mig:
    layout:
      - gpu: '0000:07:00.0'
        mig: false
    reset: true

- name: Use a layout file of mig-parted
  gpuops.fleet.mig:
    config: "{{ inventory_dir }}/mig.yaml"
    label: all-balanced
"""

RETURN = r"""
steps:
  description: What was done, or in check mode would be done, in this order.
  returned: success
  type: list
  elements: str
  sample:
    - "GPU-5c1f: destroy 1g.10gb at memory slice 6"
    - "GPU-5c1f: create 1g.20gb at memory slice 6"
diff:
  description: Mode and slices of the named GPUs, one a line, before and after.
  returned: success
  type: dict
  contains:
    before:
      description: As found.
      type: str
      sample: |
        GPU-5c1f MIG on
        GPU-5c1f 1g.10gb@6
    after:
      description: As left, or in check mode as predicted.
      type: str
      sample: |
        GPU-5c1f MIG on
        GPU-5c1f 1g.20gb@6
pending:
  description: GPUs whose wished mode is not in force. Nothing else was done on them.
  returned: success
  type: list
  elements: dict
  contains:
    gpu:
      description: UUID.
      type: str
      sample: GPU-5c1f
    reason:
      description: What it waits for.
      type: str
      sample: it waits for a reset of the GPU
reset_required:
  description: Whether a GPU has to be reset before the wish is true. O(reset=true) does it.
  returned: success
  type: bool
  sample: false
reboot_required:
  description: Whether something waits that a reboot of the host, too, brings into force. True when RV(pending) is not empty.
  returned: success
  type: bool
  sample: false
layout:
  description: The named GPUs after the run, or in check mode as predicted.
  returned: success
  type: list
  elements: dict
  contains:
    gpu:
      description: UUID.
      type: str
      sample: GPU-5c1f
    pci:
      description: PCI address.
      type: str
      sample: '0000:07:00.0'
    mig:
      description: Whether MIG is on. V(none) when the board has no MIG.
      type: bool
      sample: true
    pending:
      description: Whether MIG is on after the next reset.
      type: bool
      sample: true
    instances:
      description: Slices with RV(ignore:profile), RV(ignore:start) and RV(ignore:uuid), by start.
      type: list
      elements: dict
      sample: [{profile: 1g.20gb, start: 6, uuid: MIG-2d2f8f7e-6b0a-5a57-8c88-1f0f0f3b6f0e}]
drain_needed:
  description: Whether somebody has to be stopped first. Nothing was changed then.
  returned: success
  type: bool
  sample: false
drain:
  description: Containers of this collection that are in the way, with O(drain=true).
  returned: success
  type: list
  elements: dict
  contains:
    service:
      description: The service, by the container's label.
      type: str
      sample: receipt-ocr
    name:
      description: The replica, which is the compose project.
      type: str
      sample: receipt-ocr-1
    container:
      description: Name of the container.
      type: str
      sample: receipt-ocr-1-app-1
    pids:
      description: Its processes on the GPU.
      type: list
      elements: int
      sample: [4242]
    slices:
      description: What it holds, each with RV(ignore:gpu), and RV(ignore:profile) and RV(ignore:start) unless it is the GPU itself.
      type: list
      elements: dict
      sample: [{gpu: GPU-5c1f, profile: 1g.20gb, start: 6}]
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
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_run import Options, apply

_INSTANCE: dict[str, t.Any] = {
    "profile": {"type": "str", "required": True},
    "start": {"type": "int"},
    "count": {"type": "int", "default": 1},
    "compute": {"type": "str", "choices": ["full", "exact", "keep"], "default": "full"},
    "temporary": {"type": "bool", "default": False},
}
_GPU: dict[str, t.Any] = {
    "gpu": {"type": "str", "required": True},
    "mig": {"type": "bool", "default": True},
    "instances": {"type": "list", "elements": "dict", "options": _INSTANCE},
}
SPEC: dict[str, t.Any] = {
    "layout": {"type": "list", "elements": "dict", "default": [], "options": _GPU},
    "config": {"type": "path"},
    "label": {"type": "str"},
    "selectors": {"type": "list", "elements": "dict", "default": []},
    "reset": {"type": "bool", "default": False},
    "nvidia_smi": {"type": "path", "default": "nvidia-smi"},
    "drain": {"type": "bool", "default": False},
    "drained": {"type": "list", "elements": "str", "default": []},
    "driver_services": {"type": "list", "elements": "str", "default": []},
    "systemctl": {"type": "path", "default": "systemctl"},
    "remember": {"type": "bool", "default": True},
    "lease": {"type": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "proc_root": {"type": "path", "default": "/proc"},
    "sys_root": {"type": "path", "default": "/sys"},
    "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError for a wish that is refused and for a step that failed."""
    if params["config"] is not None:
        raise FleetError("a layout file is read on the controller", field="config", hint="call it as gpuops.fleet.mig in a playbook")
    options = Options(
        state_dir=Path(params["state_dir"]),
        proc_root=Path(params["proc_root"]),
        nvidia_smi=params["nvidia_smi"],
        reset=params["reset"],
        token=params["lease"],
        check=check,
        sys_root=Path(params["sys_root"]),
        docker_socket=params["docker_socket"],
        drain=params["drain"],
        drained=tuple(params["drained"]),
        driver_services=tuple(params["driver_services"]),
        systemctl=params["systemctl"],
        remember=params["remember"],
    )
    result = apply(params["layout"], params["selectors"], options)
    waits = bool(result.pending)
    return {
        "changed": result.changed,
        "steps": result.steps,
        "diff": {"before": result.before, "after": result.after},
        "pending": result.pending,
        "reset_required": waits,
        "reboot_required": waits,
        "layout": result.layout,
        "drain_needed": bool(result.drain),
        "drain": result.drain,
        "notes": result.notes,
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    for note in [*result["notes"], *(f"GPU {entry['gpu']}: {entry['reason']}" for entry in result["pending"])]:
        module.warn(note)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
