#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_plan
short_description: Decide how new versions take the places of old ones on a host
version_added: 0.2.0
description:
  - For each service on one host, says which replicas are rolled to a new version, and whether the new version can prove itself beside the
    old one for that time, which is called a surge, with its place; or why it cannot, so that the old one has to be stopped first.
  - A surge has a place when the planner finds one on this host for one more replica of the service, and everything else stays where the
    plan has it. The plan itself never changes for a rollout.
  - A surge that an earlier play left on the host keeps its place until its rollout ends.
  - It decides on the controller and changes nothing.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.info_module
options:
  host:
    description: Name of the host.
    type: str
    required: true
  plan:
    description: Its plan, as M(gpuops.fleet.host_plan) returned it.
    type: dict
    required: true
  manifests:
    description: Directory on the controller with the manifests of all services.
    type: path
    required: true
  images_file:
    description:
      - File that playbook C(images) writes, with what images say that they need, by digest. With it the compatibility gate knows the
        CUDA of images; without it, only what manifests declare and tags tell. It need not be there.
    type: path
  facts:
    description: The host's facts, as M(gpuops.fleet.gpu_info) returned them in this play.
    type: dict
    required: true
  policy:
    description: The host's C(fleet_...) variables.
    type: dict
    required: true
  changed:
    description: Replicas whose files are about to change. Of those, the ones that run are rolled.
    type: list
    elements: str
    default: []
  stopped:
    description: Replicas that are stopped before any is rolled, as RV(gpuops.fleet.plan_record#module:stop) names them.
    type: list
    elements: str
    default: []
  found:
    description: Surges of which there are files on the host, as RV(gpuops.fleet.service_version_info#module:surges).
    type: list
    elements: str
    default: []
  resting:
    description: Services that somebody stopped here, as RV(gpuops.fleet.service_version_info#module:stopped).
    type: dict
    default: {}
  only:
    description: The one service that is served. All of them if left out.
    type: str
  versions:
    description:
      - What the host keeps of each replica, as RV(gpuops.fleet.service_version_info#module:replicas). It tells what the versions that
        serve hold of the host and of shared GPUs until they are stopped. A version that failed here when it was tried last is not rolled
        again where an earlier one serves.
      - If left out, it is tried again, and what runs counts as what its manifest says now.
    type: dict
    default: {}
  retry:
    description: Whether a version that failed here when it was tried last is tried again.
    type: bool
    default: false
seealso:
  - module: gpuops.fleet.host_plan
  - module: gpuops.fleet.mig
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Decide how new versions come
  gpuops.fleet.rollout_plan:
    host: "{{ inventory_hostname }}"
    plan: "{{ work.plan }}"
    manifests: "{{ fleet_manifests }}"
    facts: "{{ ansible_facts['gpuops_fleet'] }}"
    policy: "{{ ([inventory_hostname] | gpuops.fleet.fleet_hosts(hostvars, fleet_facts))[inventory_hostname].policy }}"
    changed: "{{ begun.rolled }}"
    stopped: "{{ begun.stop }}"
  register: rollout
"""

RETURN = r"""
layout:
  description: The plan's layout with the slices of surges that are there still, for M(gpuops.fleet.mig).
  returned: success
  type: list
  elements: dict
  sample: [{gpu: GPU-5c1f, mig: true, instances: [{profile: 3g.40gb, start: 0}]}]
restore:
  description: GPUs that only such surges are on, as they are to be afterwards.
  returned: success
  type: list
  elements: dict
  sample: []
gone:
  description: Projects of surges that must be removed first, for the plan needs their place, or of which only files are left.
  returned: success
  type: list
  elements: str
  sample: []
moved:
  description: Replicas that run and that the plan has at another place of this host, so that they are stopped first.
  returned: success
  type: list
  elements: str
  sample: []
lines:
  description: For people, a line for each service that is rolled, and for each that is left alone.
  returned: success
  type: list
  elements: str
  sample: ['receipt-ocr-1: new version; beside the old one on gpu-prod-01 1g.10gb@4']
held:
  description: A line for each service of which replicas are left at the version that serves, for the wished one failed here. By its name.
  returned: success
  type: dict
  sample:
    receipt-ocr: >-
      receipt-ocr-1: version 5 failed here at 2026-11-21T12:00:00Z (container is unhealthy after 9 s) and is not tried again;
      version 4 serves on. Change the manifest, or try it again by playbook deploy
yields:
  description:
    - Replicas that are stopped before any service is served, because others wait for a port or room that they give up, and they for
      theirs.
  returned: success
  type: list
  elements: str
  sample: []
services:
  description:
    - The services that are served, in their turns. Those that are rolled come first; whoever takes a port or room comes after the one
      that gives it up.
  returned: success
  type: list
  elements: dict
  contains:
    service:
      description: Name of the service.
      type: str
      sample: receipt-ocr
    replicas:
      description: Its replicas here, without those that are left as they are (RV(held)).
      type: list
      elements: str
      sample: [receipt-ocr-1]
    rolled:
      description: Those that run until then and whose files are about to change.
      type: list
      elements: str
      sample: [receipt-ocr-1]
    left:
      description: Whether a surge of it is on the host already.
      type: bool
      sample: false
    surge:
      description: The place of its surge, empty when there is none.
      type: dict
      sample:
        project: receipt-ocr-surge
        mode: mig
        gpu: GPU-5c1f
        profile: 1g.10gb
        start: 4
        ports: {http: 18003}
        partitions: true
    reason:
      description: Why there is no place.
      type: str
      sample: 1 GPU without room for 8 GiB
    line:
      description: The way, for people. Empty when nothing is rolled.
      type: str
      sample: 'receipt-ocr-1: new version; beside the old one on gpu-prod-01 1g.10gb@4'
"""
