#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: adopt
short_description: Write what runs on hosts as manifests and plans
version_added: 0.1.0
description:
  - Takes hosts that were set up by hand into the fleet as they are. For every container, and every program outside containers, that is on a
    GPU or a slice, a manifest with C(lifecycle=adopted) is written, and the plan of its host keeps its place.
  - A GPU in MIG mode is listed in the plan with all of its slices, whether or not somebody is on them.
  - Nothing on a host is changed, and carrying the written plans out changes nothing either.
  - A manifest that exists is never overwritten. What the last plans have placed already is left alone, so that a second run adds only
    what is new.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.controller
options:
  hosts:
    description:
      - For each host a dictionary with C(facts), as M(gpuops.fleet.gpu_info) returns them with C(gather=[containers, holders]), and
        C(policy), the host's C(fleet_...) variables.
    type: dict
    required: true
  manifests:
    description: Directory on the controller with the manifests of all services. It is made if need be.
    type: path
    required: true
  plans:
    description: Directory on the controller for the plan files. It is made if need be.
    type: path
    required: true
  layouts:
    description:
      - Directory on the controller to which each host's layout is written as C(HOST.yml), in the v1 format of NVIDIA mig-parted under the
        label V(current). Unlike manifests, these files are brought up to date at every run.
    type: path
  team:
    description: The team of whatever carries no label C(gpuops.team).
    type: str
    default: unassigned
  ignore_images:
    description:
      - Shell patterns of images whose containers look at GPUs and serve nothing. No place is kept for them.
    type: list
    elements: str
    default:
      - "*/dcgm-exporter*"
      - "*/dcgm:*"
      - "*/gpu-feature-discovery*"
      - "*/k8s-device-plugin*"
      - "*nvidia_gpu_exporter*"
      - "*/cadvisor*"
      - "*/node-exporter*"
      - "portainer/agent*"
seealso:
  - module: gpuops.fleet.gpu_info
  - module: gpuops.fleet.plan
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Take over what runs
  gpuops.fleet.adopt:
    hosts: "{{ ansible_play_hosts | gpuops.fleet.fleet_hosts(hostvars, inventory_dir ~ '/facts') }}"
    manifests: "{{ inventory_dir }}/manifests"
    plans: "{{ inventory_dir }}/plans"
    team: claims
  run_once: true
  register: adopted

- name: Show what was found
  ansible.builtin.debug:
    msg: "{{ adopted.table }}"
  run_once: true
"""

RETURN = r"""
table:
  description: What is kept for whom, and what is left out, for people.
  returned: success
  type: list
  elements: str
  sample:
    - HOST         PLACE                          SERVICE        FOUND AS
    - gpu-prod-01  1g.10gb@0 of GPU 0000:07:00.0  receipt-ocr-1  container ocr-web-1
services:
  description: Names of the manifests that were written, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [receipt-ocr]
left_out:
  description: Users of GPUs for whom nothing is kept.
  returned: success
  type: list
  elements: dict
  contains:
    host:
      description: The host.
      type: str
      sample: gpu-prod-01
    what:
      description: The container or program.
      type: str
      sample: container dcgm-exporter
    reason:
      description: Why.
      type: str
      sample: it only watches (image nvcr.io/nvidia/k8s/dcgm-exporter:4.8.2)
layouts:
  description: The layout of each host as a mig-parted v1 file with the label V(current).
  returned: success
  type: dict
  sample: {gpu-prod-01: "version: v1\nmig-configs: ..."}
"""
