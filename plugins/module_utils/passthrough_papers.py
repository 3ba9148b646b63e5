# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host remembers of devices that it gave to virtual machines, and the udev rule that does it again at a boot.

``passthrough.json``: ``{format: 1, udev_rules: path, devices: {address: {identity, host_driver, host_module, persistence, persist,
vfio_driver, because, parent, by, since}}}``. ``persist``: also after a boot. ``persistence``: its mode before. ``because``: whose group it
shares. ``parent``: ``{address, vfs}`` of a virtual function.

The rule comes before 80-drivers.rules, which loads a device's own driver: for every PCI device that is found it writes the overrides of all
devices here. NVIDIA's driver is loaded for the first card that udev happens to see and takes all of them, so to wait for the turn of the
card that is meant would be too late. A rule counts only while the ids at its address are those that were recorded.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, read_text, write_json, write_text

FORMAT = 1
FILE = "passthrough.json"
RULES = Path("/etc/udev/rules.d/70-gpuops-fleet-passthrough.rules")
_MODE = 0o644

Entry = Mapping[str, t.Any]


def remembered(state_dir: Path) -> dict[str, dict[str, t.Any]]:
    """Every device of this host that was given away, by address. FleetError when the file is damaged or of another release."""
    path = state_dir / FILE
    data = read_json(path)
    if data is None:
        return {}
    entries = data.get("devices")
    if data.get("format") != FORMAT or not isinstance(entries, dict) or not all(_is_entry(entry) for entry in entries.values()):
        hint = "look at it; when it is removed, devices that virtual machines have now stay with vfio-pci until the next boot"
        raise FleetError(f"these are not devices that were given away, in format {FORMAT}", file=str(path), hint=hint)
    return dict(entries)


def _is_entry(entry: t.Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("identity"), dict)


def remember(state_dir: Path, entries: Mapping[str, Entry], rules: Path) -> None:
    """Keep exactly these, and where their rules are."""
    write_json(state_dir / FILE, {"format": FORMAT, "udev_rules": str(rules), "devices": dict(entries)})


def rules_path(state_dir: Path) -> Path:
    """Where this host has its rules, for whom no inventory is near."""
    try:
        return Path((read_json(state_dir / FILE) or {}).get("udev_rules") or RULES)
    except (FleetError, TypeError):
        return RULES


def rules_text(entries: Mapping[str, Entry]) -> str:
    """The udev rules for these devices; empty when none is to be given away at a boot."""
    lines = [line for address, entry in sorted(entries.items()) if entry.get("persist", True) for line in _rules(address, entry)]
    if not lines:
        return ""
    head = "# Devices that virtual machines get. Written by module gpuops.fleet.passthrough; changes here are lost."
    return "\n".join([head, *lines, ""])


def _rules(address: str, entry: Entry) -> list[str]:
    identity, driver = entry["identity"], entry.get("vfio_driver") or "vfio-pci"
    subsystem = str(identity.get("subsystem") or ":").split(":")
    ids = {"vendor": identity["vendor"], "device": identity["device"]}
    ids.update({f"subsystem_{name}": f"0x{part}" for name, part in zip(("vendor", "device"), subsystem) if part})
    there = ", ".join(f'ATTR{{[pci/{address}]{name}}}=="{value}"' for name, value in ids.items())
    event = 'ACTION=="add", SUBSYSTEM=="pci"'
    mine = ", ".join(f'ATTR{{{name}}}=="{value}"' for name, value in ids.items())
    # What loads the module also registers the driver, which then takes the device by its override; where it is loaded already,
    # the device has to be offered to it.
    take = f'ATTR{{subsystem/drivers_probe}}="$kernel", RUN{{builtin}}+="kmod load {driver}"'
    return [
        f'{event}, {there}, ATTR{{[pci/{address}]driver_override}}="{driver}"',
        f'{event}, KERNEL=="{address}", {mine}, {take}',
    ]


def rules_there(path: Path) -> str:
    """The rules that are on disk."""
    return read_text(path) or ""


def write_rules(path: Path, text: str) -> None:
    """Put these rules on disk, or take the file away. udevd sees by itself that its directory changed."""
    if text:
        write_text(path, text, _MODE)
        return
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FleetError(f"cannot remove {path}: {error.strerror}") from error
