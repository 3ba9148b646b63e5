#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring the settings of GPUs to what is wished."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_settings
short_description: Set persistence, power limit, clocks, ECC, compute mode and time slice of GPUs
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Brings the named settings of the named GPUs to what is wished. Nothing else is touched.
  - Every wish is checked against what the board says it can do before the first change. Every setting is read back after it was written;
    when the board took it and does not have it, or a later step fails, what was changed before is put back and the module fails.
  - What is set is remembered on the host in C(gpu-settings.json) below O(state_dir), because a reboot undoes all of it but ECC. The host
    agent writes it again when the host boots.
  - NVML has no call that tells whether a clock is locked. A lock counts as in force when this module set it during this boot of the host
    and the clock is not above it; otherwise it is set again.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
options:
  gpus:
    description:
      - GPUs with what they shall have. Each setting of a GPU in one entry only.
    type: list
    elements: dict
    required: true
    suboptions:
      gpu:
        description:
          - UUID, PCI address or index of the GPU, or V(all). An entry for all gives way to one that names the GPU, and passes over
            boards that cannot have a setting.
        type: str
        required: true
      state:
        description:
          - With V(absent), what this module has set on the GPU is forgotten, and what the driver comes with is restored.
        type: str
        choices:
          - present
          - absent
        default: present
      persistence:
        description: Whether the driver stays loaded for the GPU when nobody uses it.
        type: bool
      power_limit_w:
        description: Power limit in W.
        type: int
      graphics_clock_mhz:
        description: Least and most MHz of the graphics clock as a list, or V(reset). Volta and newer.
        type: raw
      memory_clock_mhz:
        description: Least and most MHz of the memory clock as a list, or V(reset). Ampere and newer.
        type: raw
      ecc:
        description: Whether ECC is on. A new mode waits for a reset of the GPU or a reboot, and is in RV(pending) until then.
        type: bool
      compute_mode:
        description:
          - Who may compute on the GPU. V(exclusive_process) is refused while MIG is on, and every mode on a GPU that
            M(gpuops.fleet.mps) shares.
        type: str
        choices:
          - default
          - exclusive_process
          - prohibited
      time_slice:
        description:
          - How long a process computes before the next one has its turn, on a GPU that several share. Refused while MIG is on, and unless
            the compute mode is V(default).
        type: str
        choices:
          - default
          - short
          - medium
          - long
  only:
    description:
      - Settings that this run looks at. Others are neither changed nor restored, though O(gpus) names them.
    type: list
    elements: str
    choices:
      - persistence
      - ecc
      - compute_mode
      - time_slice
      - power_limit_w
      - graphics_clock_mhz
      - memory_clock_mhz
    default:
      - persistence
      - ecc
      - compute_mode
      - time_slice
      - power_limit_w
      - graphics_clock_mhz
      - memory_clock_mhz
  purge:
    description:
      - Whether what this module has set before, and O(gpus) names no more, is restored to what the driver comes with.
    type: bool
    default: false
  nvidia_smi:
    description:
      - Name or path of the program that sets the time slice, for which NVML has no call.
    type: path
    default: nvidia-smi
requirements:
  - nvidia-ml-py (Python package) on the host
  - root
seealso:
  - module: gpuops.fleet.mig
  - module: gpuops.fleet.mps
"""

EXAMPLES = r"""
- name: Keep all GPUs ready and cool, and share one of them by long turns
  gpuops.fleet.gpu_settings:
    gpus:
      - {gpu: all, persistence: true, power_limit_w: 300}
      - {gpu: '0000:0b:00.0', time_slice: long}

- name: Hold the clocks of a GPU steady for measurements
  gpuops.fleet.gpu_settings:
    gpus:
      - gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
        graphics_clock_mhz: [1200, 1200]

- name: Give the GPU back as the driver has it
  gpuops.fleet.gpu_settings:
    gpus:
      - {gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e, state: absent}
"""

RETURN = r"""
steps:
  description: What was done, or in check mode would be done, in this order.
  returned: success
  type: list
  elements: str
  sample: ["GPU-5c1f: set power_limit_w from 400 to 300"]
diff:
  description: The settings that were looked at, one a line, before and after.
  returned: success
  type: dict
  contains:
    before:
      description: As found.
      type: str
      sample: |
        GPU-5c1f power_limit_w 400
    after:
      description: As left, or in check mode as predicted.
      type: str
      sample: |
        GPU-5c1f power_limit_w 300
settings:
  description: The settings that were looked at after the run, or in check mode as predicted, by UUID.
  returned: success
  type: dict
  sample: {GPU-5c1f: {power_limit_w: 300}}
pending:
  description: Settings that were written and are not in force.
  returned: success
  type: list
  elements: dict
  contains:
    gpu:
      description: UUID.
      type: str
      sample: GPU-5c1f
    setting:
      description: Which one.
      type: str
      sample: ecc
    reason:
      description: What it waits for.
      type: str
      sample: ECC is on until the GPU is reset or the host reboots
reboot_required:
  description: Whether something waits that a reboot of the host brings into force. True when RV(pending) is not empty.
  returned: success
  type: bool
  sample: false
notes:
  description: What else is worth knowing, such as a power limit that is lost without persistence.
  returned: success
  type: list
  elements: str
  sample: []
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.gpu_settings import (
    COMPUTE_MODES,
    SETTINGS,
    TIME_SLICES,
    Options,
    Result,
    apply,
    lines_of,
)

_GPU: dict[str, t.Any] = {
    "gpu": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "persistence": {"type": "bool"},
    "power_limit_w": {"type": "int"},
    "graphics_clock_mhz": {"type": "raw"},
    "memory_clock_mhz": {"type": "raw"},
    "ecc": {"type": "bool"},
    "compute_mode": {"type": "str", "choices": list(COMPUTE_MODES)},
    "time_slice": {"type": "str", "choices": list(TIME_SLICES)},
}
SPEC: dict[str, t.Any] = {
    "gpus": {"type": "list", "elements": "dict", "required": True, "options": _GPU},
    "only": {"type": "list", "elements": "str", "choices": list(SETTINGS), "default": list(SETTINGS)},
    "purge": {"type": "bool", "default": False},
    "nvidia_smi": {"type": "path", "default": "nvidia-smi"},
    "proc_root": {"type": "path", "default": "/proc"},
    "lease": {"type": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> Result:
    """What was done, or with ``check`` would be. FleetError for a wish that is refused and a write that failed."""
    options = Options(
        state_dir=Path(params["state_dir"]),
        nvidia_smi=params["nvidia_smi"],
        proc_root=Path(params["proc_root"]),
        only=tuple(params["only"]),
        purge=params["purge"],
        token=params["lease"] or None,
        check=check,
    )
    return apply(params["gpus"], options)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    for note in [*result.notes, *(f"GPU {entry['gpu']}: {entry['reason']}" for entry in result.pending)]:
        module.warn(note)
    module.exit_json(
        changed=bool(result.steps),
        steps=result.steps,
        diff={"before": lines_of(result.before), "after": lines_of(result.after)},
        settings=result.after,
        pending=result.pending,
        reboot_required=bool(result.pending),
        notes=result.notes,
    )


if __name__ == "__main__":
    main()
