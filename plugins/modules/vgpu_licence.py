#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell a virtual machine how it gets the licence of its vGPU."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_licence
short_description: Tell a virtual machine how it gets the licence of its vGPU
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Writes C(gridd.conf) and the client configuration token, which NVIDIA's daemon C(nvidia-gridd) reads when it starts. Nothing is
    restarted here; RV(restart) says whether the daemon has to be.
  - A C(gridd.conf) of somebody else's is kept beside it, and comes back when O(options) are empty.
  - The token is never shown, in a difference neither.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
options:
  options:
    description:
      - What C(gridd.conf) says. Without any of it, the file is left to whoever else writes it.
    type: dict
    suboptions:
      feature:
        description: C(FeatureType), by name. V(vgpu) takes the licence that the vGPU's own type needs.
        type: str
        choices: [unlicensed, vgpu, workstation, compute]
      server_address:
        description: C(ServerAddress), for a licence server that gives no tokens.
        type: str
      server_port:
        description: C(ServerPort).
        type: int
      backup_server_address:
        description: C(BackupServerAddress).
        type: str
      backup_server_port:
        description: C(BackupServerPort).
        type: int
      enable_ui:
        description: C(EnableUI).
        type: bool
      interval_minutes:
        description: C(LicenseInterval), for how long a licence is borrowed, 10 to 10080 minutes.
        type: int
      linger_minutes:
        description: C(LingerInterval), for how long it is kept, 0 to 10080 minutes.
        type: int
  token:
    description:
      - Text of the client configuration token, a file C(.tok) of NVIDIA's licence system. Without it, the one that this module wrote is
        taken away.
    type: str
    default: ''
  conf:
    description:
      - The file.
    type: path
    default: /etc/nvidia/gridd.conf
  token_dir:
    description:
      - Directory of tokens. Another than the usual one is named in O(conf), where O(options) are given.
    type: path
    default: /etc/nvidia/ClientConfigToken
  token_mode:
    description:
      - Permission bits of the token. The daemon runs as root, so nobody else has to read it; NVIDIA's guide says V(0744).
    type: str
    default: '0600'
  gridd:
    description:
      - NVIDIA's daemon. Without it, nothing is written.
    type: path
    default: /usr/bin/nvidia-gridd
seealso:
  - module: gpuops.fleet.vgpu_licence_info
"""

EXAMPLES = r"""
- name: A token of the site's licence server
  gpuops.fleet.vgpu_licence:
    options:
      feature: vgpu
    token: "{{ vault_vgpu_token }}"
  register: licence
"""

RETURN = r"""
restart:
  description: Whether the daemon has to be started again, because it has not read what is there.
  returned: success
  type: bool
  sample: true
token:
  description: V(present) or V(absent).
  returned: success
  type: str
  sample: present
notes:
  description: What else is worth knowing.
  returned: success
  type: list
  elements: str
  sample: []
diff:
  description: The file before and after, with a line that says whether there is a token.
  returned: success
  type: dict
  contains:
    before:
      description: As found.
      type: str
    after:
      description: As left.
      type: str
    before_header:
      description: Its path.
      type: str
    after_header:
      description: Its path.
      type: str
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.gridd import Options, apply

_OPTIONS: dict[str, t.Any] = {
    "feature": {"type": "str", "choices": ["unlicensed", "vgpu", "workstation", "compute"]},
    "server_address": {"type": "str"},
    "server_port": {"type": "int"},
    "backup_server_address": {"type": "str"},
    "backup_server_port": {"type": "int"},
    "enable_ui": {"type": "bool"},
    "interval_minutes": {"type": "int"},
    "linger_minutes": {"type": "int"},
}
SPEC: dict[str, t.Any] = {
    "options": {"type": "dict", "options": _OPTIONS},
    "token": {"type": "str", "default": "", "no_log": True},
    "conf": {"type": "path", "default": "/etc/nvidia/gridd.conf"},
    "token_dir": {"type": "path", "default": "/etc/nvidia/ClientConfigToken", "no_log": False},
    "token_mode": {"type": "str", "default": "0600", "no_log": False},
    "gridd": {"type": "path", "default": "/usr/bin/nvidia-gridd"},
    "proc_root": {"type": "path", "default": "/proc"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}
_PATHS = ("conf", "token_dir", "gridd", "proc_root", "state_dir")


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        paths = {name: Path(module.params[name]) for name in _PATHS}
        result = apply(Options(**{**module.params, "options": module.params["options"] or {}, **paths}), module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    for note in result["notes"]:
        module.warn(note)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
