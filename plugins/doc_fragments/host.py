# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things are on a GPU host. Every path is an option, with the usual place as its default."""

from __future__ import annotations


class ModuleDocFragment:
    """The parts C(gpuops.fleet.host[.part]) of a module's documentation."""

    # The collection's own papers.
    DOCUMENTATION = r"""
options:
  state_dir:
    description:
      - Directory on the host in which the collection keeps its own papers, which are
        the plan that the host carries, the lease and the journal.
    type: path
    default: /var/lib/gpuops-fleet
"""

    # What the kernel shows of processes and drivers.
    PROC = r"""
options:
  proc_root:
    description:
      - Where the kernel's C(proc) file system is mounted.
    type: path
    default: /proc
"""

    # What it shows of devices.
    SYS = r"""
options:
  sys_root:
    description:
      - Where the kernel's C(sysfs) file system is mounted.
    type: path
    default: /sys
"""

    # The container engine.
    ENGINE = r"""
options:
  docker_socket:
    description:
      - Unix socket of the Docker engine.
    type: path
    default: /var/run/docker.sock
"""

    # What it reads.
    CDI = r"""
options:
  cdi_dirs:
    description:
      - Directories with specifications of the Container Device Interface (CDI).
    type: list
    elements: path
    default:
      - /etc/cdi
      - /var/run/cdi
"""

    # Where services live.
    SERVICES = r"""
options:
  services_dir:
    description:
      - Directory that holds one directory for each replica of a service.
    type: path
    default: /srv/gpuops/services
"""

    # One writer a host: a module that changes what others rely on.
    LEASE = r"""
options:
  lease:
    description:
      - Token of the lease under which the play runs, from M(gpuops.fleet.host_lease). It is checked before each change.
      - Without it, the module refuses to change a host that somebody has leased.
    type: str
"""

    # One writer a host: a module that touches what belongs to one service alone.
    LEASE_IF_GIVEN = r"""
options:
  lease:
    description:
      - Token of the lease under which the play runs, from M(gpuops.fleet.host_lease). Without it, the module asks for no lease.
    type: str
"""

    # What a replica is given.
    DEVICES = r"""
options:
  entries:
    description:
      - The devices of a replica, each by the variable of its C(.env), in the order in which they are written there.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the variable.
        type: str
        required: true
      gpu:
        description: UUID, PCI address or index of the GPU.
        type: str
        required: true
      profile:
        description: MIG profile of the slice. If left out, the variable names the whole GPU.
        type: str
      start:
        description: Memory slice at which the slice starts. Needed with O(entries[].profile).
        type: int
  style:
    description:
      - How the container engine is told of a device.
      - V(uuid) is its UUID, for C(device_ids) of Compose and the NVIDIA runtime.
      - V(cdi) is C(nvidia.com/gpu=UUID), a name of the Container Device Interface.
    type: str
    choices:
      - uuid
      - cdi
    default: uuid
"""
