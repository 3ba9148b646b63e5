#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Have a driver's kernel modules built for the kernels that count."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_built
short_description: Have a driver's kernel modules built for the kernels that count
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Sees that the installed driver has its modules for the kernel that runs and for the one that would boot next.
    A package says that it is installed also when DKMS built nothing, because there were no headers at that time.
  - Where DKMS has the source and the kernel has its headers, what is missing is built now. One build at a time.
  - Fails in one line, with the compiler's own word.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host.proc
attributes:
  diff_mode:
    support: N/A
    details: What is built are binaries.
options:
  root:
    description:
      - Directory below which the host's files are.
    type: path
    default: /
  kernel:
    description:
      - Release of the kernel for which the driver is prepared. When left out, the one that runs.
    type: str
  dkms:
    description:
      - Name or path of DKMS.
    type: path
    default: dkms
  timeout:
    description:
      - Longest time for one build, in seconds.
    type: int
    default: 3600
seealso:
  - module: gpuops.fleet.driver_loaded
"""

EXAMPLES = r"""
- name: Have the modules built
  gpuops.fleet.driver_built:
"""

RETURN = r"""
driver:
  description: Version of the installed driver.
  returned: success
  type: str
  sample: 550.163.01
kernels:
  description: The kernels that count.
  returned: success
  type: list
  elements: str
  sample: [6.12.107+deb13-amd64]
built:
  description: Those for which modules were built, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: []
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.driver_load import Options, build
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

SPEC: dict[str, t.Any] = {
    "root": {"type": "path", "default": "/"},
    "proc_root": {"type": "path", "default": "/proc"},
    "kernel": {"type": "str"},
    "dkms": {"type": "path", "default": "dkms"},
    "timeout": {"type": "int", "default": 3600},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    arguments = dict(module.params)
    kernel = arguments.pop("kernel") or None
    try:
        result = build(Options(kernel=kernel, **arguments), module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
