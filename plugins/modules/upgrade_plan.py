#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: upgrade_plan
short_description: Say what an upgrade of hosts, one after the other, would do to their services
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Plans, for each host in its turn, how its replicas leave it and where they are when it is there again, each plan made from the one
    before. Writes nothing.
  - Fails in one line when a replica cannot leave a host in its turn and may not be stopped, when a manifest asks for another version than
    the plan, because an upgrade brings none, or when a host cannot be read.
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
  order:
    description: Names of the hosts to upgrade, in order.
    type: list
    elements: str
    required: true
  work:
    description: For each of them, lines that say what is done there.
    type: dict
    default: {}
  outage:
    description: Whether a replica that finds no other place may be stopped for the time.
    type: bool
    default: false
seealso:
  - module: gpuops.fleet.plan
  - module: gpuops.fleet.upgrade_gate
"""

EXAMPLES = r"""
- name: See who would go where
  gpuops.fleet.upgrade_plan:
    manifests: "{{ inventory_dir }}/manifests"
    plans: "{{ inventory_dir }}/plans"
    hosts: "{{ groups['gpu_hosts'] | gpuops.fleet.fleet_hosts(hostvars, inventory_dir ~ '/facts') }}"
    order: [gpu-01, gpu-02]
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
    moves:
      description: Replicas that leave it, or move otherwise.
      type: list
      elements: str
      sample: [receipt-ocr-1 from gpu-01 to gpu-02]
    back:
      description: Replicas that move when it is there again.
      type: list
      elements: str
      sample: []
    stops:
      description: Replicas that are stopped for the time.
      type: list
      elements: str
      sample: []
    lines:
      description: All of it, for people.
      type: list
      elements: str
      sample: ['gpu-01: drain it; receipt-ocr-1 from gpu-01 to gpu-02']
"""
