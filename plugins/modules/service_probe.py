#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the engine whether it can start a service, before anything of the service is changed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_probe
short_description: Ask the Docker engine whether it can start a service with its devices
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - C(docker compose up) stops the old container of a service before it starts the new one, and the engine looks for devices only at
    that start. So a slice that is gone, or a CDI specification that is old, would cost a container that runs.
    Run this before the files of the service are written. It fails with the engine's own words, and what runs is left alone.
  - Looks up the devices on the host, has the compose file judged by the Compose plugin of the host, pulls the image when it is missing,
    and starts a container from it that has the same devices and nothing to run. That container has no network and no volumes,
    and is removed at once.
  - A service that already runs as the file says is not asked about, since Compose leaves it as it is.
  - Writes no file of the service. Images that were pulled stay. A pull may last longer than O(lease), which is renewed meanwhile.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.devices
  - gpuops.fleet.host.lease_if_given
attributes:
  check_mode:
    support: full
    details:
      - Nothing is pulled or started, so the engine is not asked. The compose file is judged all the same.
      - A slice that does not exist yet shows as C((known after apply)), because it has no UUID.
  diff_mode:
    support: N/A
    details: An image is the only thing that it may change.
options:
  project:
    description:
      - Name of the compose project.
    type: str
    required: true
  compose:
    description:
      - Text of the compose file as it will be written.
    type: str
    required: true
  directory:
    description:
      - Directory of the project, which paths in the compose file are relative to. It may be missing.
    type: path
    required: true
  docker_socket:
    description:
      - Unix socket of the Docker engine. If left out, the engine is not asked.
    type: path
  pull:
    description:
      - When the image of a service with devices is pulled. V(policy) does as C(pull_policy) in the compose file says.
    type: str
    choices:
      - always
      - missing
      - never
      - policy
    default: missing
  pull_timeout:
    description:
      - Longest time to pull one image, in seconds.
    type: int
    default: 3600
  ask:
    description:
      - Whether the engine is asked for the devices. V(false) is for a slice that is made only later. The compose file is judged and the
        image pulled all the same, and a slice that does not exist shows as C((known after apply)).
    type: bool
    default: true
  timeout:
    description:
      - Longest time for one answer of the engine or of Compose, in seconds.
    type: int
    default: 120
requirements:
  - nvidia-ml-py (Python package) on the host
  - the docker command with its Compose plugin on the host
seealso:
  - module: gpuops.fleet.slice_env
  - module: community.docker.docker_compose_v2
"""

EXAMPLES = r"""
- name: Ask the engine before the service is changed
  gpuops.fleet.service_probe:
    project: receipt-ocr-1
    compose: "{{ lookup('ansible.builtin.template', 'compose.yml.j2') }}"
    directory: /srv/gpuops/services/receipt-ocr-1
    entries:
      - {name: GPU_0, gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e, profile: 1g.10gb, start: 4}
    style: cdi
    docker_socket: /var/run/docker.sock
"""

RETURN = r"""
devices:
  description: What each variable names. C((known after apply)) for a slice that does not exist yet, in check mode.
  returned: success
  type: dict
  sample: {GPU_0: MIG-2d2f8f7e-6b0a-5a57-8c88-1f0f0f3b6f0e}
probed:
  description: Services of the compose file whose devices the engine gave just now.
  returned: success
  type: list
  elements: str
  sample: [model]
pulled:
  description: Images that were pulled, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [registry.example.com/receipt-ocr:1.4]
runs:
  description: Whether a container of the project runs now. V(false) when the engine is not asked.
  returned: success
  type: bool
  sample: true
settled:
  description: Whether all of its services run as the compose file says, so that Compose would leave them as they are.
  returned: success
  type: bool
  sample: false
done:
  description: Whether it is a job that has come to its end with status 0, so that it is not to be started again.
  returned: success
  type: bool
  sample: false
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_probe import Answer, Probe, Wish, compose_hashes
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import DEVICE_OPTIONS, env_values, parse_entries, resolve_all

SPEC: dict[str, t.Any] = {
    "project": {"type": "str", "required": True},
    # What owners wrote into `env` stays out of the host's log.
    "compose": {"type": "str", "required": True, "no_log": True},
    "directory": {"type": "path", "required": True},
    **DEVICE_OPTIONS,
    "docker_socket": {"type": "path"},
    "pull": {"type": "str", "choices": ["always", "missing", "never", "policy"], "default": "missing"},
    "pull_timeout": {"type": "int", "default": 3600},
    "ask": {"type": "bool", "default": True},
    "timeout": {"type": "int", "default": 120},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when a device is not there, Compose refuses the file, or the engine cannot start the service."""
    entries = parse_entries(params["entries"])
    with Nvml() as nvml:
        uuids = resolve_all(nvml, entries, check or not params["ask"])
    variables = env_values(uuids, params["style"])
    wish = Wish(
        project=params["project"],
        compose=params["compose"],
        directory=params["directory"],
        variables=variables,
        devices={variables[entry.name]: entry.where for entry in entries},
        pull=params["pull"],
        deadline=params["timeout"],
        pull_deadline=params["pull_timeout"],
        asks=params["ask"],
    )

    def alive() -> None:
        if params["lease"] and not check:
            leases.check(Path(params["state_dir"]), params["lease"])

    alive()
    if params["docker_socket"] is None:
        compose_hashes(wish)
        answer = Answer()
    else:
        answer = Probe(wish, params["docker_socket"], alive).ask(check)
    found = {"devices": uuids, "probed": answer.probed, "pulled": answer.pulled, "runs": answer.runs, "settled": answer.settled}
    return {"changed": bool(answer.pulled), **found, "done": answer.done}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=f"{module.params['project']}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
