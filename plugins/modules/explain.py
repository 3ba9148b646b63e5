#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: explain
short_description: Say where the memory and SMs of a GPU or a layout are
version_added: 0.2.0
description:
  - For GPUs of hosts, or for a layout on a kind of board, the memory and the streaming multiprocessors (SMs) that are used, free and
    out of reach, why they are, and the layouts that reach them.
  - A whole GPU has the SMs of its largest MIG profile here.
  - Reads and changes nothing on a host; a kind of board needs none.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.info_module
options:
  hosts:
    description:
      - For each host a dictionary with C(facts) and C(plan), as the filter P(gpuops.fleet.fleet_hosts#filter) gives it.
    type: dict
    default: {}
  gpu:
    description: UUID, PCI address or index of the one GPU that is explained. If left out, every GPU of O(hosts) is.
    type: str
  board:
    description:
      - In place of a GPU, a kind of board by its name in the catalogue (V(a100-sxm4-80gb)), its product name, or the kind that several
        boards share (V(a100-80gb)). Needs O(layout).
    type: str
  layout:
    description:
      - A layout to be explained in place of what a GPU has, such as V(7x1g.10gb), V(6x1g.10gb + 1g.20gb) or V(3g.40gb@0, 1g.10gb@4).
    type: str
seealso:
  - module: gpuops.fleet.gpu_info
  - module: gpuops.fleet.report
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: See what seven small slices give
  gpuops.fleet.explain:
    board: a100-80gb
    layout: 7x1g.10gb
  register: explained
"""

RETURN = r"""
table:
  description: The answer for people.
  returned: success
  type: list
  elements: str
  sample:
    - "7 \u00d7 1g.10gb uses 7 of 8 memory slices: 11.1 GiB out of reach; 6 \u00d7 1g.10gb + 1 \u00d7 1g.20gb reaches it"
gpus:
  description: The same as data, for each GPU or for the board.
  returned: success
  type: list
  elements: dict
  contains:
    sentence:
      description: All of it in one line.
      returned: always
      type: str
      sample: "7 \u00d7 1g.10gb uses 7 of 8 memory slices: 11.1 GiB out of reach; 6 \u00d7 1g.10gb + 1 \u00d7 1g.20gb reaches it"
    used:
      description: What the slices have; C(free), C(out_of_reach) and C(total) have the same parts.
      returned: for a GPU in MIG mode and for layouts
      type: dict
      sample: {memory_slices: 7, memory_mib: 68992, sm: 98}
    why:
      description: The rule that keeps something out of reach; empty when nothing is.
      returned: for a GPU in MIG mode and for layouts
      type: str
      sample: all 7 compute slices are in slices, and memory alone makes none
    better:
      description: Layouts that reach it, nearest first.
      returned: for a GPU in MIG mode and for layouts
      type: list
      elements: str
      sample: []
"""
