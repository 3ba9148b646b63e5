#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the kernel the parameters that it lacks, by a drop-in of our own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_parameters
short_description: Give the kernel the parameters that it lacks
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Adds to the command line of the next boot what nobody gives there yet, and nothing else. What others wrote is never changed. Where it
    says the opposite of a wish, the wish is refused, and both are named.
  - GRUB of Debian and Ubuntu gets a file in C(/etc/default/grub.d) and C(update-grub). With systemd-boot, a program in
    C(/etc/kernel/install.d) adds to the entry of each new kernel, and entries that are there get the same at once. On the family of Red Hat
    C(grubby) keeps the arguments, and the host remembers which are ours.
  - Without parameters, everything that this O(name) gave is taken away.
  - What boots next is read back afterwards. Nothing is in force before a reboot, and this module never reboots (RV(pending)).
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.sys
options:
  name:
    description:
      - Name of the drop-in. Each owner of parameters has one of its own.
    type: str
    required: true
  parameters:
    description:
      - Parameters, such as V(isolcpus=2-7). Where the order counts, several of them in one item, such as V(hugepagesz=1G hugepages=64).
    type: list
    elements: str
    default: []
  hugepages:
    description:
      - Huge pages that are set aside at the boot, by their size (V(2M) or V(1G)), each with their number.
    type: dict
    default: {}
  iommu:
    description:
      - Whether the parameters belong to it that the IOMMU of this processor needs with the kernels of this host. AMD's needs none, nor does
        Intel's where all kernels are built to have it on.
      - A parameter that switches it off is then refused.
    type: bool
    default: false
  identity:
    description:
      - With O(iommu), whether devices that stay with the host are not translated (C(iommu=pt)). GPUs that copy to each other without the
        processor want that.
    type: bool
    default: false
  loader:
    description:
      - The boot loader. V(auto) finds it.
    type: str
    choices: [auto, grub, grubby, systemd-boot]
    default: auto
  root:
    description:
      - Root of the file system.
    type: path
    default: /
  deadline:
    description:
      - Longest time for one program of the boot loader, in seconds.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Have an IOMMU that works, and 64 pages of 1 GiB
  gpuops.fleet.kernel_parameters:
    name: passthrough
    iommu: true
    hugepages:
      1G: 64
  register: parameters

- name: Say what waits
  ansible.builtin.debug:
    msg: "{{ parameters.pending }}"
  when: parameters.pending is not none

- name: Take all of it away
  gpuops.fleet.kernel_parameters:
    name: passthrough
"""

RETURN = r"""
loader:
  description: The boot loader that was found.
  returned: success
  type: str
  sample: grub
path:
  description: Our drop-in; with C(grubby), where it is written down what is ours.
  returned: success
  type: str
  sample: /etc/default/grub.d/99-gpuops-fleet-passthrough.cfg
parameters:
  description: What we give.
  returned: success
  type: list
  elements: str
  sample: [intel_iommu=on]
given:
  description: What is wished and given by others.
  returned: success
  type: list
  elements: str
  sample: [iommu=pt]
removed:
  description: What we gave and took away.
  returned: success
  type: list
  elements: str
  sample: []
pending:
  description: What waits for a reboot; V(none) when nothing does.
  returned: success
  type: str
  sample: the running kernel was not given intel_iommu=on
iommu:
  description: The IOMMU as it is now.
  returned: success
  type: dict
  contains:
    vendor:
      description: Who made the processor, in its own words.
      type: str
    active:
      description: Whether it works, by its function.
      type: bool
    problem:
      description: Why it does not although nothing waits for a reboot.
      type: str
  sample: {vendor: GenuineIntel, active: true, problem: null}
leftover:
  description: What was taken away and is in force until a reboot; V(none) when nothing is.
  returned: success
  type: str
  sample: null
diff:
  description: The drop-in before and after.
  returned: success
  type: dict
  contains:
    before:
      description: Its text, empty when there was none.
      type: str
    after:
      description: Its text.
      type: str
    before_header:
      description: Its path.
      type: str
    after_header:
      description: Its path.
      type: str
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.kernel_line import Options, apply

SPEC: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "parameters": {"type": "list", "elements": "str", "default": []},
    "hugepages": {"type": "dict", "default": {}},
    "iommu": {"type": "bool", "default": False},
    "identity": {"type": "bool", "default": False},
    "loader": {"type": "str", "choices": ["auto", "grub", "grubby", "systemd-boot"], "default": "auto"},
    "root": {"type": "path", "default": "/"},
    "deadline": {"type": "int", "default": 300},
    "proc_root": {"type": "path", "default": "/proc"},
    "sys_root": {"type": "path", "default": "/sys"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = apply(Options(**module.params), module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
