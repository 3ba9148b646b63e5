#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the secrets of a service on its host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_secrets
short_description: Keep the secrets of a service on its host
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Stores the secrets of one replica so that its host can start it after a reboot with no controller near, and has them ready below
    O(secrets_dir), in memory, from where the compose file mounts them.
  - Where C(systemd-creds) works on the host, which is found out by trying, a value is sealed with a key of the host or its TPM2. Elsewhere
    it lies in a file that only root can read; RV(sealed) says which, and the module warns.
  - The replica has exactly the secrets that are given. What left the list is removed, unless O(purge) is V(false).
  - No value is shown in a diff, a log or the arguments of a process. Values are compared on the host.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease_if_given
attributes:
  diff_mode:
    support: full
    details: It shows the names, how each is kept, and that a value is new.
options:
  replica:
    description:
      - Name of the replica, C(<service>-<number>).
    type: str
    required: true
  state:
    description:
      - V(present) keeps exactly O(secrets). V(absent) forgets all secrets of the replica.
    type: str
    choices:
      - present
      - absent
    default: present
  secrets:
    description:
      - The secrets, value by name. A name is that of a file; a value is text.
    type: dict
    default: {}
  purge:
    description:
      - Whether the replica loses what O(secrets) does not name. Without it, a version that is about to be replaced keeps what it mounts.
    type: bool
    default: true
  mode:
    description:
      - Permissions of the files below O(secrets_dir). The directories above them let no other user of the host pass, whatever this says,
        so the default lets the container's user read them, whoever that is.
    type: str
    default: '0444'
  uid:
    description:
      - Number of the user who owns the files below O(secrets_dir), for a program that insists on its own. Root if left out.
    type: int
  gid:
    description:
      - Number of their group. Root's if left out.
    type: int
  secrets_dir:
    description:
      - Directory in memory in which they lie in plain text, C(<replica>/<name>). Only root can enter it.
    type: path
    default: /run/gpuops-fleet/secrets
seealso:
  - module: gpuops.fleet.slice_env
"""

EXAMPLES = r"""
- name: Keep the token with which the model is fetched
  gpuops.fleet.service_secrets:
    replica: receipt-ocr-1
    secrets:
      hub_token: "{{ vault_hub_token }}"

- name: Forget them
  gpuops.fleet.service_secrets:
    replica: receipt-ocr-1
    state: absent
"""

RETURN = r"""
sealed:
  description: How each secret is kept, V(systemd-creds) or V(file). C((known after apply)) for a new value in check mode.
  returned: success
  type: dict
  sample: {hub_token: systemd-creds}
revision:
  description:
    - A short text that is another one whenever a value changed. It tells nothing about the values. In the compose file, it makes Compose
      start the container anew. Empty without secrets, C((known after apply)) in check mode when a value is new.
  returned: success
  type: str
  sample: 9f86d081884c7d65
others:
  description: Names of what is kept although O(secrets) does not name it. Empty with O(purge).
  returned: success
  type: list
  elements: str
  sample: []
directory:
  description: Where the files are.
  returned: success
  type: str
  sample: /run/gpuops-fleet/secrets/receipt-ocr-1
diff:
  description: Names and how they are kept, before and after.
  returned: success
  type: dict
  sample: {before: '', after: "hub_token: mode 0444, a new value\n"}
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.secrets import DEFAULT_DIR, FILE, Access, Secrets

SPEC: dict[str, t.Any] = {
    "replica": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "purge": {"type": "bool", "default": True},
    "mode": {"type": "str", "default": "0444"},
    "uid": {"type": "int"},
    "gid": {"type": "int"},
    "secrets_dir": {"type": "path", "default": DEFAULT_DIR},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when a name or value is no good, or something cannot be read or written."""
    state_dir, secrets_dir = Path(params["state_dir"]), Path(params["secrets_dir"])
    kept = Secrets(state_dir, secrets_dir, params["replica"])
    if params["lease"] and not check:
        leases.check(state_dir, params["lease"])
    wanted = params["secrets"] if params["state"] == "present" else {}
    change = kept.apply(wanted, Access(params["mode"], params["uid"], params["gid"]), check, params["purge"])
    diff = {"before": _text(change.lines_before), "after": _text(change.lines_after)}
    directory = str(secrets_dir / params["replica"])
    found = {"sealed": change.sealed, "revision": change.revision, "others": list(change.others)}
    return {"changed": change.changed, **found, "directory": directory, "diff": diff}


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    plain = sorted(name for name, how in result["sealed"].items() if how == FILE)
    if plain and result["changed"]:
        module.warn(
            f"systemd-creds cannot seal on this host: {', '.join(plain)} of {module.params['replica']} in files that only root can read"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
