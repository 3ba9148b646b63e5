# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for the roles that bring an engine and NVIDIA's container toolkit."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, host_packages
else:
    door = Late("door")
    host_packages = Late("host_packages")


def install_plan(facts: t.Mapping[str, t.Any], what: str, **wish: t.Any) -> dict[str, t.Any]:
    """Which packages from where are ``engine`` or ``toolkit`` on a host, from what Ansible knows of it."""
    asked = {key: str(value) for key, value in wish.items() if key != "packages"}
    try:
        wanted = host_packages.Wish(**asked, packages=tuple(wish.get("packages") or ()))
        return host_packages.plan(door.read_data("engine_packages.yml").data, what, facts, wanted).data()
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


def engine_settings(asked: t.Mapping[str, t.Any], packages: t.Mapping[str, t.Any], cdi: bool = True) -> dict[str, t.Any]:
    """What the engine shall be told: ``asked``, and CDI where it has to be switched on."""
    facts = door.compat_facts()
    try:
        return host_packages.settings(facts, host_packages.engine_version(packages), asked, cdi)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


def engine_version(packages: t.Mapping[str, t.Any]) -> str:
    """The engine's version among the packages of a host; empty where none of those known is installed."""
    return host_packages.engine_version(packages)


def toolkit_refusal(toolkit: str | None, mode: str) -> str:
    """Why this version of the container toolkit does not serve this mode; empty when it does."""
    return host_packages.toolkit_refusal(door.compat_facts(), toolkit, mode)


def install_problem(result: t.Mapping[str, t.Any], host: str) -> str:
    """Why packages were not installed, in one line, from the result of the task that failed."""
    return host_packages.install_problem(host, result)


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {
            "engine_settings": engine_settings,
            "engine_version": engine_version,
            "install_plan": install_plan,
            "install_problem": install_problem,
            "toolkit_refusal": toolkit_refusal,
        }
