# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual machine's GPUs and their physical cards: the inventory says so (``fleet_parent``), because a guest cannot know. Pure.

``{host: kvm-01, gpus: [GPU-..., '0000:3b:00.0'], domain: vm-01}``. A GPU that is given away whole keeps its UUID, so by that it is found
for sure. By an address it is, where the guest has one GPU and that list one entry, or where the parent wrote down whose UUID that is.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import pci_address

FIELD = "fleet_parent"
_UUID = re.compile(r"(?:GPU-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_HINT = "write {host: kvm-01, gpus: ['0000:3b:00.0']}: a host of the inventory, and the cards or vGPUs of it that this guest has"

Parent = dict[str, t.Any]


def read_parent(value: t.Any, guest: str | None = None) -> Parent | None:
    """The link as it is used, addresses in sysfs form; None where there is none. FleetError, in one line, for anything else."""
    if not value:
        return None
    file = None if guest is None else f"host {guest}"
    if not isinstance(value, Mapping) or set(value) - {"host", "gpus", "domain"}:
        raise FleetError("this is no link to a physical card", file=file, field=FIELD, hint=_HINT)
    host, gpus = value.get("host"), value.get("gpus")
    if not isinstance(host, str) or not host.strip() or host == guest:
        raise FleetError("this is no other host", file=file, field=f"{FIELD}.host", hint=_HINT)
    if not isinstance(gpus, (list, tuple)) or not gpus:
        raise FleetError("expected a list of cards", file=file, field=f"{FIELD}.gpus", hint=_HINT)
    names = []
    for number, each in enumerate(gpus):
        address = pci_address(str(each).strip())
        if address is None and not _UUID.fullmatch(str(each).strip()):
            wrong = f"'{each}' is neither a PCI address nor a UUID"
            raise FleetError(wrong, file=file, field=f"{FIELD}.gpus[{number}]", hint=_HINT)
        names.append(address or _spelt(str(each).strip()))
    return {"host": host.strip(), "gpus": names, "domain": value.get("domain") or guest}


def _spelt(uuid: str) -> str:
    """As the driver writes it."""
    return f"GPU-{uuid[4:].lower()}" if uuid[:4].upper() == "GPU-" else uuid.lower()


def link(gpus: Iterable[dict[str, t.Any]], parent: Mapping[str, t.Any] | None, addresses: Mapping[str, str] | None = None) -> None:
    """Write into each GPU's facts whose card it is: ``parent_host``, and in ``parent`` the card, as far as that is known.

    ``addresses``: UUID to PCI address of what the parent has given away; with them a card is always an address.
    """
    entries = list(gpus)
    for gpu in entries:
        gpu["parent_host"] = None if parent is None else parent["host"]
    if parent is None:
        return
    known = dict(addresses or {})
    left = [known.get(name, name) for name in parent["gpus"]]
    nameless = []
    for gpu in entries:
        uuid = str(gpu.get("uuid"))
        found = next((name for name in (known.get(uuid), uuid) if name in left), None)
        gpu["parent"] = found
        if found is None:
            nameless.append(gpu)
        else:
            left.remove(found)
    if len(nameless) == 1 and len(left) == 1:
        nameless[0]["parent"] = left[0]
