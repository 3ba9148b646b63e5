#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what a host is before it has a driver."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_info
short_description: Read what a host is before it has a driver
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Reads the boards on the PCI bus, the kernels and their headers, what of a driver is installed, held and loaded, Secure Boot and free
    space. M(gpuops.fleet.driver_plan) decides from it which driver the host shall have.
  - Needs neither a driver nor a Python package on the host. Changes nothing.
  - What could not be read is V(none) or empty, and RV(facts.errors) has a line about it.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.sys
options:
  packages:
    description:
      - Packages whose versions the host's sources are asked for, with C(apt-cache) or C(dnf).
    type: list
    elements: str
    default: []
  kernel:
    description:
      - Release of the kernel for which a driver is prepared. When left out, the one that runs.
    type: str
  root:
    description:
      - Directory below which the host's files are.
    type: path
    default: /
  apt_cache:
    description:
      - Name or path of apt's program.
    type: path
    default: apt-cache
  rpm:
    description:
      - Name or path of rpm.
    type: path
    default: rpm
  dnf:
    description:
      - Name or path of dnf.
    type: path
    default: dnf
  dkms:
    description:
      - Name or path of DKMS.
    type: path
    default: dkms
  mokutil:
    description:
      - Name or path of the program that knows the firmware's keys.
    type: path
    default: mokutil
  timeout:
    description:
      - Longest time for one answer of one of them, in seconds.
    type: int
    default: 120
seealso:
  - module: gpuops.fleet.driver_plan
  - module: gpuops.fleet.gpu_info
"""

EXAMPLES = r"""
- name: Read what is there
  gpuops.fleet.driver_info:
    packages: [nvidia-kernel-dkms, nvidia-smi]
  register: bare
"""

RETURN = r"""
facts:
  description: What was found.
  returned: success
  type: dict
  contains:
    os:
      description: C(id), C(version) and C(codename) of the operating system.
      returned: always
      type: dict
      sample: {id: debian, version: '13', codename: trixie}
    architecture:
      description: Of the machine, as C(uname -m) has it.
      returned: always
      type: str
      sample: x86_64
    kernel:
      description: The release that C(running) is, the one that boots C(next), and which of those installed have their C(headers).
      returned: always
      type: dict
      sample: {running: 6.12.107+deb13-amd64, next: 6.12.107+deb13-amd64, headers: {6.12.107+deb13-amd64: true}}
    boards:
      description: GPUs on the PCI bus, with their address, device id, class and the driver that holds them.
      returned: always
      type: list
      elements: dict
      sample: [{pci: '0000:07:00.0', device: 20b2, class: '0x030200', driver: nvidia}]
    switches:
      description: Number of NVSwitches on the PCI bus.
      returned: always
      type: int
      sample: 0
    loaded:
      description: C(version) and C(flavour) of the loaded kernel module, and whether C(nouveau) is loaded.
      returned: always
      type: dict
      sample: {version: 580.95.05, flavour: open, nouveau: false}
    installed:
      description:
        - C(driver) is the version of the installed library, C(flavour) the kind of installed kernel modules, C(runfile) whether NVIDIA's
          installer was used, C(packages) the version of each package that has to do with a driver.
        - C(kind) is V(vgpu-host) where the vGPU host driver is installed, V(ordinary) where another one is.
      returned: always
      type: dict
      sample: {driver: 550.163.01, flavour: open, kind: ordinary, runfile: false, packages: {nvidia-smi: 550.163.01-2}}
    held:
      description: Packages among them that are held.
      returned: always
      type: list
      elements: str
      sample: [nvidia-smi]
    unfinished:
      description:
        - What an earlier installation left. Whether dpkg was C(interrupted), so that apt refuses to go on, and the C(packages) that are
          unpacked and not configured, or less.
      returned: always
      type: dict
      sample: {interrupted: false, packages: []}
    recorded:
      description: What role P(gpuops.fleet.nvidia_driver#role) wrote down on the host.
      returned: always
      type: dict
      sample: {held: [nvidia-smi]}
    candidates:
      description: Versions that the host's sources have of O(packages), the newest first; V(none) where no package was asked for.
      returned: always
      type: dict
      sample: {nvidia-smi: [550.163.01-2]}
    sources:
      description: Apt's sources of packages.
      returned: always
      type: list
      elements: dict
      sample: [{uris: ['http://mirror.example.com/debian'], suites: [trixie], components: [main], signed_by: ''}]
    repository:
      description: Text of the file with which the role tells apt or dnf of another source; V(none) where there is none.
      returned: always
      type: str
      sample: null
    dkms:
      description: What DKMS has of NVIDIA's modules.
      returned: always
      type: list
      elements: dict
      sample: [{module: nvidia-current, version: 550.163.01, kernel: 6.12.107+deb13-amd64, state: installed}]
    secure_boot:
      description: Whether the firmware enforces signatures; V(none) on a machine without UEFI.
      returned: always
      type: bool
      sample: false
    key_enrolled:
      description: Whether the firmware knows the key that DKMS signs with; V(none) where there is no key, or nobody to ask.
      returned: always
      type: bool
      sample: null
    space:
      description: Free space in MiB. C(device) tells which directories share a file system.
      returned: always
      type: list
      elements: dict
      sample: [{path: /usr, device: 2049, free_mib: 51200}]
    errors:
      description: What could not be read, one line each.
      returned: always
      type: list
      elements: str
      sample: []
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.driver_look import Options, look

SPEC: dict[str, t.Any] = {
    "packages": {"type": "list", "elements": "str", "default": []},
    "kernel": {"type": "str"},
    "root": {"type": "path", "default": "/"},
    "proc_root": {"type": "path", "default": "/proc"},
    "sys_root": {"type": "path", "default": "/sys"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "apt_cache": {"type": "path", "default": "apt-cache"},
    "rpm": {"type": "path", "default": "rpm"},
    "dnf": {"type": "path", "default": "dnf"},
    "dkms": {"type": "path", "default": "dkms"},
    "mokutil": {"type": "path", "default": "mokutil"},
    "timeout": {"type": "int", "default": 120},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    arguments = dict(module.params)
    packages = tuple(arguments.pop("packages"))
    kernel = arguments.pop("kernel") or None
    module.exit_json(changed=False, facts=look(Options(packages=packages, kernel=kernel, **arguments)))


if __name__ == "__main__":
    main()
