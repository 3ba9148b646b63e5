#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_routes
short_description: Make the configuration of a gateway from plans and manifests
version_added: 0.2.0
description:
  - Every service whose manifest has a C(route) gets an address, its replicas on all hosts behind it, and a page with calls to copy.
  - Keys are in the result as SHA-256 only.
  - Nothing is changed on a host. The pages are written on the controller where O(pages) is given.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.controller
options:
  plans:
    description: Directory on the controller with the plans.
    type: path
    required: true
  manifests:
    description: Directory on the controller with the manifests of all services.
    type: path
    required: true
  planned:
    description: Plans by host that count in place of those in O(plans). For check mode, in which playbook C(deploy) writes none.
    type: dict
    default: {}
  addresses:
    description: For each GPU host the address or name that gateways reach it by, as P(gpuops.fleet.gateway_addresses#filter) gives it.
    type: dict
    required: true
  keys:
    description:
      - For each team a list of its API keys, each as text or as C(sha256:) and the hash in hex.
      - Without any team here, a service that asks for keys is an error. A team without a key has an empty list.
    type: dict
    default: {}
  settings:
    description:
      - How the gateways work. V(domain), V(name), V(rate), V(team_rates), V(certificate), V(address), V(http_port), V(https_port),
        V(metrics), V(directory), V(socket), V(state_file), V(user), V(group), V(chroot), V(maxconn), V(log), V(hard_stop_after)
        and V(key_help).
      - Role P(gpuops.fleet.gateway#role) says what each means.
    type: dict
    default: {}
  own_name:
    description: Name or address of this gateway, for services that have a path and no host name, where V(name) and V(domain) are not set.
    type: str
    required: true
  show_pages:
    description: Whether the gateway serves the pages.
    type: bool
    default: true
  pages:
    description: Directory on the controller to write the pages to. If left out, they are not written.
    type: path
  template:
    description: A Jinja2 template on the controller to use for the pages in place of the collection's own.
    type: path
seealso:
  - module: gpuops.fleet.gateway_config
author:
  - gpuops.fleet contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Decide the routes
  gpuops.fleet.gateway_routes:
    plans: "{{ inventory_dir }}/plans"
    manifests: "{{ inventory_dir }}/manifests"
    addresses: "{{ groups['gpu_hosts'] | gpuops.fleet.gateway_addresses(hostvars) }}"
    keys: "{{ fleet_gateway_keys }}"
    settings: {domain: models.example.com}
    own_name: gateway-01.example.com
  register: routes
"""

RETURN = r"""
config:
  description: Text of HAProxy's configuration.
  returned: success
  type: str
  sample: "global"
files:
  description: Name below V(directory) to text, of all files that the configuration reads.
  returned: success
  type: dict
  sample: {hosts.map: "receipt-ocr.models.example.com/ receipt-ocr\n"}
notes:
  description: What is worth a word, such as a replica that has no port yet.
  returned: success
  type: list
  elements: str
  sample: []
table:
  description: Services and their addresses, for people.
  returned: success
  type: list
  elements: str
  sample: ['SERVICE      ADDRESS                                   TEAMS   REPLICAS']
"""
