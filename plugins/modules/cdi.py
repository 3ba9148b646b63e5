#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell the container engine which GPUs and slices there are now."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cdi
short_description: Tell the container engine which GPUs and slices there are now
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Writes the specification of the Container Device Interface (CDI) from which a container engine knows what
    C(nvidia.com/gpu=UUID) is, with C(nvidia-ctk cdi generate).
  - NVIDIA's own refresh of that file follows the driver and the toolkit, not MIG.
    Run this after M(gpuops.fleet.mig) and before a service starts.
  - The file is replaced all at once, and only when the new specification is another one. When C(nvidia-ctk) fails, the file stays.
  - A host on which there is no device to name gets no file, because CDI knows no specification without a device.
    That is so when every GPU is in MIG mode and none is cut.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease_if_given
  - ansible.builtin.files
attributes:
  check_mode:
    support: full
    details:
      - The specification is made and compared, and nothing is replaced.
      - Slices that M(gpuops.fleet.mig) would make do not exist in check mode, and are not in it.
  idempotent:
    support: full
    details: Releases of nvidia-container-toolkit before 1.17.8 may write the same mounts in another order, which counts as a change.
options:
  path:
    description:
      - The file that the engine reads. Its directory is made when it is missing. Its name must end in C(.yaml) or C(.json).
      - A file there that is not a specification of C(nvidia.com/gpu) is refused.
    type: path
    default: /var/run/cdi/nvidia.yaml
  nvidia_ctk:
    description: Name or path of NVIDIA's program.
    type: path
    default: nvidia-ctk
  mode:
    description:
      - Permissions of the file, as for M(ansible.builtin.file). The default lets everybody read it, as NVIDIA's program does.
    type: raw
    default: '0644'
requirements:
  - nvidia-container-toolkit 1.15.0 or newer on the host
seealso:
  - module: gpuops.fleet.mig
  - module: gpuops.fleet.slice_env
"""

EXAMPLES = r"""
- name: Tell the engine about the slices
  gpuops.fleet.cdi:

- name: Tell an engine that reads another directory
  gpuops.fleet.cdi:
    path: /etc/cdi/nvidia.json
"""

RETURN = r"""
devices:
  description: Names of the devices in the specification, each without C(nvidia.com/gpu=). In check mode, those of this moment.
  returned: success
  type: list
  elements: str
  sample: ['0:0', MIG-2d2f8f7e-6b0a-5a57-8c88-1f0f0f3b6f0e, all]
diff:
  description: The file before and after.
  returned: success
  type: dict
  sample: {before: '', after: 'kind: nvidia.com/gpu'}
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.cdi import Options, refresh
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

SPEC: dict[str, t.Any] = {
    "path": {"type": "path", "default": "/var/run/cdi/nvidia.yaml"},
    "nvidia_ctk": {"type": "path", "default": "nvidia-ctk"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
    "mode": {"type": "raw", "default": "0644"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result, without what owner and mode add. FleetError as of ``refresh``."""
    path = Path(params["path"])
    result = refresh(Options(path, Path(params["state_dir"]), params["nvidia_ctk"], params["lease"], check))
    diff = {"before": result.before, "after": result.after, "before_header": str(path), "after_header": str(path)}
    return {"changed": result.changed, "devices": result.devices, "diff": diff}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, add_file_common_args=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    # a file that is not there, yet or any more, has no mode to compare
    if Path(module.params["path"]).exists():
        result["changed"] = module.set_fs_attributes_if_different(module.load_file_common_arguments(module.params), result["changed"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
