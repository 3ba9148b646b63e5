#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Decide which service runs on which GPU or slice
version_added: 0.1.0
description:
  - Reads all manifests and the last plans on the controller, decides from them and from the hosts' facts and policy where every replica
    of every service runs and how each GPU is partitioned, and writes one plan file for each host.
  - What is placed already stays where it is as long as the place still serves. The same input gives the same bytes.
  - A plan file whose decisions have not changed is left as it is.
  - A host with C(down) set to true is planned as gone. Its replicas are placed on other hosts. Those that have no place there, and adopted
    services, stay in its plan, which is otherwise left as it is.
  - As long as a host has C(unread), nothing is written at all, and RV(proposal) says where its replicas would go.
  - When anything is wrong in a manifest, in the policy or in a plan file, every problem is named on its own line and nothing is written.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.controller
options:
  manifests:
    description: Directory on the controller with the manifests of all services. Every C(*.yml) and C(*.yaml) below it is read.
    type: path
    required: true
  plans:
    description:
      - Directory on the controller for the plan files C(HOST.yml), and C(fleet.yml) for what belongs to no host. It is made if need be.
      - A plan of a host that is not in O(hosts) is left as it is, and its services count as running there.
    type: path
    required: true
  hosts:
    description:
      - For each host a dictionary with C(facts), as M(gpuops.fleet.gpu_info) returns them, and C(policy), the host's C(fleet_...)
        variables. C(down) set to true is a host that somebody calls gone; C(unread) says in a line why a host could not be read in this
        run. Of both the facts may be null. P(gpuops.fleet.fleet_hosts#filter) gathers all of it.
    type: dict
    required: true
  templates:
    description:
      - Directories with a site's own compose templates. A manifest's C(runtime) must be one of theirs or of the collection's.
    type: list
    elements: path
    default: []
  images_file:
    description:
      - File that playbook C(images) writes, with what images say that they need, by digest. With it the compatibility gate knows the
        CUDA of images; without it, only what manifests declare and tags tell. It need not be there.
    type: path
  fail_unplaced:
    description: Fail, after the plans are written, when a service has no place.
    type: bool
    default: false
  explain:
    description:
      - Services or replicas (C(receipt-ocr-1)) of which RV(why) tells why they are where they are. If left out, it tells that of those that
        are not where they were.
    type: list
    elements: str
    default: []
    version_added: 0.2.0
  what_if:
    description:
      - A question what would be if (docs/plan.md), as a dictionary, as its text, or as the path of a file with it. It is answered in
        RV(table) and RV(what_if), and nothing is written.
    type: raw
    version_added: 0.2.0
  others_stay:
    description:
      - Nobody moves or gives way for another, whatever C(fleet_moves) and C(fleet_preemption) say. For plays that have named beforehand who
        is stopped.
    type: bool
    default: false
    version_added: 0.2.0
  consolidate:
    description:
      - How many replicas may move so that GPUs become empty, each counted by the C(move_cost) of its manifest.
      - Every rule that a place has to keep holds; nobody has to stop for want of room, loses a place or the room that is kept for its
        rollout. RV(emptied) tells what comes of it.
      - A replica that moves within its host stops before it starts in its new place, as ever.
      - Not together with O(move), nor while a host cannot be read.
    type: int
    default: 0
    version_added: 0.2.0
  check_only:
    description:
      - Only see whether anything is wrong in manifests, plan files and policy. Of O(hosts) nothing but C(policy) is looked at, so it can be
        asked before any host is read. Nothing is decided or written.
    type: bool
    default: false
    version_added: 0.2.0
  move:
    description:
      - A replica that a person wants on another host. It gets a place there while everything else stays where it is, or the plan is
        refused.
        Later plans keep it there because the place is right.
    type: dict
    version_added: 0.2.0
    suboptions:
      service:
        description: The service.
        type: str
        required: true
      replica:
        description: Number of the replica.
        type: int
        required: true
      to:
        description: Name of the host.
        type: str
        required: true
seealso:
  - module: gpuops.fleet.gpu_info
  - module: gpuops.fleet.host_plan
  - module: gpuops.fleet.plan_record
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Plan the fleet
  gpuops.fleet.plan:
    manifests: "{{ inventory_dir }}/manifests"
    plans: "{{ inventory_dir }}/plans"
    hosts: "{{ groups['gpu_hosts'] | gpuops.fleet.fleet_hosts(hostvars, inventory_dir ~ '/facts') }}"
  run_once: true
  register: plan_made

- name: Show the decisions
  ansible.builtin.debug:
    msg: "{{ plan_made.table }}"
  run_once: true
"""

RETURN = r"""
table:
  description: The decisions for people, one line for each replica.
  returned: success
  type: list
  elements: str
  sample:
    - SERVICE      REPLICA  HOST         GPU           SLICE      MEMORY    PORT        CHANGE
    - receipt-ocr  1        gpu-prod-01  GPU-5c1f07aa  1g.10gb@6  9856 MiB  http:18000  new
plans:
  description: The plan of each host as data, as in its file.
  returned: success
  type: dict
  sample: {gpu-prod-01: {plan: 1, host: gpu-prod-01, serial: 3}}
unplaced:
  description: Replicas without a place.
  returned: success
  type: list
  elements: dict
  contains:
    service:
      description: The service.
      type: str
      sample: llm-chat
    replica:
      description: Number of the replica, from 1.
      type: int
      sample: 2
    reason:
      description: Why it has no place, and the nearest thing that would help.
      type: str
      sample: >-
        gpu-prod-01: 2 GPUs without room for 30 GiB; what would help: wait for gpu-prod-01 GPU-5c1f07aa until the lease of notebook-lin-1
        ends on 2026-12-01, and remove the manifest of notebook-lin then, or raise the quota of claims by 20 GiB (fleet_quotas)
explained:
  description: What is in the way of each replica without a place, and the cheapest changes. Each was planned with, and gives it one.
  returned: success
  type: list
  elements: dict
  contains:
    service:
      description: The service.
      type: str
      sample: llm-chat
    replica:
      description: Number of the replica.
      type: int
      sample: 2
    cause:
      description: The binding constraint, in a word such as V(model), V(quota), V(port) or V(in use).
      type: str
      sample: lease
    changes:
      description: What would give it a place, the cheapest first, each with its C(kind), the C(change) in words, and who C(gives_way).
      type: list
      elements: dict
      sample:
        - kind: lease
          change: >-
            wait for gpu-prod-01 GPU-5c1f07aa until the lease of notebook-lin-1 ends on 2026-12-01, and remove the manifest of notebook-lin
            then
          gives_way: [notebook-lin-1]
    afterwards:
      description: As one of C(changes), where it costs far less and helps only once this plan is carried out.
      type: dict
      returned: when there is one
      sample: {kind: quota, change: raise the quota of claims by 1 GPU (fleet_quotas), gives_way: []}
why:
  description: One line for each replica that is not where it was, or that O(explain) names.
  returned: success
  type: list
  elements: str
  sample:
    - >-
      receipt-ocr-1: 1g.10gb@6 on gpu-prod-01 GPU-5c1f07aa, new: 5 GPUs of 2 hosts have room for it; chosen for the most stays possible on
      the GPU
what_if:
  description: The answer to O(what_if), as data.
  returned: when O(what_if) is given
  type: dict
  sample: {how_many: {board: h100-sxm5-80gb, gpus: 3, hosts: 1}}
rollouts:
  description:
    - How new versions come to replicas that run and stay where they are, one line for each service on each host.
    - Then a line for each service whose C(route), C(rollout) or C(lease) changes, which no host's plan has.
  returned: success
  type: list
  elements: str
  sample:
    - 'receipt-ocr-1: new version; beside the old one on gpu-prod-01 1g.10gb@4'
    - 'llm-chat: route changes, no container is made anew'
steps:
  description:
    - In which order replicas leave their places for other ones, so that no moment needs more room than there is. Then a line for each that
      does not serve meanwhile. Empty when nobody leaves a place that somebody else gets.
  returned: success
  type: list
  elements: str
  sample:
    - 1. move face-match-1 from gpu-prod-01 GPU-5c1f07aa 1g.10gb@5 to gpu-prod-02 GPU-77ab1200 1g.10gb@6
    - 2. start llm-chat-1 on gpu-prod-01 GPU-5c1f07aa 3g.40gb@4
bounds:
  description:
    - What language models can hold where they are placed, and what is proven of the plan, for example how many more replicas could be
      served.
    - Nothing is said of a plan that serves everybody where they were before, but that a controller without a solver proves nothing.
  returned: success
  type: list
  elements: str
  sample:
    - 'llm-chat: 39.2 GiB hold 181000 tokens of its cache, 22 requests of 8192 at once; 4 asked for'
    - 'proven by HiGHS 1.15.1: nobody else could be served, unless somebody else stops or moves'
emptied:
  description: Which GPUs become empty, who moves for that, and what is proven of it. Only where O(consolidate) is more than 0.
  returned: success
  type: list
  elements: str
  sample:
    - gpu-prod-02 GPU-81c0de11 (a100-sxm4-80gb) becomes empty
    - face-2 moves from gpu-prod-02 GPU-81c0de11 1g.10gb@0 to gpu-prod-01 GPU-5c1f07aa 1g.10gb@6
    - 1 of 3 GPUs in use becomes empty by 1 move, which counts as 1 of at most 4
services:
  description: Every manifest by service name, with all defaults filled in, sizes in MiB, and C(need_mib), the GPU memory that it needs.
  returned: success
  type: dict
  sample: {receipt-ocr: {service: receipt-ocr, team: claims, replicas: 2, need_mib: 8192}}
unread:
  description: The hosts that could not be read, each with the reason. Unless it is empty, nothing was written.
  returned: success
  type: dict
  sample: {}
proposal:
  description: Of the hosts that could not be read, one line for each host with the reason, then one for each replica that they have.
  returned: success
  type: list
  elements: str
  sample:
    - 'gpu-prod-02 cannot be read: Connection timed out'
    - receipt-ocr-2 would go from gpu-prod-02 to gpu-prod-01 GPU-5c1f07aa 1g.10gb@3
refusal:
  description: Why nothing was written and what to write for it to be, in one line. Empty when all hosts could be read.
  returned: success
  type: str
  sample: ''
warnings:
  description: What a person should know, such as a host that has a plan and is not part of this run.
  returned: success
  type: list
  elements: str
  sample: []
"""
