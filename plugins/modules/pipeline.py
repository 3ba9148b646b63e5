#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pipeline
short_description: Write what a GitLab pipeline needs from the plans of before and now
version_added: 0.2.0
description:
  - Compares plans and manifests of before with those of now, replica by replica.
  - Says for each service and host what is to be done.
  - Writes a child pipeline for GitLab with one job a changed service and host, hosts one after the other;
    the counts that GitLab shows in a merge request; and a page with the plan preview. Each only when its path is given.
  - The same input gives the same bytes. When nothing changed, the child pipeline has one job that says so.
    GitLab refuses an empty one.
  - Talks to no GitLab and to no host.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.full
options:
  before:
    description: Directory with the plans of before. It may be missing while nothing was ever planned.
    type: path
    required: true
  plans:
    description: Directory with the plans of now, as module M(gpuops.fleet.plan) wrote them.
    type: path
    required: true
  manifests:
    description: Directory with the manifests that O(plans) were made from.
    type: path
    required: true
  manifests_before:
    description:
      - Directory with the manifests that O(before) were made from. It may be missing.
      - Without it, a change of C(route), C(rollout) or C(lease) alone is not seen, and the environment of a removed service is not known.
    type: path
  hosts:
    description:
      - For each host its C(facts) and C(policy), as the filter P(gpuops.fleet.fleet_hosts#filter) gathers them.
      - They say which host has carried its plan to the end. A host that is down gets no job; its work waits.
    type: dict
    default: {}
  pending:
    description:
      - File that remembers work which was given to a pipeline and which no host has shown to be done. It is read and written.
      - What failed, was not let through or fell into a deploy freeze is so given again to the next pipeline.
    type: path
  child:
    description: Child pipeline to write.
    type: path
  jobs:
    description: File with the hidden jobs that go to the head of the child pipeline, in place of the collection's C(ci/child.yml).
    type: path
  parent:
    description: Number of the pipeline whose job C(plan) has the plans as artifacts. Without it the jobs take no artifacts.
    type: str
    default: ''
  gated:
    description: Environments whose changes wait for a person. A service of which nobody knows the environment any more waits too.
    type: list
    elements: str
    default: [production]
  gateway:
    description: >-
      What decides the address of a service with a route, C(domain), C(name), C(certificate), C(http_port) and C(https_port), as in the
      option O(gpuops.fleet.gateway_routes#module:settings).
    type: dict
    default: {}
  gateway_name:
    description: Name of a gateway, for the address of a service whose route has only a path. Empty without a gateway.
    type: str
    default: ''
  addresses:
    description: Name of a host in the address of a service without a route. The inventory's own name by default.
    type: dict
    default: {}
  variables:
    description: Variables for the head of the child pipeline. No secrets; the file is an artifact.
    type: dict
    default: {}
  gateways:
    description: The fleet has gateways. A last job brings them up to the plans.
    type: bool
    default: false
  everything:
    description: Give every service a job on each host where it is, changed or not.
    type: bool
    default: false
  widget:
    description: File to write for C(artifacts:reports:terraform), with the numbers of replicas that are created, updated and deleted.
    type: path
  page:
    description: HTML page to write. It needs nothing else, has no script and fetches nothing.
    type: path
  markdown:
    description: Markdown file to write, with the same as the page, for the discussion of a merge request.
    type: path
    version_added: 0.2.0
  templates:
    description: Directories with a site's own compose templates, as in O(gpuops.fleet.plan#module:templates).
    type: list
    elements: path
    default: []
    version_added: 0.2.0
  title:
    description: Heading of the page and of the Markdown.
    type: str
    default: Plan preview
  generated:
    description:
      - Text below the heading, such as the number of a merge request.
      - Nothing is written there by default, because a date would make every run a change.
    type: str
    default: ''
seealso:
  - module: gpuops.fleet.plan
  - module: gpuops.fleet.sources
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Write the child pipeline, the widget and the page
  gpuops.fleet.pipeline:
    before: before/plans
    manifests_before: before/manifests
    plans: state/plans
    manifests: state/manifests
    hosts: "{{ groups['gpu_hosts'] | gpuops.fleet.fleet_hosts(hostvars, fleet_facts) }}"
    pending: state/pending.yml
    child: out/child.yml
    parent: "{{ lookup('ansible.builtin.env', 'CI_PIPELINE_ID') }}"
    widget: out/widget.json
    page: out/preview.html
  run_once: true
"""

RETURN = r"""
summary:
  description: Numbers of replicas, as in the widget.
  returned: success
  type: dict
  sample: {create: 2, delete: 0, update: 1}
table:
  description: One line a replica that changes, who has no place, and the sum.
  returned: success
  type: list
  elements: str
  sample: ['2 replicas new, 1 changed, 0 removed, 9 as they are']
unplaced:
  description: Replicas without a place, as in C(fleet.yml).
  returned: success
  type: list
  elements: dict
  sample: []
work:
  description: What is to be done, one entry a service and host.
  returned: success
  type: list
  elements: dict
  contains:
    job:
      description: Name of its job.
      type: str
      sample: deploy receipt-ocr on gpu-prod-01
    service:
      description: The service.
      type: str
      sample: receipt-ocr
    host:
      description: The host.
      type: str
      sample: gpu-prod-01
    kind:
      description: V(deploy), or V(remove) when nothing of the service stays on the host.
      type: str
      sample: deploy
    why:
      description: What changed, in words.
      type: str
      sample: new version
"""
