#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_gate
short_description: Say whether any service may run on a host
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Judges a host by the rules of M(gpuops.fleet.compat) that do not look at an image, which are driver, GPU generation, kernel modules,
    engine, container toolkit, vGPU, operating system and the age of the driver.
  - Fails in one line with everything that keeps all services away, and the remedy of each.
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
  facts:
    description: RV(gpuops.fleet.gpu_info#module:facts) of the host.
    type: dict
    required: true
  today:
    description: The date on which it is judged whether the driver still gets fixes, such as V(2026-11-21).
    type: str
seealso:
  - module: gpuops.fleet.compat
"""

EXAMPLES = r"""
- name: Read the host
  gpuops.fleet.gpu_info:
  register: host

- name: See that services may run on it
  gpuops.fleet.host_gate:
    host: "{{ inventory_hostname }}"
    facts: "{{ host.facts }}"
"""

RETURN = r"""
findings:
  description: What may go wrong all the same, one line each.
  returned: success
  type: list
  elements: str
  sample: ['gpu-07: a100-sxm4-80gb: R550 gets no fixes any more, by NVIDIA''s list (end-of-life); upgrade to R580']
"""
