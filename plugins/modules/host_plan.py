#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_plan
short_description: Read what a host has to carry out
version_added: 0.1.0
description:
  - Reads the plan of one host and the manifests of the services on it, on the controller, and hands them to the modules and roles that act.
  - Fails when the plan was edited by hand, belongs to another host, or a manifest has changed since the plan was made.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.info_module
options:
  host:
    description: Name of the host.
    type: str
    required: true
  plans:
    description: Directory on the controller with the plans.
    type: path
    required: true
  manifests:
    description: Directory on the controller with the manifests of all services.
    type: path
    required: true
  plan:
    description: The plan as M(gpuops.fleet.plan) returned it, in place of the file, where nothing was written because of check mode.
    type: dict
    version_added: 0.2.0
seealso:
  - module: gpuops.fleet.plan
  - module: gpuops.fleet.plan_record
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Read what this host has to carry
  gpuops.fleet.host_plan:
    host: "{{ inventory_hostname }}"
    plans: "{{ inventory_dir }}/plans"
    manifests: "{{ inventory_dir }}/manifests"
  register: work
"""

RETURN = r"""
exists:
  description: Whether there is a plan for this host. Everything else is empty without one.
  returned: success
  type: bool
  sample: true
plan:
  description: The plan as it is written, for M(gpuops.fleet.plan_record).
  returned: success
  type: dict
  sample: {plan: 1, host: gpu-prod-01, serial: 3}
layout:
  description: The plan's layout, for M(gpuops.fleet.mig).
  returned: success
  type: list
  elements: dict
  sample: [{gpu: GPU-5c1f, mig: true, instances: [{profile: 3g.40gb, start: 0}]}]
mps:
  description: The GPUs that services share through MPS, for M(gpuops.fleet.mps).
  returned: success
  type: list
  elements: dict
  sample: [{gpu: GPU-5c1f}]
services:
  description: The replicas that the collection itself starts on this host. Adopted services are not among them.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the replica, of its directory and of its compose project.
      type: str
      sample: receipt-ocr-1
    manifest:
      description: The manifest with every default filled in, sizes in MiB.
      type: dict
      sample: {service: receipt-ocr, team: claims, need_mib: 8192}
    source:
      description: The manifest's C(file) below O(manifests), and its C(text).
      type: dict
      sample: {file: claims/receipt-ocr.yml, text: 'schema: 1'}
    placement:
      description: The plan's line for this replica.
      type: dict
      sample: {service: receipt-ocr, replica: 1, gpu: GPU-5c1f, profile: 1g.10gb, start: 4, ports: {http: 18000}}
    devices:
      description: What the variables in the replica's C(.env) name, for M(gpuops.fleet.slice_env).
      type: list
      elements: dict
      sample: [{name: GPU_0, gpu: GPU-5c1f, profile: 1g.10gb, start: 4}]
"""
