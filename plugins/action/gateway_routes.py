# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: what a gateway's files have to say, from plans, manifests and settings on the controller; and the pages of the services."""

from __future__ import annotations

import os
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, gateway, gateway_config, service_page
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET, read_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import table

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "plans": {"type": "path", "required": True},
    "manifests": {"type": "path", "required": True},
    "planned": {"type": "dict", "default": {}},
    "addresses": {"type": "dict", "required": True},
    "keys": {"type": "dict", "default": {}, "no_log": True},
    "settings": {"type": "dict", "default": {}},
    "own_name": {"type": "str", "required": True},
    "show_pages": {"type": "bool", "default": True},
    "pages": {"type": "path"},
    "template": {"type": "path"},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Read, decide, and unless in check mode write the pages. :raises FleetError: something is wrong; nothing is written then."""
    settings = gateway.read_settings(arguments["settings"])
    hashes = gateway.hash_keys(arguments["keys"])
    plans = {host: read_plan(path, text).data for host, (path, text) in door.last_plans(arguments["plans"], FLEET).items()}
    plans.update(arguments.get("planned") or {})
    manifests = read_manifests(door.read_texts(arguments["manifests"]))
    routes, notes = gateway.make_routes(manifests, plans, arguments["addresses"], settings)
    notes += gateway.without_keys(routes, arguments["keys"], hashes)
    known = {manifest.service: manifest for manifest in manifests}
    own = arguments["own_name"]
    pages = [service_page.make_page(known[route.service], route, plans, settings, own) for route in routes]
    drawer = service_page.Pages(door.read_text(arguments.get("template") or door.DATA / service_page.TEMPLATE), settings.key_help)
    live = service_page.draw_all(drawer, pages, live=True) if arguments["show_pages"] else {}
    result: dict[str, t.Any] = {
        "changed": False,
        "config": gateway_config.config(routes, hashes, live, settings),
        "files": gateway_config.files(routes, hashes, live, settings),
        "notes": notes,
        "table": table([("SERVICE", "ADDRESS", "TEAMS", "REPLICAS"), *(_row(page) for page in pages)]),
    }
    if arguments.get("pages"):
        texts = service_page.draw_all(drawer, pages, live=False)
        files = {os.path.join(arguments["pages"], f"{name or 'index'}.html"): text for name, text in texts.items()}
        result.update(door.put(files, check_mode, diff))
    return result


def _row(page: service_page.Page) -> tuple[t.Any, ...]:
    return page.service, page.url, ", ".join(page.teams) if page.keys else "no key", len(page.replicas)


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
