# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the roles for virtual machines."""

from __future__ import annotations

import json
import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.parents import FIELD
from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, parents, vgpu_undo
else:
    door = Late("door")
    parents = Late("parents")
    vgpu_undo = Late("vgpu_undo")


def guests_of(host: str, hostvars: t.Mapping[str, t.Mapping[str, t.Any]], names: t.Iterable[str]) -> list[dict[str, t.Any]]:
    """See plugin_utils."""
    try:
        wanted = list(names)
        links = {name: {FIELD: door.plain(hostvars[name].get(FIELD))} for name in wanted}
        return parents.guests_of(host, links, wanted)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from None


def passthrough_wish(wished: t.Iterable[str], record: str) -> dict[str, t.Any]:
    """See plugin_utils. ``record``: text of the file, empty where there is none."""
    try:
        return parents.passthrough_wish(wished, json.loads(record) if record.strip() else None)
    except ValueError:
        raise AnsibleFilterError("passthrough.json is not JSON; look at it and remove it") from None


def vgpu_wish(wished: t.Iterable[t.Mapping[str, t.Any]], record: str) -> list[dict[str, t.Any]]:
    """See plugin_utils. ``record``: text of the file, empty where there is none."""
    try:
        return vgpu_undo.with_undone(wished, json.loads(record) if record.strip() else None)
    except ValueError:
        raise AnsibleFilterError("vgpus.json is not JSON; look at it and remove it") from None


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {"guests_of": guests_of, "passthrough_wish": passthrough_wish, "vgpu_wish": vgpu_wish}
