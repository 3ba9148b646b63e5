# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which mode the inventory gives a GPU (``fleet_gpu_layouts``), and the same file with another one; nothing else of it changes. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence

import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import gpu_names
from ansible_collections.gpuops.fleet.plugins.plugin_utils.mode import MODES, Target, mode_of, refusal
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import flow
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import Policy, read_policy

Data = Mapping[str, t.Any]
FIELD = "fleet_gpu_layouts"


def wished(
    host: str, facts: Data, variables: Data, entries: Sequence[Data], mode: str | None, more: Data, write: bool
) -> tuple[list[Target], list[dict[str, t.Any]] | None]:
    """(the GPUs with the modes they shall have, ``fleet_gpu_layouts`` as it is to be written; None where it says so already).

    ``entries``: the GPUs, in the form of ``gpus`` of the facts. ``mode``: None for what the inventory says. ``more``: further fields of the
    entries that are written. ``write``: whether the inventory may be changed.

    :raises FleetError: the inventory says something else and may not be changed, or a GPU cannot have this mode.
    """
    if mode is not None and mode not in MODES:
        raise FleetError(f"there is no mode '{mode}'", field="mode", hint=f"one of {', '.join(MODES)}")
    if more and not (mode and write):
        hint = "name a mode, and let the inventory be written: -e mode_inventory=true"
        raise FleetError("further fields are for an entry that is written", field="mode_with", hint=hint)
    policy = read_policy(host, variables)
    layouts: list[dict[str, t.Any]] = [dict(one) for one in variables.get(FIELD) or ()]
    places: list[int | dict[str, t.Any]] = []
    changed = False
    for entry in entries:
        number = next((at for at, one in enumerate(layouts) if str(one["gpu"]).strip().lower() in gpu_names(entry)), None)
        old = None if number is None else layouts[number]
        new = _wish(host, policy, entry, old, mode, more)
        wanted = new.pop("new", True)
        if wanted:
            if new != old:
                if not write:
                    raise _otherwise(host, entry, old, new)
                changed = True
                number = len(layouts) if number is None else number
                layouts[number:] = [new, *layouts[number + 1 :]]
            places.append(t.cast("int", number))
        else:
            places.append(new)
    # What is wrong with an entry is told as ever, before anything is written.
    checked = [one.model_dump(exclude_none=True) for one in read_policy(host, {**variables, FIELD: layouts}).fleet_gpu_layouts]
    targets = [_target(host, entry, checked[one] if isinstance(one, int) else one) for entry, one in zip(entries, places, strict=True)]
    wrong = [line for entry, one in zip(entries, targets, strict=True) if (line := refusal(host, entry, one.layout, facts))]
    wrong += [
        f"{host}: GPU {one.pci} shall give vGPUs, and no type is named; such as "
        '-e \'{"mode_with": {"vgpus": [{"type": "A100D-10C", "count": 4}]}}\''
        for one in targets
        if one.mode == "vgpu" and not one.layout.get("vgpus")
    ]
    if wrong:
        raise FleetError("; ".join(wrong))
    return targets, layouts if changed else None


def _wish(host: str, policy: Policy, entry: Data, old: Data | None, mode: str | None, more: Data) -> dict[str, t.Any]:
    """The entry as it shall be; where there is none yet, ``new`` says whether there has to be one."""
    if old is not None:
        return {**old, **more} if mode in (None, old["mode"]) else {"gpu": old["gpu"], "mode": mode, **more}
    allowed = sorted(set(policy.fleet_gpu_modes))
    name = str(entry.get("uuid") or entry.get("pci"))
    if len(allowed) == 1 and mode in (None, allowed[0]) and not more:
        return {"gpu": name, "mode": allowed[0], "new": False}
    if mode is None:
        wrong = f"{FIELD} says nothing of GPU {entry.get('pci')}, and fleet_gpu_modes allows {', '.join(allowed)}"
        raise FleetError(wrong, file=f"host {host}", hint=f"name the mode: -e mode=... (one of {', '.join(MODES)})")
    return {"gpu": name, "mode": mode, **more, "new": True}


def _otherwise(host: str, entry: Data, old: Data | None, new: Data) -> FleetError:
    says = f"gives GPU {entry.get('pci')} mode {old['mode']}" if old is not None else f"says nothing of GPU {entry.get('pci')}"
    verb = "change that entry to" if old is not None else "write there"
    return FleetError(
        f"{FIELD} {says}, and mode {new['mode']} is asked for",
        file=f"host {host}",
        hint=f"{verb} - {flow(new)} and commit it, or let it be written: -e mode_inventory=true",
    )


def _target(host: str, entry: Data, layout: Data) -> Target:
    if not entry.get("pci"):
        raise FleetError(f"{host}: GPU {entry.get('uuid') or entry.get('index')} has no PCI address, so nothing can be done to it")
    mig = entry.get("mig") or {}
    found = Target(host, str(entry["pci"]), entry.get("uuid"), mode_of(entry), layout)
    # A mode that waits for a reset is not the one that is wanted, whichever that is.
    now = bool(mig.get("current")) if bool(mig.get("current")) is bool(mig.get("pending")) else not found.cut
    return Target(host, found.pci, found.uuid, found.was, layout, now)


# The file


def rewritten(path: str, text: str, before: Sequence[Data], after: Sequence[Data]) -> str:
    """The text of a host's variables with ``fleet_gpu_layouts`` as ``after``; comments, order and form of all else stay.

    ``before``: what the variable is now, wherever it comes from. FleetError, with what to write, when that cannot be done to the letter.
    """
    hint = f"write it by hand: {FIELD}: {flow(list(after))}"
    try:
        tree, data = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except yaml.YAMLError:
        raise FleetError("this is no YAML that can be changed", file=path, hint=hint) from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise FleetError("expected variables", file=path, hint=hint)
    values = [value for key, value in tree.value if key.value == FIELD] if tree is not None else []
    if not values:
        if before:
            raise FleetError(f"{FIELD} of this host is not written here", file=path, hint=hint)
        end = "" if not text or text.endswith("\n") else "\n"
        return _proven(path, f"{text}{end}{FIELD}:\n" + "".join(f"  - {flow(one)}\n" for one in after), data, after, hint)
    node = values[-1]
    if not isinstance(node, yaml.SequenceNode):
        raise FleetError("this cannot be changed to the letter", file=path, hint=hint)
    items = node.value
    if not items:
        new = f"{text[: node.start_mark.index]}\n" + "".join(f"  - {flow(one)}\n" for one in after)
        return _proven(path, new.replace(f"{FIELD}: \n", f"{FIELD}:\n") + text[node.end_mark.index :].lstrip("\n"), data, after, hint)
    for number in reversed(range(len(after))):
        if number >= len(items):
            continue
        if data[FIELD][number] != after[number]:
            begin, end_ = items[number].start_mark.index, _end(items[number])
            text = text[:begin] + flow(after[number]) + text[end_:]
    added = [flow(one) for one in after[len(items) :]]
    if added:
        rewritten_so_far = yaml.compose(text, Loader=yaml.SafeLoader)
        again = next(value for key, value in (rewritten_so_far.value if rewritten_so_far else ()) if key.value == FIELD)
        last = _end(again.value[-1])
        indent = " " * _dash(text, again.value[-1].start_mark.index)
        more = "".join(f", {one}" if again.flow_style else f"\n{indent}- {one}" for one in added)
        text = text[:last] + more + text[last:]
    return _proven(path, text, data, after, hint)


def _dash(text: str, index: int) -> int:
    """The column of the dash before an item."""
    line = text[text.rfind("\n", 0, index) + 1 : index]
    return len(line) - len(line.lstrip(" "))


def _end(node: t.Any) -> int:
    """Where the last thing of a node ends; the node of a block ends only where the next begins."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _proven(path: str, text: str, data: Data, after: Sequence[Data], hint: str) -> str:
    """The text, when it says what is meant and nothing else."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if found != {**data, FIELD: list(after)}:
        raise FleetError("this cannot be changed to the letter", file=path, hint=hint)
    return text
