#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: compat
short_description: Say which services may run on which GPUs of which hosts
version_added: 0.2.0
description:
  - For every service, host and kind of GPU one answer. V(ok), V(limited) (it runs, and something is lost) or V(no); with the rule that
    said so, the source of the fact, and the remedy.
  - Driver, CUDA, GPU generation, kernel modules, MIG, vGPU, engine, operating system and the age of the driver are looked at.
    What is not known blocks nothing, and a fact that nobody has verified only warns.
  - Reads and changes nothing on a host. The files that it may write are O(dest) and O(table_dest), on the controller.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.full
options:
  manifests:
    description: Directory of the manifests on the controller.
    type: path
    required: true
  hosts:
    description:
      - For each host a dictionary with C(facts), as the filter P(gpuops.fleet.fleet_hosts#filter) gives it.
    type: dict
    required: true
  templates:
    description: Directories of a site's own compose templates, whose names are runtimes as well.
    type: list
    elements: path
    default: []
  images:
    description:
      - For an image, by its name as the manifests write it (V(NAME@sha256:...)), the list of its variables, as C(Config.Env) of the
        image has them. Without them, and without O(images_file), the CUDA of most images is not known, and not judged.
      - What C(needs) of a manifest declares rules over them, but makes no answer better than the image's own variables allow.
    type: dict
    default: {}
  images_file:
    description:
      - The record that M(gpuops.fleet.images) writes, with the variables of images by digest. One that is not there yet has none.
        O(images) goes before it.
    type: path
  today:
    description:
      - The date on which it is judged whether a driver still gets fixes, such as V(2026-11-21). Without one, ends of support that have
        a date are not judged.
    type: str
  dest:
    description:
      - File on the controller that gets the verdicts as JSON, in the form of RV(verdicts), with the date and the hosts that could not be
        judged. It is written again only when something in it changes. Without one, nothing is written.
    type: path
  table_dest:
    description:
      - File on the controller that gets RV(table) as text, in the same way.
    type: path
seealso:
  - module: gpuops.fleet.gpu_info
  - module: gpuops.fleet.images
  - module: gpuops.fleet.plan
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: See what may run where
  gpuops.fleet.compat:
    manifests: "{{ fleet_manifests }}"
    hosts: "{{ groups['gpu_hosts'] | gpuops.fleet.fleet_hosts(hostvars, fleet_facts) }}"
    images_file: "{{ inventory_dir }}/images.yml"
    today: "{{ now(utc=true).strftime('%Y-%m-%d') }}"
  run_once: true
  register: judged
"""

RETURN = r"""
table:
  description: A line for each kind of GPU of a host, a column for each service; below it every finding once, and its remedy.
  returned: success
  type: list
  elements: str
  sample:
    - HOST    GPU             llm-chat
    - gpu-07  v100-sxm2-32gb  no
verdicts:
  description: The same as data.
  returned: success
  type: list
  elements: dict
  contains:
    host:
      description: Name of the host.
      returned: always
      type: str
      sample: gpu-07
    gpu:
      description: Kind of GPU, by its name in the catalogue.
      returned: always
      type: str
      sample: v100-sxm2-32gb
    service:
      description: Name of the service.
      returned: always
      type: str
      sample: llm-chat
    answer:
      description: V(ok), V(limited) or V(no).
      returned: always
      type: str
      sample: "no"
    findings:
      description:
        - What the rules had to say, the worst first; each with C(effect), C(rule), C(message), C(remedy), C(source) and C(confidence).
      returned: always
      type: list
      elements: dict
      sample: []
"""
