#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Draw the fleet as one HTML file
version_added: 0.1.0
description:
  - Draws every GPU with its slices in proportion, coloured by team, with unused, free and stranded memory, and puts tables beside it,
    for services, teams, unplaced services, stranded memory and hosts.
  - The file needs nothing else. It has no script and fetches nothing, so it can be mailed, archived, printed and read offline.
  - The same facts, plans, manifests and policies give the same bytes. A second run on an unchanged fleet changes nothing.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.full
options:
  hosts:
    description:
      - For each host its C(facts), which M(gpuops.fleet.gpu_info) returns, and its C(policy), which are its inventory variables.
      - The filter P(gpuops.fleet.fleet_hosts#filter) gathers both.
      - A host without facts is shown as not reached, and its GPUs are not in the figures.
    type: dict
    required: true
  manifests:
    description: Directory on the controller with the manifests of all services.
    type: path
    required: true
  plans:
    description: Directory on the controller with the plans. It may be empty or missing while nothing is planned.
    type: path
    required: true
  path:
    description: File to write, on the controller. Its directory is made if it is not there.
    type: path
    required: true
  title:
    description: Heading of the page.
    type: str
    default: GPU fleet
  generated:
    description:
      - Text below the heading, such as a date or the name of a pipeline.
      - Nothing is written there by default, because a date would make every run a change.
    type: str
    default: ''
  live:
    description:
      - Shows temperature, power and memory in use of each GPU as the facts have them.
      - These readings change by themselves, so that every run with fresh facts is a change.
    type: bool
    default: false
  template:
    description: A Jinja2 template on the controller to use in place of the collection's own.
    type: path
seealso:
  - module: gpuops.fleet.gpu_info
  - module: gpuops.fleet.plan
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Draw the fleet
  gpuops.fleet.report:
    hosts: "{{ groups['gpu_hosts'] | gpuops.fleet.fleet_hosts(hostvars, fleet_facts) }}"
    manifests: "{{ inventory_dir }}/manifests"
    plans: "{{ inventory_dir }}/plans"
    path: "{{ inventory_dir }}/reports/report.html"
  run_once: true
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
  sample: /srv/fleet/reports/report.html
summary:
  description: The headline figures of the page. Memory is in MiB.
  returned: success
  type: dict
  contains:
    hosts:
      description: Number of hosts.
      type: int
      sample: 3
    gpus:
      description: Number of GPUs.
      type: int
      sample: 8
    modes:
      description: GPUs by what they are used as, V(mig), V(whole), V(shared), V(unassigned) or V(out) (of service).
      type: dict
      sample: {mig: 3, whole: 2, shared: 1, unassigned: 2}
    memory_mib:
      description:
        - Memory by state. C(held) is given to services. C(planned) is promised on slices that are not there yet.
        - C(unused) is in slices that nobody holds, C(free) is not cut, and C(stranded) cannot be reached with the present layouts.
        - C(aside) is on lost or cordoned GPUs, used outside the plan or kept free by policy. C(overhead) is what drivers and rounding keep.
        - C(total) is their sum.
      type: dict
      sample: {total: 163840, held: 100000, planned: 0, unused: 9856, free: 39872, stranded: 11392, aside: 0, overhead: 2720}
    services:
      description: How many services are known and placed, and the names of those that are not.
      type: dict
      sample: {known: 8, placed: 7, unplaced: [video-search]}
    replicas:
      description: How many replicas are placed and unplaced.
      type: dict
      sample: {placed: 12, unplaced: 1}
    stranded:
      description: Layouts that strand memory, the most first, and the layouts that reach it, the nearest first.
      type: list
      elements: dict
      sample: [{board: A100-SXM4-80GB, layout: 7x1g.10gb, mib: 11392, better: [6x1g.10gb + 1g.20gb]}]
    alerts:
      description: What needs attention, one line each.
      type: list
      elements: str
      sample: ['gpu-train-01, GPU 2: This GPU is lost.']
"""
