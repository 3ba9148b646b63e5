# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: which driver a host shall have, and what is to be done for it, on the controller."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_names import Boards, DriverPackages, policy_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_plan import plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_wish import Tables

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "host": {"type": "str", "required": True},
    "facts": {"type": "dict", "required": True},
    "gpus": {"type": "dict"},
    "today": {"type": "str"},
    "source": {"type": "str", "default": "distribution", "choices": ["distribution", "repository", "mirror", "runfile"]},
    "kind": {"type": "str", "default": "ordinary", "choices": ["ordinary", "vgpu-host"]},
    "branch": {"type": "int"},
    "version": {"type": "str", "default": ""},
    "flavour": {"type": "str", "default": "auto", "choices": ["auto", "open", "proprietary"]},
    "boards": {"type": "list", "elements": "str", "default": []},
    "packages": {"type": "list", "elements": "str", "default": []},
    "allow_downgrade": {"type": "bool", "default": False},
    "secure_boot": {"type": "str", "default": "refuse", "choices": ["refuse", "enrolled"]},
    "mirror": {"type": "str", "default": ""},
    "key": {"type": "str", "default": "", "no_log": False},
    "key_checksum": {"type": "str", "default": "", "no_log": False},
    "runfile": {"type": "str", "default": ""},
    "runfile_checksum": {"type": "str", "default": ""},
    "persistence": {"type": "bool", "default": True},
    "fabric_manager": {"type": "str", "default": "auto", "choices": ["auto", "always", "never"]},
    "space": {"type": "dict", "default": {}},
}


def tables() -> Tables:
    """The facts that the collection brings."""
    catalogue = door.catalogue()
    packages = DriverPackages(door.read_data("driver_packages.yml"))
    return Tables(door.compat_facts(), packages, Boards(door.read_data("pci_chips.yml"), catalogue))


def run(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Decide. :raises FleetError: the wish cannot be met, with what stands in the way."""
    found = plan(tables(), arguments["host"], arguments["facts"], policy_of(arguments), arguments["today"], arguments["gpus"])
    return {"changed": False, **found}


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:  # noqa: ARG002 # it is the same in both
        """See :func:`run`."""
        return run(arguments)
