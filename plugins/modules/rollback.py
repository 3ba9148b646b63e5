#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollback
short_description: Write the manifest of an earlier version of a service back
version_added: 0.2.0
description:
  - Chooses an earlier version of a service from those that its hosts keep, and writes its manifest in the place of the one that is there.
    Carrying it out is playbook C(deploy)'s.
  - What a version is made of goes back, and how it proves itself (C(timeout), C(settle) and C(warm_up) of C(rollout)).
  - C(route), C(replicas), C(priority), C(description), C(lease) and the rest of C(rollout) stay as they are now, so that no rollback opens
    what was closed since. Where the manifest is gone, they are those of the version that served last.
  - Changes nothing on a host.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.controller
options:
  service:
    description: The service.
    type: str
    required: true
  to:
    description:
      - Number of the version, or the beginning of its manifest's digest, as V(sha256:77ab). If left out, the newest that served and is not
        what the manifest asks for now.
    type: str
  kept:
    description: By host, RV(gpuops.fleet.service_version_info#module:replicas).
    type: dict
    required: true
  manifests:
    description: Directory on the controller with the manifests of all services.
    type: path
    required: true
seealso:
  - module: gpuops.fleet.service_version_info
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Go back to the version before
  gpuops.fleet.rollback:
    service: receipt-ocr
    kept: "{{ {inventory_hostname: versions.replicas} }}"
    manifests: "{{ inventory_dir }}/manifests"
  run_once: true
"""

RETURN = r"""
file:
  description: The manifest that was written, or would be.
  returned: success
  type: str
  sample: /home/alice/fleet/manifests/receipt-ocr.yml
digest:
  description: Digest of the version's manifest.
  returned: success
  type: str
  sample: sha256:77ab...
line:
  description: The version in words, which fields stay as they are now although the version had others, and which others go back with it.
  returned: success
  type: str
  sample: >-
    receipt-ocr: back to version 2 (sha256:77ab0c1d2e3f, registry.example.com/receipt-ocr@sha256:9f86),
    first served 2026-11-20T08:00:00Z by alice
"""
