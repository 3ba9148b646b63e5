#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sources
short_description: Gather the manifests of service projects, each held to what its project owns
version_added: 0.2.0
description:
  - Reads the list of service projects, which the platform owns. Each entry names a project, a ref, a team and the services
    that it may describe.
  - With O(manifests), checks the manifests of all checked out projects, and who may say what, all problems at once. Then writes
    them into one directory, one file a service, byte for byte as their owners wrote them. Files of services that are gone are removed.
  - Nothing is written while anything is wrong.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.full
options:
  path:
    description: The list of service projects (docs/gitlab.md).
    type: path
    required: true
  checkouts:
    description: Directory with one checked out project each, named as RV(sources[].name) says.
    type: path
  own:
    description: Directory with manifests of the platform itself, which may describe anything.
    type: path
  manifests:
    description: Directory to write. Without it the list is only read and checked.
    type: path
  templates:
    description: Directories with a site's own compose templates, whose names are runtimes.
    type: list
    elements: path
    default: []
  candidate:
    description: A change that is not merged yet. It stands in the place of what its project has at that ref.
    type: dict
    suboptions:
      project:
        description: Path of the project.
        type: str
        required: true
      ref:
        description: The branch that it would be merged into.
        type: str
        required: true
      path:
        description: Its working tree.
        type: path
        required: true
seealso:
  - module: gpuops.fleet.pipeline
  - module: gpuops.fleet.plan
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Gather and check
  gpuops.fleet.sources:
    path: sources.yml
    checkouts: /srv/fleet/checkouts
    manifests: /srv/fleet/state/manifests
"""

RETURN = r"""
sources:
  description: The entries of the list with all defaults, without the one that O(candidate) stands for.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the directory below O(checkouts).
      type: str
      sample: claims.claims-services@main
    project:
      description: Path of the project.
      type: str
      sample: claims/claims-services
    ref:
      description: Branch, tag or commit.
      type: str
      sample: main
services:
  description: Names of all services that were gathered.
  returned: success
  type: list
  elements: str
  sample: [form-ocr, receipt-ocr]
"""
