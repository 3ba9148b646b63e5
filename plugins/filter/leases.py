# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters about leases of services."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import leasing
else:
    leasing = Late("leasing")


def leased_replicas(facts: t.Mapping[str, t.Any] | None, service: str, replica: t.Any = None) -> list[int]:
    """Numbers of the service's replicas that have a lease on a host; of one replica when it is named."""
    try:
        return leasing.leased_replicas(facts, str(service), replica)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


def lease_problem(hosts: t.Mapping[str, t.Any], service: str, replica: t.Any = None) -> str:
    """Why the lease of a service cannot be extended; empty when it can."""
    try:
        return leasing.lease_problem(hosts, str(service), replica)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {"lease_lines": leasing.lease_lines, "lease_problem": lease_problem, "leased_replicas": leased_replicas}
