#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the devices of a service into its .env."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slice_env
short_description: Write the devices of a service into a C(.env) file
version_added: 0.1.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Looks up, on the host and at this moment, the UUID of each slice or GPU that a service uses, and writes them as variables
    into a file that C(docker compose) reads.
  - A MIG UUID may change whenever a slice is made again. Run this after M(gpuops.fleet.mig) and before the service starts.
  - The file is replaced all at once, and says in its first line that it is written by this module.
  - Beside it, C(devices.json) keeps what the variables name by GPU, profile and start. From it the host agent (role
    P(gpuops.fleet.host_agent#role)) writes the file anew after a boot, when slices may have other UUIDs.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.devices
  - gpuops.fleet.host.lease_if_given
  - ansible.builtin.files
attributes:
  check_mode:
    support: full
    details:
      - A slice that does not exist yet shows as C((known after apply)), because it has no UUID.
      - A whole GPU whose MIG is still on is taken for one whose MIG is off by then.
options:
  path:
    description:
      - The file. Its directory is made when it is missing. The directory's name is the name of the Compose project.
    type: path
    required: true
  mode:
    description:
      - Permissions of the file, as for M(ansible.builtin.file). The default lets root and the file's group read it.
    type: raw
    default: '0640'
requirements:
  - nvidia-ml-py (Python package) on the host
seealso:
  - module: gpuops.fleet.mig
"""

EXAMPLES = r"""
- name: Tell the service which slice is its own
  gpuops.fleet.slice_env:
    path: /srv/gpuops/services/receipt-ocr-1/.env
    entries:
      - {name: GPU_0, gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e, profile: 1g.10gb, start: 4}
"""

RETURN = r"""
devices:
  description: What each variable names. C((known after apply)) for a slice that does not exist yet, in check mode.
  returned: success
  type: dict
  sample: {GPU_0: MIG-2d2f8f7e-6b0a-5a57-8c88-1f0f0f3b6f0e}
diff:
  description: The two files before and after, each with its path.
  returned: success
  type: list
  elements: dict
  sample:
    - before: ''
      after: "GPU_0=MIG-2d2f8f7e-6b0a-5a57-8c88-1f0f0f3b6f0e"
      before_header: /srv/gpuops/services/receipt-ocr-1/.env
      after_header: /srv/gpuops/services/receipt-ocr-1/.env
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text, write_text
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import (
    DEVICE_OPTIONS,
    DEVICES_FILE,
    devices_text,
    env_text,
    identified,
    parse_entries,
    read_env,
    resolve_all,
)

_KEPT_MODE = 0o640  # root and its group, as the other papers of the host
SPEC: dict[str, t.Any] = {
    "path": {"type": "path", "required": True},
    **DEVICE_OPTIONS,
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
    "mode": {"type": "raw", "default": "0640"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result, without what owner and mode add. FleetError when a device is not there or the file cannot be written."""
    path = Path(params["path"])
    kept = path.with_name(DEVICES_FILE)
    devices = parse_entries(params["entries"])
    with Nvml() as nvml:
        uuids = resolve_all(nvml, devices, check)
        wish = devices_text(path.parent.name, params["style"], identified(nvml, devices))
    before, after = read_env(path), env_text(uuids, params["style"])
    kept_before = read_text(kept)
    changed = before != after or not path.exists()
    if params["lease"] and not check:
        leases.check(Path(params["state_dir"]), params["lease"])
    if not check:
        # What is wished first: if this process dies in between, the host agent completes it.
        if kept_before != wish:
            write_text(kept, wish, _KEPT_MODE)
        if changed:
            write_text(path, after, path.stat().st_mode & 0o777 if path.exists() else 0o600)
    diff = [_diff(path, before, after), _diff(kept, kept_before or "", wish)]
    return {"changed": changed or kept_before != wish, "devices": uuids, "diff": diff}


def _diff(path: Path, before: str, after: str) -> dict[str, str]:
    return {"before": before, "after": after, "before_header": str(path), "after_header": str(path)}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, add_file_common_args=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    # in check mode a file that is not there yet has no mode to compare
    if Path(module.params["path"]).exists():
        result["changed"] = module.set_fs_attributes_if_different(module.load_file_common_arguments(module.params), result["changed"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
