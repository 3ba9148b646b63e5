#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Link NVIDIA's device nodes by their numbers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dev_char
short_description: Link NVIDIA's device nodes by their numbers, as systemd looks for them
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Makes the links C(/dev/char/MAJOR:MINOR) that NVIDIA's driver does not make. Without them, a reload of systemd may take GPUs from
    running containers (M(gpuops.fleet.engine_act)).
  - Links of nodes that are there now are made. Those of a later boot, and of slices that are made later, need a rule of udev, which role
    P(gpuops.fleet.container_toolkit#role) installs.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
options:
  dev_root:
    description:
      - Where device nodes are.
    type: path
    default: /dev
seealso:
  - module: gpuops.fleet.engine_act
"""

EXAMPLES = r"""
- name: Have systemd find the devices of containers
  gpuops.fleet.dev_char:
"""

RETURN = r"""
links:
  description: Links that were made, or would be.
  returned: success
  type: list
  elements: str
  sample: ['/dev/char/195:0', '/dev/char/195:255']
diff:
  description: The links.
  returned: success
  type: dict
  contains:
    before:
      description: Always empty.
      type: str
    after:
      description: One link a line, with what it leads to.
      type: str
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import dev_char
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

SPEC: dict[str, t.Any] = {"dev_root": {"type": "path", "default": "/dev"}}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when a link cannot be made."""
    links = dev_char.missing(Path(params["dev_root"]))
    if not check:
        dev_char.make(links)
    after = "".join(f"{link} -> {target}\n" for link, target in links.items())
    return {"changed": bool(links), "links": list(links), "diff": {"before": "", "after": after}}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
