# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that tells how gateways reach GPU hosts."""

from __future__ import annotations

import typing as t


def gateway_addresses(names: t.Iterable[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]]) -> dict[str, str]:
    """{host: address}: ``fleet_address``, else ``ansible_host``, else the host's name in the inventory."""
    return {name: str(hostvars[name].get("fleet_address") or hostvars[name].get("ansible_host") or name) for name in names}


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {"gateway_addresses": gateway_addresses}
