#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mode_wish
short_description: Hold the modes that GPUs shall have against the inventory, and write them there
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Finds the GPUs that are named on their hosts, and compares the mode that is asked for with C(fleet_gpu_layouts) of the host.
    The inventory is the truth. Where it says something else, the module fails and says which entry to write, unless it may write that
    itself, which changes this entry and nothing else in the file of the host's variables.
  - Returns what modules M(gpuops.fleet.vgpu), M(gpuops.fleet.passthrough) and M(gpuops.fleet.mig) have to be told for it.
  - Fails in one line when a GPU is not there, is named twice, or cannot have this mode, as far as facts tell. Nothing is written then.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
options:
  hosts:
    description: Hosts, as M(gpuops.fleet.plan) takes them, with their plans.
    type: dict
    required: true
  gpu:
    description: UUIDs or PCI addresses of GPUs, a list or text with commas.
    type: raw
    required: true
  mode:
    description: The mode. If left out, what the inventory says.
    type: str
  with:
    description: Further fields of an entry that is written, such as C(vgpus) or C(slices).
    type: dict
    default: {}
  inventory:
    description: Directory of the inventory, in which C(host_vars) is.
    type: path
    required: true
  write_inventory:
    description: Whether the inventory may be written.
    type: bool
    default: false
seealso:
  - module: gpuops.fleet.mode_plan
"""

EXAMPLES = r"""
- name: See whether the inventory says so
  gpuops.fleet.mode_wish:
    hosts: "{{ groups['gpu_hosts'] | gpuops.fleet.fleet_hosts(hostvars, inventory_dir ~ '/facts', inventory_dir ~ '/plans') }}"
    gpu: '0000:3b:00.0'
    mode: passthrough
    inventory: "{{ inventory_dir }}"
  run_once: true
"""

RETURN = r"""
wishes:
  description:
    - For each host of a GPU that is named, C(targets) (the GPUs, each with C(host), C(pci), C(uuid), C(was), C(mig) and C(layout)),
      C(work) (what modules are told), C(companions), C(projects) (of the plan on these GPUs), C(left_by) (who drained one of them by a run
      of playbook C(mode) that did not come to its end) and C(layouts) (C(fleet_gpu_layouts) as it is then).
  returned: success
  type: dict
  sample: {}
files:
  description: Files of the inventory that say something else, and are written where that is allowed.
  returned: success
  type: list
  elements: str
  sample: [inventory/host_vars/gpu-01.yml]
"""
