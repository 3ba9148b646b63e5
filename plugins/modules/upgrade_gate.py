#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: upgrade_gate
short_description: Say whether a host that was upgraded may have its services again
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - A host passes when its driver answers, its engine answers if it did before, every GPU of before is there and as well as it was,
    M(gpuops.fleet.host_gate) has nothing against it, and no service that was on it is kept off a board of it that it could have before.
  - Fails in one line with everything else.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
options:
  host:
    description: Name of the host, for messages.
    type: str
    required: true
  before:
    description: RV(gpuops.fleet.gpu_info#module:facts) of the host from before.
    type: dict
    required: true
  facts:
    description: The same from now.
    type: dict
    required: true
  published:
    description:
      - Text of the file with the facts that were published before the run. A GPU in it counts as one of before, for a run that was killed
        may have lost it.
    type: raw
  services:
    description: Manifests of the services that were on the host, by name, as RV(gpuops.fleet.plan#module:services) has them.
    type: dict
    default: {}
  images_file:
    description: File that playbook C(images) writes.
    type: path
  today:
    description: The date on which it is judged whether the driver still gets fixes, such as V(2026-11-21).
    type: str
seealso:
  - module: gpuops.fleet.host_gate
  - module: gpuops.fleet.compat
"""

EXAMPLES = r"""
- name: See that all came back
  gpuops.fleet.upgrade_gate:
    host: "{{ inventory_hostname }}"
    before: "{{ before.facts }}"
    facts: "{{ now.facts }}"
"""

RETURN = r"""
findings:
  description: What may go wrong all the same, one line each.
  returned: success
  type: list
  elements: str
  sample: []
"""
