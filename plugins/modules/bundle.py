#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: List what a site without the Internet must mirror
version_added: 0.2.0
description:
  - Lists the images of all services by digest, the model files that they read, and the packages, keys and installers that the roles of host
    preparation would fetch for the hosts; with the setting that names a mirror of each.
  - Writes the same as JSON on the controller. Reads and changes nothing on a host.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.full
options:
  manifests:
    description: Directory of the manifests on the controller.
    type: path
    required: true
  templates:
    description: Directories of a site's own compose templates, whose names are runtimes as well.
    type: list
    elements: path
    default: []
  hosts:
    description:
      - For each host C(driver) (what M(gpuops.fleet.driver_plan) returned), C(engine) and C(toolkit) (what the filter
        P(gpuops.fleet.install_plan#filter) gives), and C(system), its name for people. With C(problem), why not all of that is
        known. Nothing of a host that was not asked.
    type: dict
    required: true
  path:
    description: The JSON file.
    type: path
    required: true
seealso:
  - module: gpuops.fleet.driver_plan
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: List what has to be mirrored for the services alone
  gpuops.fleet.bundle:
    manifests: "{{ fleet_manifests }}"
    hosts: {}
    path: "{{ fleet_reports }}/bundle.json"
  run_once: true
  register: listed
"""

RETURN = r"""
lines:
  description: The list for people.
  returned: success
  type: list
  elements: str
bundle:
  description: The same as data, as the file has it.
  returned: success
  type: dict
  contains:
    schema:
      description: Version of this format, 1.
      returned: always
      type: int
      sample: 1
    images:
      description: C(image) and C(services) that are made of it.
      returned: always
      type: list
      elements: dict
    models:
      description: C(path) below the model store, C(sha256) where the manifest says it, and C(services).
      returned: always
      type: list
      elements: dict
    packages:
      description:
        - C(what) they are (V(driver), V(engine) or V(toolkit)), C(system), C(from) where they come, C(packages) with their versions
          (empty where any will do), C(setting) that names a mirror, and C(hosts).
      returned: always
      type: list
      elements: dict
    downloads:
      description: C(url), C(checksum), C(setting) that names another address, and C(hosts).
      returned: always
      type: list
      elements: dict
    unread:
      description: Hosts of which it is not known what they need, and why.
      returned: always
      type: dict
"""
