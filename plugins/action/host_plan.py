# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: one host's plan and the manifests it stands on, read on the controller and checked, for the playbook that carries it out."""

from __future__ import annotations

import os
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import wish_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_work import managed_services, mps_daemons
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import by_service, read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import read_plan, to_text


def host_plan(host: str, plans: str, manifests: str, given: t.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
    """The result of the module, see its RETURN. Raises FleetError when a file is missing, damaged, or does not agree with the plan."""
    path = os.path.join(plans, f"{host}.yml")
    text = to_text(given) if given else door.read_written(path)
    if text is None:
        return {"changed": False, "exists": False, "plan": None, "layout": [], "mps": [], "services": []}
    plan = read_plan(path, text).data
    if plan["host"] != host:
        wrong = f"this plan was made for host '{plan['host']}', not for '{host}'"
        raise read_yaml(text, path).error(("host",), wrong, "run playbook plan again")
    texts = door.read_texts(manifests)
    services = managed_services(plan, read_manifests(texts), path)
    sources = {name: {"file": os.path.relpath(file, manifests), "text": text} for name, (file, text) in by_service(texts).items()}
    for service in services:
        service["source"] = sources[service["placement"]["service"]]
    return {"changed": False, "exists": True, "plan": dict(plan), "layout": wish_of(plan), "mps": mps_daemons(plan), "services": services}


class ActionModule(ActionBase):
    """Nothing is sent to the host."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("host", "plans", "manifests", "plan"))

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """The result of the module, see its RETURN; a problem is ``failed`` with one line in ``msg``."""
        super().run(tmp, task_vars)
        spec = {name: {"type": kind, "required": True} for name, kind in (("host", "str"), ("plans", "path"), ("manifests", "path"))}
        spec["plan"] = {"type": "dict"}
        _result, args = self.validate_argument_spec(argument_spec=spec)
        try:
            return host_plan(args["host"], args["plans"], args["manifests"], door.plain(args["plan"]))
        except FleetError as error:
            return door.failed(error)
