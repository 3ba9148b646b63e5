#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: replace
short_description: Write plans anew after a board was exchanged
version_added: 0.2.0
description:
  - Compares hosts with their plans and with the facts published last. Where a GPU is gone, and a new one of the same model, memory and MIG
    geometry stands in its slot (PCI address), the plan of the host is written with the new UUID, the next serial and, as its base, the
    state that is there now.
  - The host carries that plan out as any other. What the new board is to have is what the old one had.
  - Another model, another slot or an empty one is said and changes nothing. A host of which any GPU is missing keeps its plan as it is.
  - Lines of the inventory that name an old UUID are shown, and changed only with O(write_inventory=true).
  - Nothing is changed on a host.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.controller
options:
  hosts:
    description:
      - For each host a dictionary with C(facts) as they are now, as the filter P(gpuops.fleet.fleet_hosts#filter) gives it.
    type: dict
    required: true
  plans:
    description: Directory on the controller with the plans.
    type: path
    required: true
  facts:
    description: Directory on the controller with the facts that were published last.
    type: path
    required: true
  inventory:
    description: Directory on the controller in which lines that name an old UUID are looked for; plans and facts in it are left out.
    type: path
  write_inventory:
    description:
      - Whether those lines are changed. Nothing else of a file is, and it keeps its permissions. Hidden files and links are left alone.
    type: bool
    default: false
seealso:
  - module: gpuops.fleet.plan
  - module: gpuops.fleet.gpu_drain
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: See which boards were exchanged
  gpuops.fleet.replace:
    hosts: "{{ ansible_play_hosts | gpuops.fleet.fleet_hosts(hostvars, inventory_dir ~ '/facts') }}"
    plans: "{{ inventory_dir }}/plans"
    facts: "{{ inventory_dir }}/facts"
    inventory: "{{ inventory_dir }}"
  run_once: true
  check_mode: true
  diff: true
"""

RETURN = r"""
table:
  description: What was found, for people.
  returned: success
  type: list
  elements: str
  sample:
    - HOST         SLOT          BOARD           OLD       NEW       PLAN
    - gpu-prod-02  0000:07:00.0  a100-sxm4-80gb  GPU-5c1f  GPU-77ab  4
exchanges:
  description: Boards in the place of others, with C(host), C(pci), C(old), C(new) and C(model).
  returned: success
  type: list
  elements: dict
  sample: [{host: gpu-prod-02, pci: '0000:07:00.0', old: GPU-5c1f, new: GPU-77ab, model: a100-sxm4-80gb}]
refusals:
  description: GPUs that are gone and that no new one clearly replaces, and why.
  returned: success
  type: list
  elements: str
  sample: ['gpu-prod-02 GPU-5c1f (0000:07:00.0, a100-sxm4-80gb) is gone: its slot is empty']
mentions:
  description: Lines of the inventory that name an old UUID, with C(path), C(line), C(before) and C(after).
  returned: success
  type: list
  elements: dict
  sample: []
"""
