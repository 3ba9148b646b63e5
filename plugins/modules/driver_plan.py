#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_plan
short_description: Say which driver a host shall have, and what is to be done for it
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Chooses branch and kernel modules from the boards that are in a host, and says which packages, from where, that are. Nothing is
    changed, here or there.
  - Fails in one line where the wish cannot be met. So that nothing is installed by halves, that is judged before anything is installed.
    Two boards that no driver drives together; a branch that drops a board; a downgrade; a package that is held; a kernel without
    headers; too little space; Secure Boot without a key; services that run on the driver that would be changed.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.controller
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
options:
  host:
    description: Name of the host, for messages.
    type: str
    required: true
  facts:
    description: RV(gpuops.fleet.driver_info#module:facts) of the host.
    type: dict
    required: true
  gpus:
    description:
      - RV(gpuops.fleet.gpu_info#module:facts) of the host, gathered with holders and containers. Needed where a driver is loaded.
    type: dict
  today:
    description: The date on which it is judged which branches get fixes, such as V(2026-11-21).
    type: str
  source:
    description: Where the driver is from.
    type: str
    choices: [distribution, repository, mirror, runfile]
    default: distribution
  kind:
    description: Which driver. V(vgpu-host) is the one of a host that gives vGPUs to virtual machines, which is only had by O(runfile).
    type: str
    choices: [ordinary, vgpu-host]
    default: ordinary
  branch:
    description: The branch, such as V(580). When left out, the one that is there; else the best that O(source) has for the boards.
    type: int
  version:
    description: The exact version, such as V(580.95.05).
    type: str
    default: ''
  flavour:
    description: Which kernel modules. V(auto) takes what the boards need.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  boards:
    description: Boards of the catalogue for which a host without a GPU is prepared.
    type: list
    elements: str
    default: []
  packages:
    description: Further packages.
    type: list
    elements: str
    default: []
  allow_downgrade:
    description: Whether an older driver may replace a newer one.
    type: bool
    default: false
  secure_boot:
    description: V(enrolled) says that the firmware knows the key of DKMS also where nobody on the host can tell.
    type: str
    choices: [refuse, enrolled]
    default: refuse
  mirror:
    description: Address of a mirror, laid out as what it mirrors.
    type: str
    default: ''
  key:
    description: Address of the key that signs the repository. When left out, the file there.
    type: str
    default: ''
  key_checksum:
    description: Checksum of that key, V(sha256:...).
    type: str
    default: ''
  runfile:
    description: Address of NVIDIA's installer (C(.run)), or of its package (C(.deb), C(.rpm)).
    type: str
    default: ''
  runfile_checksum:
    description: Checksum of that file, V(sha256:...).
    type: str
    default: ''
  persistence:
    description: Whether the persistence daemon belongs to it.
    type: bool
    default: true
  fabric_manager:
    description: Whether the fabric manager belongs to it. V(auto) asks the PCI bus for NVSwitches.
    type: str
    choices: [auto, always, never]
    default: auto
  space:
    description: MiB that have to be free, by directory, over those of the collection.
    type: dict
    default: {}
seealso:
  - module: gpuops.fleet.driver_info
  - module: gpuops.fleet.compat
"""

EXAMPLES = r"""
- name: Read what is there
  gpuops.fleet.driver_info:
  register: bare

- name: Decide which driver it shall have
  gpuops.fleet.driver_plan:
    host: "{{ inventory_hostname }}"
    facts: "{{ bare.facts }}"
    source: repository
    branch: 580
    key_checksum: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  register: wish
"""

RETURN = r"""
why:
  description: Branch and kernel modules, and why these.
  returned: success
  type: str
  sample: 'R580: asked for; proprietary kernel modules: v100-sxm2-32gb needs them'
steps:
  description: What is to be done, one line each.
  returned: success
  type: list
  elements: str
  sample: [install linux-headers-6.12.107+deb13-amd64 6.12.107-1]
warnings:
  description: What may go wrong all the same.
  returned: success
  type: list
  elements: str
  sample: []
system:
  description: The operating system as this collection knows it.
  returned: success
  type: str
  sample: debian 13
family:
  description: V(debian) or V(redhat).
  returned: success
  type: str
  sample: debian
boards:
  description: Kinds of GPU that it was chosen for.
  returned: success
  type: list
  elements: str
  sample: [l40s]
branch:
  description: The branch.
  returned: success
  type: int
  sample: 580
flavour:
  description: V(open) or V(proprietary).
  returned: success
  type: str
  sample: open
here:
  description: Version of the driver that is there; V(none) where there is none.
  returned: success
  type: str
  sample: null
names:
  description: All packages that shall be there, for O(gpuops.fleet.driver_info#module:packages).
  returned: success
  type: list
  elements: str
  sample: [dkms, gcc, nvidia-open-kernel-dkms, nvidia-smi, libcuda1]
complete:
  description: Whether the host's sources have been asked for all of them, so that RV(install) has versions.
  returned: success
  type: bool
  sample: true
repository:
  description: The file that tells the host of another source; V(none) where it needs none.
  returned: success
  type: dict
  sample: null
stream:
  description: Stream of the application streams of RHEL that has to be enabled; V(none) where there is none.
  returned: success
  type: str
  sample: null
install:
  description: Version by package of what is to be installed.
  returned: success
  type: dict
  sample: {nvidia-smi: 550.163.01-2}
specs:
  description: The same as apt or dnf take it. What DKMS builds with comes C(first).
  returned: success
  type: dict
  sample: {first: [dkms=3.2.2-1~deb13u1], then: [nvidia-smi=550.163.01-2]}
remove:
  description: Packages of another driver that is to go.
  returned: success
  type: list
  elements: str
  sample: []
hold:
  description: Packages that are held afterwards.
  returned: success
  type: list
  elements: str
  sample: [nvidia-smi]
unhold:
  description: Those of them that this role holds and that are to change.
  returned: success
  type: list
  elements: str
  sample: []
runfile:
  description: Address, checksum, version and form (V(run), V(deb), V(rpm)) of NVIDIA's installer or package, where it is to run.
  returned: success
  type: dict
  sample: null
upgrade:
  description: Whether a driver that is there is replaced.
  returned: success
  type: bool
  sample: false
daemon:
  description: Whether the persistence daemon belongs to it.
  returned: success
  type: bool
  sample: true
fabric:
  description: Whether the fabric manager does.
  returned: success
  type: bool
  sample: false
"""
