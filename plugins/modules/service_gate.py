#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until a version of a service is fit for requests, or say why it is not."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_gate
short_description: Wait until a version of a service is fit for requests, or say why it is not
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Waits until the container of a replica runs on exactly its own devices, is healthy, answers a real request, has its GPU visible
    inside, answers a warm-up request, and has stayed so for O(settle) seconds without a restart.
  - Fails at once when the container ends, is unhealthy, or has or sees a device that is not its own; after O(timeout) seconds otherwise.
    The message is one line, with the last words of the container's log. Control characters and the service's secrets are taken out of them.
  - Runs C(nvidia-smi -L) in the container where its image or NVIDIA's toolkit brings that program; elsewhere it looks at the container's
    device nodes, those of slices (C(/dev/nvidia-caps)) among them.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.devices
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.engine
options:
  project:
    description:
      - Name of the compose project.
    type: str
    required: true
  timeout:
    description:
      - Longest wait, in seconds, before it has failed. O(settle) comes on top.
    type: float
    default: 600
  settle:
    description:
      - How long it has to stay well, in seconds.
    type: float
    default: 10
  url:
    description:
      - Address that has to answer with a status from 200 to 399. If left out, nothing is asked.
    type: str
  warm_up:
    description:
      - A request that has to be answered before anybody else's. If left out, nothing is asked.
    type: dict
    suboptions:
      url:
        description: Where it goes.
        type: str
        required: true
      method:
        description: Its method.
        type: str
        choices:
          - GET
          - POST
        default: GET
      body:
        description: What is sent.
        type: str
        default: ''
      content_type:
        description: What O(warm_up.body) is.
        type: str
        default: application/json
      status:
        description: The status with which it has to be answered. 503 is asked again, since a server that loads its model says so.
        type: int
        default: 200
      timeout:
        description: Seconds that the answer may take.
        type: float
        default: 60
  may_end:
    description:
      - Whether the container is a job, for which it is success to end with status 0.
    type: bool
    default: false
  secrets_dir:
    description:
      - Directory with the plain secrets of services, C(<project>/<name>), as M(gpuops.fleet.service_secrets) keeps them. No message
        shows one.
    type: path
    default: /run/gpuops-fleet/secrets
  engine_timeout:
    description:
      - Longest time for one answer of the engine, in seconds.
    type: int
    default: 30
  lease:
    description:
      - Token of the lease under which the play runs, from M(gpuops.fleet.host_lease). It is renewed while this waits, and nobody is waited
        for without it.
    type: str
requirements:
  - nvidia-ml-py (Python package) on the host
seealso:
  - module: gpuops.fleet.service_probe
  - module: gpuops.fleet.service_version
"""

EXAMPLES = r"""
- name: Wait until the new version is fit for requests
  gpuops.fleet.service_gate:
    project: receipt-ocr-1
    entries:
      - {name: GPU_0, gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e, profile: 1g.10gb, start: 4}
    url: http://127.0.0.1:18000/health
    warm_up:
      url: http://127.0.0.1:18000/ocr
      method: POST
      body: '{"image": ""}'
"""

RETURN = r"""
seconds:
  description: How long each step took. V(none) for one that there is not.
  returned: success
  type: dict
  contains:
    running:
      description: Until the container ran.
      type: float
      sample: 0.6
    healthy:
      description: From then until it was healthy.
      type: float
      sample: 21.4
    probe:
      description: Until O(url) answered.
      type: float
      sample: 0.1
    gpu:
      description: Looking for the GPU inside.
      type: float
      sample: 0.2
    warm_up:
      description: Until O(warm_up) was answered.
      type: float
      sample: 3.5
    settle:
      description: How long it was watched after that.
      type: float
      sample: 10.0
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils import words
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.gate import Gate, Own, Request, Wish
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import DEVICE_OPTIONS, Device, parse_entries, resolve_all

_WARM_UP: dict[str, t.Any] = {
    "url": {"type": "str", "required": True},
    "method": {"type": "str", "choices": ["GET", "POST"], "default": "GET"},
    "body": {"type": "str", "default": ""},
    "content_type": {"type": "str", "default": "application/json"},
    "status": {"type": "int", "default": 200},
    "timeout": {"type": "float", "default": 60},
}
SPEC: dict[str, t.Any] = {
    "project": {"type": "str", "required": True},
    **DEVICE_OPTIONS,
    "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
    "timeout": {"type": "float", "default": 600},
    "settle": {"type": "float", "default": 10},
    "url": {"type": "str"},
    "warm_up": {"type": "dict", "options": _WARM_UP},
    "may_end": {"type": "bool", "default": False},
    "secrets_dir": {"type": "path", "default": "/run/gpuops-fleet/secrets", "no_log": False},
    "proc_root": {"type": "path", "default": "/proc"},
    "engine_timeout": {"type": "int", "default": 30},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def own_devices(devices: t.Sequence[Device]) -> Own:
    """What the replica's container is given, and all that may be seen in it. FleetError when a device is not there."""
    with Nvml() as nvml:
        uuids = resolve_all(nvml, devices, check=False)
        handles = {nvml.minor(handle): handle for handle in (nvml.find(device.gpu) for device in devices)}
        gpus = {nvml.uuid(handle) for handle in handles.values()}
        # A GPU without MIG has no slices to ask for.
        sliced = {nvml.minor(nvml.find(device.gpu)) for device in devices if device.profile is not None}
        slices = {
            (minor, instance.id, compute.id): compute.uuid
            for minor in sliced
            for instance in nvml.gpu_instances(handles[minor])
            for compute in instance.compute_instances
        }
    given = frozenset(uuids.values())
    return Own(given, given | gpus, frozenset(handles), slices)


def run(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The module's result. FleetError, one line, when the version is not fit."""
    warm_up = params["warm_up"]
    wish = Wish(
        project=params["project"],
        own=own_devices(parse_entries(params["entries"])),
        timeout=params["timeout"],
        settle=params["settle"],
        probe=Request(params["url"]) if params["url"] else None,
        warm_up=Request(**warm_up) if warm_up else None,
        hidden=tuple(words.secrets_in(Path(params["secrets_dir"]) / params["project"])),
        may_end=params["may_end"],
        proc_root=Path(params["proc_root"]),
    )

    def alive() -> None:
        if params["lease"]:
            leases.check(Path(params["state_dir"]), params["lease"])

    return {"changed": False, "seconds": Gate(wish, params["docker_socket"], alive, params["engine_timeout"]).passage()}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params)
    except FleetError as error:
        project, text = module.params["project"], str(error)
        module.fail_json(msg=text if text.startswith(f"{project}: ") else f"{project}: {text}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
