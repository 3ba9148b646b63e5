# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Guests and their physical cards, seen together: a drain of the card, or of its host, drains the guest's GPU. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.parents import FIELD, Parent, link, read_parent

Facts = Mapping[str, t.Any]


def parent_of(name: str, variables: Mapping[str, t.Any]) -> Parent | None:
    """The link of a host, from its variables. FleetError when it is none."""
    return read_parent(variables.get(FIELD), name)


def see_through(facts: Mapping[str, Facts | None], links: Mapping[str, Parent]) -> dict[str, Facts | None]:
    """The facts of all hosts, with what one knows of the other: each guest's GPUs know their cards and inherit their drains, and what a
    host has given away knows its guest (``passthrough[].guest``, ``gpus[].vgpu.vgpus[].guest``). ``links``: guest to its parent.

    :raises FleetError: two guests have one card.
    """
    result = dict(facts)
    taken: dict[tuple[str, str], str] = {}
    for guest, parent in sorted(links.items()):
        known = facts.get(parent["host"]) or {}
        given = [entry for entry in known.get("passthrough") or () if entry.get("pci")]
        addresses = {str(entry["uuid"]): str(entry["pci"]) for entry in given if entry.get("uuid")}
        cards = [addresses.get(name, name) for name in parent["gpus"]]
        for card in cards:
            other = taken.setdefault((parent["host"], card), guest)
            if other != guest:
                wrong = f"card {card} of {parent['host']} is {other}'s already"
                raise FleetError(wrong, file=f"host {guest}", field=f"{FIELD}.gpus", hint="a card belongs to one guest")
        mine = facts.get(guest)
        if mine is not None:
            gpus = [dict(gpu) for gpu in mine.get("gpus") or ()]
            link(gpus, parent, addresses)
            result[guest] = {**mine, "gpus": [_drained(gpu, parent["host"], known, addresses) for gpu in gpus]}
    for host in {parent["host"] for parent in links.values()}:
        of_host = result.get(host)
        if of_host is not None and of_host.get("passthrough"):
            entries = [{**entry, "guest": taken.get((host, str(entry.get("pci"))))} for entry in of_host["passthrough"]]
            of_host = result[host] = {**of_host, "passthrough": entries}
        if of_host is not None and any(gpu.get("vgpu") for gpu in of_host.get("gpus") or ()):
            result[host] = {**of_host, "gpus": [_with_guests(host, gpu, taken) for gpu in of_host["gpus"]]}
    return result


def gives_away(facts: t.Any) -> bool:
    """Whether virtual machines have GPUs of a host, or parts of them. ``facts``: whatever was published as such."""
    if not isinstance(facts, Mapping):
        return False
    gpus = facts.get("gpus")
    return bool(facts.get("passthrough")) or any(
        isinstance(gpu, Mapping) and gpu.get("vgpu") for gpu in (gpus if isinstance(gpus, list) else ())
    )


def _with_guests(host: str, gpu: Facts, taken: Mapping[tuple[str, str], str]) -> Facts:
    """The GPU whose vGPUs know their guests: by the UUID of a mediated device, or the address of a virtual function."""
    if not gpu.get("vgpu"):
        return gpu
    vgpus = [{**one, "guest": taken.get((host, str(one.get("uuid") or one.get("place"))))} for one in gpu["vgpu"]["vgpus"]]
    return {**gpu, "vgpu": {**gpu["vgpu"], "vgpus": vgpus}}


def guest_rows(facts: Facts, gpu: str | None = None) -> list[list[t.Any]]:
    """Virtual machines on the cards of a host (``gpu``: on this one, by UUID): address of the card, what they have, who."""
    rows: list[list[t.Any]] = []
    for entry in facts.get("passthrough") or ():
        if gpu is None or entry.get("uuid") == gpu:
            rows.append([entry.get("pci"), "vfio", f"guest {entry['guest']}" if entry.get("guest") else "virtual machines"])
    for card in facts.get("gpus") or ():
        if gpu is None or card.get("uuid") == gpu:
            for one in (card.get("vgpu") or {}).get("vgpus") or ():
                who = f"guest {one['guest']}" if one.get("guest") else "virtual machines"
                rows.append([card.get("pci"), f"{one['type']} {one.get('uuid') or one.get('place')}", who])
    return rows


def _drained(gpu: dict[str, t.Any], host: str, known: Facts, addresses: Mapping[str, str]) -> dict[str, t.Any]:
    """The GPU with the drain of its card, else of its card's host. One of its own rules, unless only the other is by force."""
    uuids = {uuid for uuid, address in addresses.items() if address == gpu.get("parent")} | {str(gpu.get("uuid"))}
    # A card that is given away is no GPU of its host any more: what is drained there is then a drain of nothing that its driver has.
    card = next((each for each in known.get("drains_idle") or () if each.get("gpu") in uuids and each.get("why") != "ended"), None)
    found = card or (known.get("host") or {}).get("drain")
    own = gpu.get("drain")
    if not found or (own and (own.get("force") or not found["force"])):
        return gpu
    where = f"card {gpu['parent']} of {host}" if card and gpu.get("parent") else f"its host {host}"
    reason = f"{found['reason']}; {where}" if found["reason"] else where
    return {**gpu, "drain": {key: found[key] for key in ("by", "reason", "since", "until", "force")} | {"reason": reason}}


def chain_lines(facts: Facts) -> list[str]:
    """What people read of it, a sentence a card: of a guest whose cards its GPUs are, of a host who has what it gave away."""
    lines = []
    for gpu in facts.get("gpus") or ():
        if gpu.get("parent_host"):
            card = f"card {gpu['parent']}" if gpu.get("parent") else "a card"
            lines.append(f"GPU {gpu.get('pci') or gpu.get('index')} is {card} of {gpu['parent_host']}.")
    for entry in facts.get("passthrough") or ():
        lines.append(f"Card {entry.get('pci')} is given to {entry.get('guest') or 'virtual machines'}.")
    for gpu in facts.get("gpus") or ():
        if gpu.get("vgpu"):
            vgpus = gpu["vgpu"].get("vgpus") or []
            each = [f"{one['type']}{' for ' + one['guest'] if one.get('guest') else ''}" for one in vgpus]
            lines.append(f"GPU {gpu.get('pci')} gives vGPUs: {', '.join(each) or 'none yet'}.")
    return lines


def guests_of(host: str, variables: Mapping[str, Mapping[str, t.Any]], names: Iterable[str]) -> list[dict[str, t.Any]]:
    """The guests that a host has by their links: ``{domain, devices}`` of each, by domain. ``names``: who may be one."""
    links = {name: parent_of(name, variables[name]) for name in names}
    mine = {name: link for name, link in links.items() if link is not None and link["host"] == host}
    see_through({}, mine)
    return sorted(
        ({"domain": link["domain"], "devices": list(link["gpus"])} for link in mine.values()), key=lambda each: str(each["domain"])
    )


def passthrough_wish(wished: Iterable[str], record: t.Any) -> dict[str, list[dict[str, str]]]:
    """What module ``passthrough`` is told: ``{vfio: [...], host: [...]}``. Goes back to the host: what the record (``passthrough.json``)
    knows and the wish does not, but for companions, which come with the card that they belong to.
    """
    names = [str(name).strip() for name in wished]
    known = {name.lower() for name in names}
    entries = record.get("devices") if isinstance(record, Mapping) else None
    back = []
    for address, entry in sorted((entries or {}).items()):
        uuid = str((entry.get("identity") or {}).get("uuid") or "").lower()
        if not entry.get("because") and not known & {address, address[5:], f"0000{address}", uuid or address}:
            back.append({"device": str(address), "state": "host"})
    return {"vfio": [{"device": name, "state": "vfio"} for name in names], "host": back}
