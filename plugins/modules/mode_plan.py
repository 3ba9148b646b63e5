#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mode_plan
short_description: Say what happens to services while GPUs get another mode
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Plans, for each host in its turn, how replicas leave the GPUs that get another mode and where they are afterwards, each plan made
    from the one before. Writes nothing.
  - Fails in one line when a replica cannot leave and may not be stopped, when a manifest asks for another version than the plan, when a
    host cannot be read, or when a move concerns a host that this run leaves out.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
options:
  manifests:
    description: Directory on the controller with the manifests of all services.
    type: path
    required: true
  plans:
    description: Directory on the controller with the last plans.
    type: path
    required: true
  hosts:
    description: All hosts, as M(gpuops.fleet.plan) takes them.
    type: dict
    required: true
  templates:
    description: Directories with a site's own compose templates.
    type: list
    elements: path
    default: []
  images_file:
    description: File that playbook C(images) writes.
    type: path
  wishes:
    description: What M(gpuops.fleet.mode_wish) returned. Its C(layouts) rule over those of O(hosts).
    type: dict
    required: true
  steps:
    description: For each of their hosts, what the modules would do, in words.
    type: dict
    default: {}
  outage:
    description: Whether a replica that finds no other place may be stopped.
    type: bool
    default: false
  reached:
    description: Hosts of this run. If left out, all are.
    type: list
    elements: str
seealso:
  - module: gpuops.fleet.mode_wish
  - module: gpuops.fleet.plan
"""

EXAMPLES = r"""
- name: See who would go where
  gpuops.fleet.mode_plan:
    manifests: "{{ inventory_dir }}/manifests"
    plans: "{{ inventory_dir }}/plans"
    hosts: "{{ groups['gpu_hosts'] | gpuops.fleet.fleet_hosts(hostvars, inventory_dir ~ '/facts') }}"
    wishes: "{{ wished.wishes }}"
    steps: {gpu-01: ['GPU-5c1f: MIG off']}
  run_once: true
"""

RETURN = r"""
turns:
  description: What happens at the turn of each host.
  returned: success
  type: list
  elements: dict
  contains:
    host:
      description: The host.
      type: str
      sample: gpu-01
    due:
      description: Whether anything is to be done.
      type: bool
      sample: true
    emptied:
      description: GPUs that are drained for it, by UUID.
      type: list
      elements: str
      sample: [GPU-5c1f]
    moves:
      description: Replicas that leave them, or move otherwise.
      type: list
      elements: str
      sample: [receipt-ocr-1 from gpu-01 to gpu-02]
    back:
      description: Replicas that move when the GPUs have their modes.
      type: list
      elements: str
      sample: []
    stops:
      description: Replicas without a place meanwhile.
      type: list
      elements: str
      sample: []
    out:
      description: Replicas without a place in the end.
      type: list
      elements: str
      sample: []
    lines:
      description: All of it, for people.
      type: list
      elements: str
      sample: ['gpu-01: 0000:3b:00.0 from whole to passthrough']
"""
