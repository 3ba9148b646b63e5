#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give devices of this host to a libvirt domain, with what has to go along."""

from __future__ import annotations

DOCUMENTATION = r"""
module: guest_devices
short_description: Give devices of this host to a libvirt domain
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Makes the definition of a domain have the devices of O(devices), and no other that this module gave it. What others wrote in the
    definition is kept; where it contradicts a wish, the wish is refused, and both are named.
  - A PCI device is managed by libvirt, which takes it from its driver when the domain starts. A virtual function of NVIDIA's vGPU
    framework is not, because it stays with NVIDIA's driver. A mediated device is known by its UUID.
  - Sizes the window in which UEFI places 64-bit BARs from the BARs of the devices. Binds memory and processors to their NUMA node, and
    backs the memory with huge pages if that is wished.
  - libvirt's own schema judges the definition, and the result is read back. A domain that runs is not disturbed (RV(pending)).
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.sys
requirements:
  - C(virsh) of libvirt 6.5 or newer
options:
  domain:
    description:
      - Name of the domain. It has to be defined.
      - Without it, what this module gave to domains is taken from all but those in O(keep).
    type: str
  keep:
    description:
      - Domains that keep what they have.
    type: list
    elements: str
    default: []
  devices:
    description:
      - Devices by what they are known by for good, which is the PCI address, the UUID of a GPU (V(GPU-...)), or the UUID of a mediated
        device.
      - A GPU that was given away is found by what module P(gpuops.fleet.passthrough#module) wrote down of it.
    type: list
    elements: str
    default: []
  numa:
    description:
      - Whether memory and processors of the domain are bound to the NUMA node of its devices, where they have one in common and the host
        has several.
    type: bool
    default: true
  hugepages:
    description:
      - Size of the huge pages that back the memory. Empty for none.
    type: str
    choices: ['', 2M, 1G]
    default: ''
  mmio:
    description:
      - Window for 64-bit BARs. V(auto) computes it, V(off) leaves it to the firmware, and a power of two is its size in MiB.
    type: str
    default: auto
  connection:
    description:
      - libvirt's address.
    type: str
    default: qemu:///system
  virsh:
    description:
      - Name or path of libvirt's program.
    type: path
    default: virsh
  deadline:
    description:
      - Longest time for one answer of libvirt or the kernel, in seconds.
    type: int
    default: 60
seealso:
  - module: gpuops.fleet.kernel_parameters
  - name: Domain XML format
    description: What libvirt knows of host devices.
    link: https://libvirt.org/formatdomain.html#host-device-assignment
"""

EXAMPLES = r"""
- name: Give a card to a virtual machine
  gpuops.fleet.guest_devices:
    domain: gpu-stage-01
    devices:
      - GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
    hugepages: 1G

- name: Take it back
  gpuops.fleet.guest_devices:
    domain: gpu-stage-01

- name: Take back what any other domain was given
  gpuops.fleet.guest_devices:
    keep: [gpu-stage-01]
"""

RETURN = r"""
devices:
  description: The devices, as the domain knows them.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description: V(pci) or V(mdev).
      type: str
    source:
      description: PCI address or UUID.
      type: str
    managed:
      description: Whether libvirt takes it from its driver and gives it back.
      type: bool
  sample: [{kind: pci, source: '0000:3b:00.0', managed: true}]
node:
  description: NUMA node that the domain is bound to; V(none) for none.
  returned: success
  type: int
  sample: 1
mmio_mib:
  description: Window for 64-bit BARs in MiB; V(none) where the firmware's own is enough.
  returned: success
  type: int
  sample: 262144
pending:
  description: What waits for the domain to be shut down; V(none) when nothing does.
  returned: success
  type: str
  sample: null
diff:
  description: Devices and what goes along with them, a line each. Nothing else of the definition is shown.
  returned: success
  type: dict
  contains:
    before:
      description: As it was.
      type: str
    after:
      description: As it is.
      type: str
    before_header:
      description: Name of the domain.
      type: str
    after_header:
      description: Name of the domain.
      type: str
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.guest_devices import Options, apply

SPEC: dict[str, t.Any] = {
    "domain": {"type": "str"},
    "keep": {"type": "list", "elements": "str", "default": []},
    "devices": {"type": "list", "elements": "str", "default": []},
    "numa": {"type": "bool", "default": True},
    "hugepages": {"type": "str", "choices": ["", "2M", "1G"], "default": ""},
    "mmio": {"type": "str", "default": "auto"},
    "connection": {"type": "str", "default": "qemu:///system"},
    "virsh": {"type": "path", "default": "virsh"},
    "deadline": {"type": "int", "default": 60},
    "proc_root": {"type": "path", "default": "/proc"},
    "sys_root": {"type": "path", "default": "/sys"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec=SPEC, mutually_exclusive=[("domain", "keep")], required_one_of=[("domain", "keep")], supports_check_mode=True
    )
    try:
        result = apply(Options(**module.params), module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
