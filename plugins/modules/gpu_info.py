#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a GPU host in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read the facts of a GPU host
version_added: 0.1.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Reads one host in one call, which is its operating system, driver, IOMMU, container engine, GPUs with their MIG geometry and instances,
    and the plan that it carries.
  - Changes nothing, and does not fail because something is ill or missing. A GPU that is lost, a driver that is not loaded,
    a host without GPUs and an engine that does not answer are answers.
  - What could not be read is V(none), and RV(facts.errors) has a line about it.
  - The result stays below 16 KiB for eight GPUs with seven MIG slices each. Lists that can grow come when O(gather) asks for them.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.facts
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.sys
  - gpuops.fleet.host.engine
  - gpuops.fleet.host.cdi
  - gpuops.fleet.host.services
attributes:
  facts:
    support: full
    details: Only with O(as_facts=true).
options:
  gather:
    description:
      - What to read beyond the usual.
      - V(holders) adds who holds each GPU, which are the processes that NVML lists and those that have a device or capability file open.
        Run as root, or the processes of others are not seen.
      - V(containers) adds every container that names a GPU, running or not.
    type: list
    elements: str
    choices:
      - holders
      - containers
    default: []
  as_facts:
    description:
      - Also return the facts as C(ansible_facts.gpuops_fleet), so that later tasks find them among the facts of the host.
    type: bool
    default: false
  os_release:
    description:
      - File that names the operating system, as in os-release, section 5 of the manual.
    type: path
    default: /etc/os-release
  shm_path:
    description:
      - Where the host's shared memory is mounted; its size is a fact.
    type: path
    default: /dev/shm
  nvidia_ctk:
    description:
      - Name or path of the program of NVIDIA's container toolkit; its version is a fact.
    type: path
    default: nvidia-ctk
  parent:
    description:
      - Of a virtual machine, its physical host and the cards of that which it has, as the inventory says (C(fleet_parent)). A guest
        cannot find that out.
    type: dict
    suboptions:
      host:
        description:
          - Name of the physical host in the inventory.
        type: str
        required: true
      gpus:
        description:
          - Its cards or vGPUs, by UUID or PCI address on that host.
        type: list
        elements: str
        required: true
      domain:
        description:
          - Name of this guest on that host.
        type: str
requirements:
  - nvidia-ml-py (Python package) on the host; without it RV(facts.driver.error) says so
seealso:
  - module: gpuops.fleet.mig
"""

EXAMPLES = r"""
- name: Read the host
  gpuops.fleet.gpu_info:
  register: fleet

- name: Show the model and temperature of each GPU
  ansible.builtin.debug:
    msg: "{{ item.pci }} {{ item.name }} {{ item.temperature_c }} C"
  loop: "{{ fleet.facts.gpus }}"
  loop_control:
    label: "{{ item.uuid }}"

- name: Read the host and who holds its GPUs, and keep all of it as facts
  gpuops.fleet.gpu_info:
    gather:
      - holders
      - containers
    as_facts: true

- name: Stop when a GPU is lost
  ansible.builtin.assert:
    that: ansible_facts.gpuops_fleet.gpus | rejectattr('state', 'equalto', 'ok') | length == 0
    fail_msg: "{{ ansible_facts.gpuops_fleet.errors | join('; ') }}"
"""

RETURN = r"""
facts:
  description: The facts of the host. C(docs/facts.md) of the collection shows all of them at once.
  returned: success
  type: dict
  contains:
    schema:
      description: Format of these facts.
      returned: always
      type: int
      sample: 1
    collection:
      description: Version of the code that read them.
      returned: always
      type: str
      sample: 0.1.0
    host:
      description: Operating system and machine.
      returned: always
      type: dict
      contains:
        hostname:
          description: Name of the host, as its kernel has it.
          returned: always
          type: str
          sample: gpu-prod-01
        os:
          description: Distribution.
          returned: always
          type: dict
          contains:
            id:
              description: Its short name.
              returned: always
              type: str
              sample: debian
            version:
              description: Its version; V(none) for a rolling release.
              returned: always
              type: str
              sample: '13'
        kernel:
          description: Release of the running kernel.
          returned: always
          type: str
          sample: 6.12.107
        gcc:
          description:
            - V(installed) is the version of C(gcc), V(kernel) that of the GCC that built the running kernel; V(none) when there is none,
              or nobody knows. V(matching) is whether a GCC of the kernel's major version is installed.
          returned: always
          type: dict
          sample: {installed: 14.2.0, kernel: 14.2.0, matching: true}
        boot_id:
          description: Changes with each boot.
          returned: always
          type: str
          sample: 4f1c3a52-98a1-4e0f-a6a5-2d3f0c1b7e11
        service_manager:
          description: Name of process 1, C(systemd) where the host agent can be installed; V(none) when O(proc_root) shows no process 1.
          returned: always
          type: str
          sample: systemd
        cpus:
          description: Online CPUs.
          returned: always
          type: int
          sample: 64
        memory_mib:
          description: Memory in MiB.
          returned: always
          type: int
          sample: 515072
        shm_mib:
          description: Size of the shared memory file system in MiB.
          returned: always
          type: int
          sample: 257536
        disk:
          description: File system of O(services_dir), or of its nearest parent that exists.
          returned: always
          type: dict
          contains:
            path:
              description: The directory that was measured.
              returned: always
              type: str
              sample: /srv/gpuops
            total_mib:
              description: Size in MiB.
              returned: always
              type: int
              sample: 1831420
            free_mib:
              description: What an ordinary user may still write, in MiB.
              returned: always
              type: int
              sample: 1203377
        ports_listening:
          description: TCP ports on which something listens, sorted.
          returned: always
          type: list
          elements: int
          sample: [22, 9100]
        drain:
          description: Who drained the whole host, as the C(drain) of a GPU; V(none) when nobody did.
          returned: always
          type: dict
          sample: null
    driver:
      description: NVIDIA driver.
      returned: always
      type: dict
      contains:
        present:
          description: Whether NVML answers.
          returned: always
          type: bool
          sample: true
        version:
          description: Version of the driver.
          returned: always
          type: str
          sample: 580.105.08
        nvml:
          description: Version of the NVML library.
          returned: always
          type: str
          sample: 13.580.105.08
        cuda:
          description: Newest CUDA that the driver supports.
          returned: always
          type: str
          sample: '13.0'
        flavour:
          description: V(open) or V(proprietary), as the loaded kernel module says; V(none) when none is loaded.
          returned: always
          type: str
          sample: open
        vgpu_host:
          description:
            - Inside a virtual machine with a vGPU, version of the driver on the host below, which that host writes into the PCI
              configuration of a vGPU. V(none) on any other host, and where it is not there.
          returned: always
          type: str
          sample: 580.105.06
        error:
          description: Why NVML does not answer.
          returned: always
          type: str
          sample: 'nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED (Driver Not Loaded)'
    iommu:
      description: IOMMU of the host.
      returned: always
      type: dict
      contains:
        groups:
          description: Number of IOMMU groups.
          returned: always
          type: int
          sample: 42
        active:
          description: Whether there are groups and an IOMMU behind them, so that a device can be passed to a VM.
          returned: always
          type: bool
          sample: true
    engine:
      description: What runs containers.
      returned: always
      type: dict
      contains:
        docker:
          description: The Docker engine behind O(docker_socket).
          returned: always
          type: dict
          contains:
            present:
              description: Whether it answers.
              returned: always
              type: bool
              sample: true
            version:
              description: Its version.
              returned: always
              type: str
              sample: 28.3.0
            cdi:
              description: Whether it takes devices by their CDI names.
              returned: always
              type: bool
              sample: true
            runtimes:
              description: Names of its runtimes, sorted.
              returned: always
              type: list
              elements: str
              sample: [nvidia, runc]
            error:
              description: Why it does not answer.
              returned: always
              type: str
              sample: no socket /var/run/docker.sock
        compose:
          description: Version of the Compose plugin; V(none) without one.
          returned: always
          type: str
          sample: 2.38.1
        live_restore:
          description: Whether containers outlive the engine now, as it says itself; V(none) when it does not answer.
          returned: always
          type: bool
          sample: true
        container_toolkit:
          description: Version of NVIDIA's container toolkit, as C(nvidia-ctk --version) prints it; V(none) without that program.
          returned: always
          type: str
          sample: 1.17.8
        cdi_specs:
          description: CDI specifications in O(cdi_dirs).
          returned: always
          type: list
          elements: str
          sample: [/var/run/cdi/nvidia.yaml]
    geometries:
      description:
        - What MIG can cut out of each distinct board.
        - The key is a digest of 12 hexadecimal digits, to which RV(facts.gpus[].mig.geometry) points.
      returned: always
      type: dict
      sample:
        3f0c9b1d2e4a:
          compute_slices: 7
          memory_slices: 8
          profiles:
            - {name: 1g.10gb, id: 19, slices: 1, size: 1, memory_mib: 9856, sm: 14, max: 7, starts: [0, 1, 2, 3, 4, 5, 6]}
    gpus:
      description: The GPUs by PCI address.
      returned: always
      type: list
      elements: dict
      contains:
        uuid:
          description: What the GPU is called everywhere.
          returned: always
          type: str
          sample: GPU-5c1f8b0a-7a0e-4c1e-9a55-d3a1f7f0c9a1
        pci:
          description: PCI address in the form of sysfs.
          returned: always
          type: str
          sample: '0000:07:00.0'
        index:
          description: NVML's index, for people; nothing is found by it.
          returned: always
          type: int
          sample: 0
        minor:
          description: Number of its device file, C(/dev/nvidia0).
          returned: always
          type: int
          sample: 0
        name:
          description: Product name.
          returned: always
          type: str
          sample: NVIDIA A100-SXM4-80GB
        device_id:
          description: PCI device and vendor id.
          returned: always
          type: str
          sample: '0x20B210DE'
        architecture:
          description: Architecture in lower case; V(none) for one that is newer than the collection.
          returned: always
          type: str
          sample: ampere
        compute_capability:
          description: CUDA compute capability.
          returned: always
          type: str
          sample: '8.0'
        virtualization:
          description: How this operating system has the GPU, V(none), V(passthrough), V(vgpu), V(host_vgpu) or V(host_vsga).
          returned: always
          type: str
          sample: none
        parent:
          description:
            - PCI address of the physical card, which is its own, or of the card whose virtual function it is.
            - In a virtual machine with O(parent), the card of that host as O(parent) names it; V(none) when it cannot be told which.
          returned: always
          type: str
          sample: '0000:07:00.0'
        parent_host:
          description: The physical host, where O(parent) names it; V(none) when the card is this host's own.
          returned: always
          type: str
          sample: null
        state:
          description: V(ok); V(lost) when it fell off the bus; V(error) when something that decisions need cannot be read.
          returned: always
          type: str
          sample: ok
        error:
          description: NVML's word when RV(facts.gpus[].state) is not V(ok).
          returned: always
          type: str
          sample: 'nvmlDeviceGetHandleByIndex: NVML_ERROR_GPU_IS_LOST (GPU is lost)'
        memory_mib:
          description: Memory in MiB.
          returned: always
          type: int
          sample: 81920
        memory_used_mib:
          description: Memory in use in MiB, without what the driver reserves.
          returned: always
          type: int
          sample: 512
        mig:
          description: MIG; V(none) for a board without it.
          returned: always
          type: dict
          contains:
            current:
              description: Whether MIG is on.
              returned: always
              type: bool
              sample: true
            pending:
              description: Whether MIG will be on after the next reset or reboot.
              returned: always
              type: bool
              sample: true
            resetless:
              description: Whether a change of mode needs no reset.
              returned: always
              type: bool
              sample: false
            geometry:
              description: Key in RV(facts.geometries); V(none) when the driver does not tell while MIG is off.
              returned: always
              type: str
              sample: 3f0c9b1d2e4a
            instances:
              description: GPU instances by start, each with its compute instances. One without compute instances can be used by nobody yet.
                One with RV(ignore:temporary) was made for a rollout and goes when that ends.
              returned: always
              type: list
              elements: dict
              sample:
                - gi: 9
                  profile: 1g.10gb
                  start: 2
                  ci: [{id: 0, profile: 1g.10gb, uuid: MIG-3f0c9b1d-2e4a-5c1f-8b0a-7a0e4c1e9a55}]
        nvlink:
          description:
            - PCI addresses of the GPUs of this host that NVLink joins this one with, whether by a bridge or through switches.
            - V(none) where that is not known. The driver or the board does not tell, or the GPU is in MIG mode, in which it reaches
              no other.
          returned: always
          type: list
          elements: str
          sample: ['0000:0a:00.0']
        temperature_c:
          description: Temperature in degrees Celsius.
          returned: always
          type: int
          sample: 39
        power_w:
          description: Power draw in W.
          returned: always
          type: int
          sample: 83
        power_limit_w:
          description: Power limit in W.
          returned: always
          type: int
          sample: 400
        persistence:
          description: Whether the driver keeps the GPU initialised when nobody uses it.
          returned: always
          type: bool
          sample: true
        compute_mode:
          description: V(default), V(prohibited) or V(exclusive_process).
          returned: always
          type: str
          sample: default
        ecc:
          description: ECC mode; V(none) without ECC.
          returned: always
          type: dict
          contains:
            current:
              description: Whether ECC is on.
              returned: always
              type: bool
              sample: true
            pending:
              description: Whether ECC will be on after the next reset or reboot.
              returned: always
              type: bool
              sample: true
        vgpu:
          description: What it gives to virtual machines in parts; V(none) when it has neither vGPUs nor virtual functions.
          returned: always
          type: dict
          contains:
            vfs:
              description: How many virtual functions are on.
              returned: always
              type: int
              sample: 16
            vgpus:
              description:
                - Its vGPUs, each with C(type), C(place), which is the virtual function or the parent of mediated devices, and C(uuid) of
                  a mediated device.
              returned: always
              type: list
              elements: dict
              sample: [{type: A100D-10C, place: '0000:07:00.4', uuid: null}]
        drain:
          description: Who drained this GPU with M(gpuops.fleet.gpu_drain); V(none) when nobody did.
          returned: always
          type: dict
          contains:
            by:
              description: Who.
              returned: always
              type: str
              sample: lin
            reason:
              description: Why.
              returned: always
              type: str
              sample: fan
            since:
              description: Since when.
              returned: always
              type: str
              sample: '2026-11-21T12:00:00Z'
            until:
              description: Until when; V(none) without an end.
              returned: always
              type: str
              sample: '2026-12-01T23:59:59Z'
            force:
              description: Whether what finds no place elsewhere has to go all the same.
              returned: always
              type: bool
              sample: false
        holders:
          description: Who holds the GPU or a slice of it; V(none) when that could not be read in full.
          returned: when O(gather) has V(holders)
          type: list
          elements: dict
          contains:
            pid:
              description: Process id.
              returned: always
              type: int
              sample: 4711
            process:
              description: Name of the process; V(none) when it is gone.
              returned: always
              type: str
              sample: python3
            user:
              description: Its user, by name or number.
              returned: always
              type: str
              sample: root
            container:
              description: Short id of the container that it is in.
              returned: always
              type: str
              sample: 0f3c9b1d2e4a
            slice:
              description: The slice by GPU instance and compute instance; V(none) for the GPU itself.
              returned: always
              type: dict
              sample: {gi: 9, ci: 0}
            kind:
              description: V(compute), V(graphics), V(mps) or V(open_file).
              returned: always
              type: str
              sample: compute
            path:
              description: The open file.
              returned: for V(open_file)
              type: str
              sample: /dev/nvidia0
    passthrough:
      description:
        - GPUs that a VFIO driver has, for virtual machines, and other devices that M(gpuops.fleet.passthrough) gave away.
          V(none) when they could not be read.
      returned: always
      type: list
      elements: dict
      contains:
        pci:
          description: PCI address.
          returned: always
          type: str
          sample: '0000:3b:00.0'
        parent:
          description: PCI address of the physical card, itself or the card whose virtual function it is.
          returned: always
          type: str
          sample: '0000:3b:00.0'
        uuid:
          description: UUID of the GPU as it was recorded; V(none) for one that something else gave away.
          returned: always
          type: str
          sample: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
        identity:
          description: Which piece of hardware it is, C(vendor), C(device), C(subsystem), C(serial) and C(uuid) as far as they are known.
          returned: always
          type: dict
          sample: {vendor: '0x10de', device: '0x20b5', subsystem: '10de:1533', serial: null, uuid: GPU-5c1f}
        driver:
          description: The driver that has it.
          returned: always
          type: str
          sample: vfio-pci
        group:
          description: Its IOMMU group.
          returned: always
          type: int
          sample: 20
        numa_node:
          description: The NUMA node that it is near to; V(none) when nobody knows.
          returned: always
          type: int
          sample: 0
        bars_mib:
          description: Sizes of its memory regions in MiB.
          returned: always
          type: list
          elements: int
          sample: [16, 131072, 32]
        resets:
          description: How the kernel can reset it.
          returned: always
          type: list
          elements: str
          sample: [flr, bus]
        recorded:
          description: Whether this collection gave it away, and it is the same card still.
          returned: always
          type: bool
          sample: true
        persist:
          description: Whether it is given away again after a boot.
          returned: always
          type: bool
          sample: true
        since:
          description: When it was given away; V(none) for one that something else gave away.
          returned: always
          type: str
          sample: '2026-11-22T03:00:00Z'
        users:
          description: Who uses it, in words.
          returned: always
          type: list
          elements: str
          sample: []
    parent:
      description: O(parent) as it is used, addresses in sysfs form; V(none) without.
      returned: always
      type: dict
      sample: null
    drains_idle:
      description:
        - Drains on record that drain nothing, each with C(gpu) (V(none) for the whole host) and C(why), which is V(ended) when its time
          is over and V(gone) when no GPU of the host has its UUID. V(none) when what is drained could not be read.
      returned: always
      type: list
      elements: dict
      sample: []
    leases:
      description: Leases of services on this host, by name (docs/leases.md); V(none) when they could not be read.
      returned: always
      type: list
      elements: dict
      contains:
        name:
          description: The replica.
          returned: always
          type: str
          sample: notebook-1
        ends:
          description: When its lease ends, or earlier, when it ends because its GPU is idle.
          returned: always
          type: str
          sample: '2026-12-01T12:00:00Z'
        ended:
          description: When it ended; V(none) while it lasts.
          returned: always
          type: str
          sample: '2026-12-01T12:03:10Z'
        why:
          description: Why it ended, V(lease over), V(idle), or who ended it; V(none) while it lasts.
          returned: always
          type: str
          sample: lease over
        noticed:
          description: Whether notice of its end is given.
          returned: always
          type: bool
          sample: false
    plan:
      description: The plan that the host carries; V(none) when it carries none.
      returned: always
      type: dict
      contains:
        serial:
          description: Serial number of the plan.
          returned: always
          type: int
          sample: 3
        digest:
          description: Digest of its layout and services.
          returned: always
          type: str
          sample: sha256:9b1c0d6a
        state:
          description: V(started) or V(done).
          returned: always
          type: str
          sample: done
    containers:
      description: Containers that are not removed and name a GPU, by name; V(none) when the engine does not answer.
      returned: when O(gather) has V(containers)
      type: list
      elements: dict
      contains:
        id:
          description: Short id.
          returned: always
          type: str
          sample: 0f3c9b1d2e4a
        name:
          description: Its name.
          returned: always
          type: str
          sample: receipt-ocr-1-app-1
        image:
          description: Image, as it was asked for.
          returned: always
          type: str
          sample: registry.example.com/claims/receipt-ocr@sha256:6f5c
        state:
          description: State, in the engine's word.
          returned: always
          type: str
          sample: running
        project:
          description: Compose project.
          returned: always
          type: str
          sample: receipt-ocr-1
        service:
          description: Compose service.
          returned: always
          type: str
          sample: app
        devices:
          description: UUIDs of the GPUs and slices that it names. A name that nothing on the host bears stays as it is written.
          returned: always
          type: list
          elements: str
          sample: [MIG-3f0c9b1d-2e4a-5c1f-8b0a-7a0e4c1e9a55]
        ports:
          description: Published ports. C(host) is V(none) where the engine chooses when the container starts.
          returned: always
          type: list
          elements: dict
          sample: [{host: 18000, container: 8080, protocol: tcp}]
        cpus:
          description: CPU limit; V(none) without one.
          returned: always
          type: float
          sample: 4.0
        memory_mib:
          description: Memory limit in MiB; V(none) without one.
          returned: always
          type: int
          sample: 16384
        shm_mib:
          description: Size of its shared memory in MiB.
          returned: always
          type: int
          sample: 1024
        labels:
          description: Labels of Compose and of this collection. Those of others may hold secrets and are left out.
          returned: always
          type: dict
          sample: {com.docker.compose.project: receipt-ocr-1}
    errors:
      description: What could not be read, one line each.
      returned: always
      type: list
      elements: str
      sample: ['gpu 1: nvmlDeviceGetHandleByIndex: NVML_ERROR_GPU_IS_LOST (GPU is lost)']
ansible_facts:
  description: The same facts, to be kept among those of the host.
  returned: with O(as_facts=true)
  type: dict
  contains:
    gpuops_fleet:
      description: As RV(facts).
      returned: always
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.facts import CONTAINERS, HOLDERS, Options, collect


def main() -> None:
    """Read the arguments, collect, answer."""
    spec = {
        "gather": {"type": "list", "elements": "str", "choices": [HOLDERS, CONTAINERS], "default": []},
        "as_facts": {"type": "bool", "default": False},
        "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
        "services_dir": {"type": "path", "default": "/srv/gpuops/services"},
        "proc_root": {"type": "path", "default": "/proc"},
        "sys_root": {"type": "path", "default": "/sys"},
        "os_release": {"type": "path", "default": "/etc/os-release"},
        "shm_path": {"type": "path", "default": "/dev/shm"},
        "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
        "cdi_dirs": {"type": "list", "elements": "path", "default": ["/etc/cdi", "/var/run/cdi"]},
        "nvidia_ctk": {"type": "path", "default": "nvidia-ctk"},
        "parent": {
            "type": "dict",
            "options": {
                "host": {"type": "str", "required": True},
                "gpus": {"type": "list", "elements": "str", "required": True},
                "domain": {"type": "str"},
            },
        },
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    arguments = dict(module.params)
    as_facts = arguments.pop("as_facts")
    gather, directories = frozenset(arguments.pop("gather")), tuple(arguments.pop("cdi_dirs"))
    try:
        facts = collect(Options(gather=gather, cdi_dirs=directories, **arguments))
    except FleetError as error:
        module.fail_json(msg=str(error))
    extra = {"ansible_facts": {"gpuops_fleet": facts}} if as_facts else {}
    module.exit_json(changed=False, facts=facts, **extra)


if __name__ == "__main__":
    main()
