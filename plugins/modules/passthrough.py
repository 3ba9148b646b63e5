#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give PCI devices to virtual machines and take them back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: passthrough
short_description: Give GPUs and other PCI devices to virtual machines, and take them back
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Binds the devices that are named to C(vfio-pci), so that a virtual machine can have them, or gives them back to their host driver.
    By C(driver_override) and a probe, one device and not all of its kind. Devices that are not named are not touched.
  - Before the first change the module looks whether it can be and may be. The IOMMU works (its function counts, no kernel parameter),
    the device is in a group, and the group's other devices are with VFIO or nobody, or come along (O(companions)).
    It is no virtual function of NVIDIA's own vGPU framework. It has no virtual functions itself, no MIG instance and no service of the
    host's plan, and nobody uses it. Whoever does is named. One refusal, and nothing is changed on any device.
  - In use is what a process computes on or has open, what a container that is not removed asked for by name, what a virtual machine has,
    a mounted disk, a network interface that is up. An engine that does not answer counts as one that holds everything.
  - After each probe the driver link is looked at, because the kernel answers a probe with success whatever comes of it.
    If a step fails, everything is put back and the message says which step failed, with the kernel's own word.
  - A write that the kernel does not answer by O(deadline) is left, since nothing can end it. It is named with its process and what it
    waits for.
  - If the module or the host dies in the middle, the next run with the same wish completes it.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.sys
  - gpuops.fleet.host.engine
options:
  devices:
    description:
      - Devices and whose they shall be.
    type: list
    elements: dict
    suboptions:
      device:
        description:
          - PCI address (any case, domain of four or eight digits or none), or the UUID of a GPU.
          - The UUID of a GPU that was given away is known from the host's own record.
        type: str
        required: true
      state:
        description:
          - V(vfio) is for virtual machines, V(host) for the driver that the host has for it.
        type: str
        choices: [vfio, host]
        required: true
  device:
    description:
      - One device, in place of O(devices). Needs O(state).
    type: str
  state:
    description:
      - Whose it shall be.
    type: str
    choices: [vfio, host]
  companions:
    description:
      - Whether the other devices of a device's IOMMU group come along, such as a card's sound function. Bridges never do.
      - On the way back, those come along that were given away with it.
    type: bool
    default: false
  persist:
    description:
      - Whether the devices are the virtual machines' again after a boot. A udev rule does it before the host driver is loaded, as long as
        the ids at the address are those that were recorded, and C(gpuops-fleet-agent restore) looks after it.
    type: bool
    default: true
  udev_rules:
    description:
      - File with that rule. Its name has to come before C(80-drivers.rules), which loads drivers.
    type: path
    default: /etc/udev/rules.d/70-gpuops-fleet-passthrough.rules
  vfio_driver:
    description:
      - The driver that hands devices to virtual machines, which may be a variant for one kind of device.
    type: str
    default: vfio-pci
  deadline:
    description:
      - Seconds that the kernel has for each write.
    type: float
    default: 30
  driver_services:
    description:
      - Systemd units that hold NVIDIA's driver. Those of them that run are stopped while it gives a GPU away, and started again whatever
        happens; after a crash, the next run starts them.
    type: list
    elements: str
    default: []
  drained:
    description:
      - Replicas (compose projects) that were stopped for this change.
      - In check mode, where they still run, they count as stopped. Otherwise it has no effect.
    type: list
    elements: str
    default: []
  cleared:
    description:
      - Whether earlier tasks of the same play take MIG instances, virtual functions and vGPUs off the devices.
      - In check mode, where they are there still, they count as gone. Otherwise it has no effect.
    type: bool
    default: false
  systemctl:
    description:
      - Name or path of the program that stops and starts services. A host without it has no such services.
    type: path
    default: systemctl
  modprobe:
    description:
      - Name or path of the program that loads kernel modules.
    type: path
    default: modprobe
requirements:
  - nvidia-ml-py (Python package) on the host, for GPUs that NVIDIA's driver has
  - tee and cat
  - root
notes:
  - Holders of a device are found among all processes, so the module has to see the host's own C(/proc).
seealso:
  - module: gpuops.fleet.gpu_info
  - module: gpuops.fleet.mig
"""

EXAMPLES = r"""
- name: Give a GPU to virtual machines
  gpuops.fleet.passthrough:
    device: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
    state: vfio

- name: Give a workstation card with its sound function, and take a disk back
  gpuops.fleet.passthrough:
    devices:
      - {device: '0000:65:00.0', state: vfio}
      - {device: '0000:02:00.0', state: host}
    companions: true
"""

RETURN = r"""
steps:
  description: What was done, or in check mode would be done, in this order.
  returned: success
  type: list
  elements: str
  sample:
    - "load module vfio-pci"
    - "0000:3b:00.0: turn persistence mode off"
    - "0000:3b:00.0: set driver_override to vfio-pci"
    - "0000:3b:00.0: unbind from nvidia"
    - "0000:3b:00.0: probe, so that vfio-pci takes it"
    - "0000:3b:00.0: remember it"
    - "write /etc/udev/rules.d/70-gpuops-fleet-passthrough.rules"
diff:
  description: The named devices, one a line, before and after.
  returned: success
  type: dict
  contains:
    before:
      description: As found.
      type: str
      sample: |
        0000:3b:00.0 (GPU-5c1f): nvidia
    after:
      description: As left, or in check mode as predicted.
      type: str
      sample: |
        0000:3b:00.0 (GPU-5c1f): vfio-pci, kept over a boot
devices:
  description: The named devices and their companions.
  returned: success
  type: list
  elements: dict
  contains:
    device:
      description: PCI address.
      type: str
      sample: '0000:3b:00.0'
    state:
      description: Whose it shall be, V(vfio) or V(host).
      type: str
      sample: vfio
    companion_of:
      description: The named device whose IOMMU group it shares. V(none) for one that was named itself.
      type: str
      sample: null
    before:
      description:
        - RV(ignore:driver), V(none) when it had none, IOMMU RV(ignore:group), and RV(ignore:identity).
        - An identity has C(vendor), C(device), C(subsystem), C(serial) and C(uuid), as far as they are known.
      type: dict
      sample:
        driver: nvidia
        group: '20'
        identity: {vendor: '0x10de', device: '0x20b5', subsystem: '10de:1533', serial: null, uuid: GPU-5c1f}
    after:
      description:
        - The same afterwards, or in check mode as predicted.
        - The driver is C((known after apply)) for a device that the host never had with a driver of its own.
      type: dict
      sample:
        driver: vfio-pci
        group: '20'
        identity: {vendor: '0x10de', device: '0x20b5', subsystem: '10de:1533', serial: null, uuid: GPU-5c1f}
notes:
  description: What else is worth knowing, such as an earlier run that did not come to its end.
  returned: success
  type: list
  elements: str
  sample: []
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_run import Options, apply

_STATES = ["vfio", "host"]
_DEVICE: dict[str, t.Any] = {
    "device": {"type": "str", "required": True},
    "state": {"type": "str", "choices": _STATES, "required": True},
}
SPEC: dict[str, t.Any] = {
    "devices": {"type": "list", "elements": "dict", "options": _DEVICE},
    "device": {"type": "str"},
    "state": {"type": "str", "choices": _STATES},
    "companions": {"type": "bool", "default": False},
    "persist": {"type": "bool", "default": True},
    "udev_rules": {"type": "path", "default": "/etc/udev/rules.d/70-gpuops-fleet-passthrough.rules"},
    "vfio_driver": {"type": "str", "default": "vfio-pci"},
    "deadline": {"type": "float", "default": 30},
    "driver_services": {"type": "list", "elements": "str", "default": []},
    "drained": {"type": "list", "elements": "str", "default": []},
    "cleared": {"type": "bool", "default": False},
    "systemctl": {"type": "path", "default": "systemctl"},
    "modprobe": {"type": "path", "default": "modprobe"},
    "lease": {"type": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "proc_root": {"type": "path", "default": "/proc"},
    "sys_root": {"type": "path", "default": "/sys"},
    "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError for a wish that is refused and for a step that failed."""
    if params["deadline"] <= 0:
        raise FleetError(f"expected more than 0 seconds, found {params['deadline']:g}", field="deadline")
    one = [{"device": params["device"], "state": params["state"]}] if params["device"] is not None else []
    options = Options(
        state_dir=Path(params["state_dir"]),
        sys_root=Path(params["sys_root"]),
        proc_root=Path(params["proc_root"]),
        udev_rules=Path(params["udev_rules"]),
        docker_socket=params["docker_socket"],
        vfio_driver=params["vfio_driver"],
        companions=params["companions"],
        persist=params["persist"],
        deadline=params["deadline"],
        modprobe=params["modprobe"],
        systemctl=params["systemctl"],
        driver_services=tuple(params["driver_services"]),
        drained=tuple(params["drained"]),
        cleared=params["cleared"],
        token=params["lease"],
        check=check,
    )
    result = apply([*(params["devices"] or ()), *one], options)
    return {
        "changed": result.changed,
        "steps": result.steps,
        "diff": {"before": result.before, "after": result.after},
        "devices": result.devices,
        "notes": result.notes,
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec=SPEC,
        mutually_exclusive=[("devices", "device")],
        required_together=[("device", "state")],
        supports_check_mode=True,
    )
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    for note in result["notes"]:
        module.warn(note)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
