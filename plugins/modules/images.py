#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: images
short_description: Record by digest what the images of the manifests say that they need
version_added: 0.2.0
description:
  - Says which images of the manifests are not recorded yet, and whose engines may have them. Then writes what M(gpuops.fleet.image_info)
    learnt of them into one file, sorted by digest, for M(gpuops.fleet.compat).
  - The file is only written when something of it changes. What is there stays, unless another answer came or O(drop) is set.
  - An image of which nothing could be learnt is one line with the reason, and no failure.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.full
options:
  path:
    description: The record on the controller. One that is not there yet is empty.
    type: path
    required: true
  manifests:
    description: Directory of the manifests on the controller.
    type: path
    required: true
  templates:
    description: Directories of a site's own compose templates, whose names are runtimes as well.
    type: list
    elements: path
    default: []
  plans:
    description: Directory of the plans on the controller. They say which hosts may have an image, for RV(hosts).
    type: path
  again:
    description: Ask about all images of the manifests, not only about those that are not recorded.
    type: bool
    default: false
  engines:
    description: For each host, what M(gpuops.fleet.image_info) returned there. Hosts that were not asked may be among them.
    type: dict
    default: {}
  registry:
    description: What M(gpuops.fleet.image_info) returned of the registries. An engine's word goes before it.
    type: dict
    default: {}
  drop:
    description: Drop what is recorded of images that no manifest uses any more. A rollback may need them.
    type: bool
    default: false
  record:
    description: Whether anything is written. V(false) only compares.
    type: bool
    default: true
seealso:
  - module: gpuops.fleet.image_info
  - module: gpuops.fleet.compat
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: See which images are not recorded yet
  gpuops.fleet.images:
    path: "{{ inventory_dir }}/images.yml"
    manifests: "{{ fleet_manifests }}"
    record: false
  run_once: true
  register: unknown

- name: Ask the registries
  gpuops.fleet.image_info:
    images: "{{ unknown.wanted }}"
    from: registry
  delegate_to: localhost
  run_once: true
  register: answered

- name: Record what they answered
  gpuops.fleet.images:
    path: "{{ inventory_dir }}/images.yml"
    manifests: "{{ fleet_manifests }}"
    registry: "{{ answered }}"
  run_once: true
"""

RETURN = r"""
wanted:
  description: Images that are still to be asked about, as the manifests write them.
  returned: success
  type: list
  elements: str
  sample: []
hosts:
  description: Those of them that a host may have, by the name of the host.
  returned: success
  type: dict
  sample: {}
lines:
  description: One line for each image that was asked about. What it says, or why nothing is known.
  returned: success
  type: list
  elements: str
  sample:
    - "registry.example.com/ocr@sha256:5f70bf18a086 (receipt-ocr): CUDA 12.4.1, 1 more variable (told by gpu-01)"
missing:
  description: The lines of images of which nothing could be learnt, and whose CUDA not every one of their manifests declares by C(needs).
  returned: success
  type: list
  elements: str
  sample: []
recorded:
  description: Number of images in the record.
  returned: success
  type: int
  sample: 12
images:
  description: Number of images that the manifests use.
  returned: success
  type: int
  sample: 12
"""
