# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver a host shall have and what is to be done for it, as the plain data that role nvidia_driver works with. Pure."""

from __future__ import annotations

import typing as t
from dataclasses import asdict

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_names import Policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_wish import Choice, Data, Tables, choose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_work import Work, wants_fabric, work

# Who really computes on a GPU. A daemon that merely has it open is stopped by the role.
_AT_WORK = frozenset({"compute", "graphics", "mps"})


def plan(tables: Tables, host: str, sensed: Data, policy: Policy, today: str | None = None, gpus: Data | None = None) -> dict[str, t.Any]:
    """The result of the door. ``gpus``: the facts of ``gpu_info`` with holders and containers, from a host that has a driver.

    :raises FleetError: the wish cannot be met, or the host is at work.
    """
    choice = choose(tables, host, sensed, policy, None if today is None else today[:7])
    todo = work(tables, choice, sensed, policy)
    _refuse_busy(choice, todo, sensed, gpus)
    repository = None if todo.repository is None else asdict(todo.repository)
    return {
        "system": choice.system.name,
        "family": choice.system.family,
        "boards": sorted({gpu.board for gpu in choice.gpus}),
        "branch": choice.branch,
        "flavour": choice.flavour,
        "why": f"R{choice.branch}: {choice.why_branch}; {choice.flavour} kernel modules: {choice.why_flavour}",
        "here": choice.here,
        "names": todo.names,
        "repository": repository,
        "complete": todo.complete,
        "stream": todo.stream,
        "install": todo.install,
        "specs": {
            "first": [_spec(choice, name, todo) for name in todo.install if name in todo.build],
            "then": [_spec(choice, name, todo) for name in todo.install if name not in todo.build],
        },
        "remove": todo.remove,
        "unhold": todo.unhold,
        "hold": todo.hold,
        "runfile": todo.runfile,
        "upgrade": todo.upgrade,
        "daemon": choice.row is not None and choice.row.daemon is not None and policy.persistence,
        "fabric": choice.row is not None and wants_fabric(sensed, policy),
        "steps": todo.lines,
        "warnings": list(choice.warnings),
    }


def _refuse_busy(choice: Choice, todo: Work, sensed: Data, gpus: Data | None) -> None:
    """A driver is not changed below what runs on it. A host whose driver is not loaded has nothing that runs."""
    if not todo.upgrade or sensed["loaded"]["version"] is None:
        return
    if gpus is None:
        hint = "give the facts of gpu_info, gathered with holders and containers"
        raise FleetError(f"{choice.host}: who uses the driver that would be changed is not known", hint=hint)
    running = [each["name"] for each in gpus.get("containers") or [] if each.get("state") == "running"]
    held = [
        f"{each.get('process')} ({each.get('pid')})" for gpu in gpus.get("gpus") or [] for each in gpu.get("holders") or [] if _works(each)
    ]
    unseen = [gpu.get("pci") or "a GPU" for gpu in gpus.get("gpus") or [] if gpu.get("holders", ()) is None]
    users = [*running, *held, *(f"somebody unseen on {pci}" for pci in unseen)]
    if users:
        more = f" and {len(users) - 5} more" if len(users) > 5 else ""
        hint = f"drain it and apply first: ansible-playbook gpuops.fleet.drain --limit {choice.host}"
        raise FleetError(f"{choice.host}: the driver would be changed below {', '.join(users[:5])}{more}", hint=hint)


def _spec(choice: Choice, name: str, todo: Work) -> str:
    """A package as apt or dnf takes it, in its version."""
    text = todo.install[name]
    # The headers of one kernel bear its version in their name as dnf is asked for them.
    if choice.system.family == "redhat" and text.partition(":")[2] in name:
        return name
    return f"{name}{'=' if choice.system.family == 'debian' else '-'}{text}" if text else name


def _works(holder: Data) -> bool:
    return holder.get("kind") in _AT_WORK and not holder.get("container")
