#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring and remove MPS daemons."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mps
short_description: Share a GPU or a MIG slice through MPS
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Runs one control daemon of NVIDIA's Multi-Process Service (MPS) for each named GPU or slice, as a systemd unit that starts at boot.
  - A whole GPU is set to compute mode V(exclusive_process), so that nobody computes on it beside MPS. In a slice the mode stays V(default),
    because MIG has no other.
  - MPS serves one user at a time. So each daemon has a user id of its own, under which it and all of its clients run.
  - The UUID of a slice's MIG device may change. The unit asks the host agent for it at each start.
  - A daemon takes its clients with it. While it has any, it is neither restarted nor removed, and the module fails and names them.
  - MPS isolates little. A client that crashes may take the others with it, and all see the same GPU memory bandwidth.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
attributes:
  check_mode:
    support: full
    details:
      - Whether the host agent is there is not looked at, because the same play may install it before.
      - A whole GPU whose MIG is still on is taken for one whose MIG is off by then, and a slice that is not there yet for one that is.
options:
  daemons:
    description:
      - GPUs and slices that have a daemon, or with O(state=absent) that have none.
    type: list
    elements: dict
    default: []
    suboptions:
      gpu:
        description: UUID, PCI address or index of the GPU.
        type: str
        required: true
      profile:
        description: MIG profile of the slice. If left out, the whole GPU is shared.
        type: str
      start:
        description: Memory slice at which the slice starts. Needed with O(daemons[].profile).
        type: int
      thread_percentage:
        description: Share of the SMs in percent that each client gets at most, unless it asks for less.
        type: float
      memory_limit_mib:
        description: Memory in MiB that each client gets at most, unless it asks for less.
        type: int
  state:
    description:
      - V(present) brings the daemons and leaves others alone. V(absent) removes them. V(pruned) removes all others and brings none,
        for what has to be gone before GPUs are partitioned.
    type: str
    choices:
      - present
      - absent
      - pruned
    default: present
  uids:
    description:
      - First and last user id that daemons get. Each keeps its own. No account is made for them.
    type: str
    default: 70700-70799
  systemctl:
    description:
      - Name or path of systemd's program.
    type: path
    default: systemctl
  control:
    description:
      - Name or path of the control daemon.
    type: path
    default: nvidia-cuda-mps-control
  setpriv:
    description:
      - Name or path of the program that starts the daemon as another user.
    type: path
    default: setpriv
  agent:
    description:
      - The host agent's program.
    type: path
    default: /opt/gpuops-fleet/current/bin/gpuops-fleet-agent
  unit_dir:
    description:
      - Directory for units.
    type: path
    default: /etc/systemd/system
  run_dir:
    description:
      - Directory for pipes and shared memory, one below it for each daemon. It is short, because a socket's path may have 107 bytes.
    type: path
    default: /run/gpuops-fleet/mps
  log_dir:
    description:
      - Directory for the daemons' logs.
    type: path
    default: /var/log/gpuops-fleet/mps
requirements:
  - nvidia-ml-py (Python package) on the host
  - nvidia-cuda-mps-control, systemd, setpriv (util-linux) and the host agent, on a host that has daemons
  - root
seealso:
  - module: gpuops.fleet.gpu_settings
  - module: gpuops.fleet.mig
"""

EXAMPLES = r"""
- name: Share a whole GPU through MPS
  gpuops.fleet.mps:
    daemons:
      - {gpu: '0000:0b:00.0', thread_percentage: 50}

- name: Share one slice through MPS
  gpuops.fleet.mps:
    daemons:
      - {gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e, profile: 3g.40gb, start: 4, memory_limit_mib: 8192}

- name: Remove all daemons
  gpuops.fleet.mps:
    daemons: []
    state: pruned
"""

RETURN = r"""
steps:
  description: What was done, or in check mode would be done, in this order.
  returned: success
  type: list
  elements: str
  sample: ["write gpuops-fleet-mps@.service"]
daemons:
  description: The daemons that the host has after the run, or in check mode as predicted.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: The GPU's UUID, with C(-) and the start for a slice.
      type: str
      sample: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
    unit:
      description: Name of the unit.
      type: str
      sample: gpuops-fleet-mps@GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e.service
    gpu:
      description: UUID of the GPU.
      type: str
      sample: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
    profile:
      description: MIG profile of the slice. V(none) for a whole GPU.
      type: str
      sample: 3g.40gb
    start:
      description: Where the slice starts. V(none) for a whole GPU.
      type: int
      sample: 4
    uid:
      description: User id of the daemon and of its clients.
      type: int
      sample: 70700
    pipe:
      description: What a client needs as C(CUDA_MPS_PIPE_DIRECTORY).
      type: str
      sample: /run/gpuops-fleet/mps/GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e/pipe
    shm:
      description: What a client needs as C(/dev/shm).
      type: str
      sample: /run/gpuops-fleet/mps/GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e/shm
    clients:
      description: How many clients it serves at once.
      type: int
      sample: 48
diff:
  description: The daemons, one a line, before and after.
  returned: success
  type: dict
  sample: {before: '', after: "GPU-5c1f: user 70700, no limit for each client"}
notes:
  description: What else is worth knowing, such as a lost GPU whose compute mode could not be restored.
  returned: success
  type: list
  elements: str
  sample: []
"""

import re
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.mps import Places
from ansible_collections.gpuops.fleet.plugins.module_utils.mps_run import ABSENT, PRESENT, PRUNED, Options, Result, apply

_DAEMON: dict[str, t.Any] = {
    "gpu": {"type": "str", "required": True},
    "profile": {"type": "str"},
    "start": {"type": "int"},
    "thread_percentage": {"type": "float"},
    "memory_limit_mib": {"type": "int"},
}
SPEC: dict[str, t.Any] = {
    "daemons": {"type": "list", "elements": "dict", "default": [], "options": _DAEMON},
    "state": {"type": "str", "choices": [PRESENT, ABSENT, PRUNED], "default": PRESENT},
    "uids": {"type": "str", "default": "70700-70799"},
    "systemctl": {"type": "path", "default": "systemctl"},
    "control": {"type": "path", "default": "nvidia-cuda-mps-control"},
    "setpriv": {"type": "path", "default": "setpriv"},
    "agent": {"type": "path", "default": "/opt/gpuops-fleet/current/bin/gpuops-fleet-agent"},
    "unit_dir": {"type": "path", "default": "/etc/systemd/system"},
    "run_dir": {"type": "path", "default": "/run/gpuops-fleet/mps"},
    "log_dir": {"type": "path", "default": "/var/log/gpuops-fleet/mps"},
    "lease": {"type": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
}
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


def run(params: t.Mapping[str, t.Any], check: bool) -> Result:
    """What was done, or with ``check`` would be. FleetError for a wish that is refused and for a step that failed."""
    found = _RANGE.fullmatch(params["uids"].strip())
    first, last = (int(found.group(1)), int(found.group(2))) if found else (0, 0)
    if not 0 < first <= last:
        raise FleetError(f"'{params['uids']}' is no range of user ids", field="uids", hint="write FIRST-LAST, such as 70700-70799")
    places = Places(
        state_dir=Path(params["state_dir"]),
        run_dir=Path(params["run_dir"]),
        log_dir=Path(params["log_dir"]),
        unit_dir=Path(params["unit_dir"]),
        agent=params["agent"],
        control=params["control"],
        setpriv=params["setpriv"],
    )
    options = Options(places, systemctl=params["systemctl"], uids=(first, last), token=params["lease"] or None, check=check)
    return apply(params["daemons"], params["state"], options)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    for note in result.notes:
        module.warn(note)
    module.exit_json(
        changed=bool(result.steps),
        steps=result.steps,
        daemons=result.daemons,
        diff={"before": result.before, "after": result.after},
        notes=result.notes,
    )


if __name__ == "__main__":
    main()
