# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a site without the Internet must have of its own: images by digest, model files, packages, keys, installers. Pure.

The words are those of docs/host-preparation.md.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.plugin_utils import runtimes
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import table

Data = Mapping[str, t.Any]

SCHEMA = 1
OWN = "the host's own sources"
# What a host's roles install, and how the settings that name a mirror begin.
_PARTS = {"driver": "nvidia_driver", "engine": "docker_host", "toolkit": "container_toolkit"}
_ADDRESS = re.compile(r"^(?:URIs: |baseurl=)(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Bundle:
    """Plain data, in a stable order. ``unread``: hosts of which it is not known what they need, and why."""

    images: list[dict[str, t.Any]]
    models: list[dict[str, t.Any]]
    packages: list[dict[str, t.Any]]
    downloads: list[dict[str, t.Any]]
    unread: dict[str, str]

    def data(self) -> dict[str, t.Any]:
        """As the JSON file has it."""
        return {"schema": SCHEMA, **vars(self)}

    def lines(self) -> list[str]:
        """For people: a table of each kind."""
        lines = table([["IMAGE", "SERVICES"], *([each["image"], ", ".join(each["services"])] for each in self.images)])
        if self.models:
            rows = [[each["path"], each["sha256"] or "(no checksum in the manifest)", ", ".join(each["services"])] for each in self.models]
            lines += ["", *table([["MODEL FILE OR DIRECTORY", "SHA-256", "SERVICES"], *rows])]
        for each in self.packages:
            where = f"; a mirror is named by {each['setting']}" if each["from"] != OWN else ""
            lines += ["", f"{each['what']} of {each['system']}, from {each['from']}{where}: {', '.join(each['hosts'])}"]
            lines += [f"  {name} {version}".rstrip() for name, version in each["packages"].items()]
        if self.downloads:
            rows = [[each["url"], each["checksum"] or "(none)", each["setting"], ", ".join(each["hosts"])] for each in self.downloads]
            lines += ["", *table([["DOWNLOAD", "CHECKSUM", "SETTING", "HOSTS"], *rows])]
        return [*lines, *(f"{name}: not all packages are known: {reason}" for name, reason in self.unread.items())]


def bundle(manifests: Iterable[Data], hosts: Mapping[str, Data]) -> Bundle:
    """``hosts``: name -> {driver, engine, toolkit, system}, what the three roles would install there.

    They are the roles' plans as their doors give them, {} where a role installs nothing. ``named``: setting -> {url, checksum} of licensed
    files that the site gives the host, with an empty address where it gives none. ``problem``: why not all of it is known. A host that was
    not asked is {}.
    """
    services = list(manifests)
    images: dict[str, list[str]] = {}
    models: dict[tuple[str, str], list[str]] = {}
    for manifest in sorted(services, key=lambda each: str(each["service"])):
        if manifest["image"]:
            images.setdefault(manifest["image"], []).append(manifest["service"])
        weights = {each["path"]: each["sha256"] for each in manifest["weights"]}
        for path in sorted({*weights, *runtimes.store_paths(manifest)}):
            models.setdefault((path, weights.get(path, "")), []).append(manifest["service"])
    known = dict(sorted(hosts.items()))
    return Bundle(
        [{"image": image, "services": names} for image, names in sorted(images.items())],
        [{"path": path, "sha256": checksum or None, "services": names} for (path, checksum), names in sorted(models.items())],
        _packages(known),
        _downloads(known),
        {name: str(host.get("problem") or "the host was not asked") for name, host in known.items() if not host or host.get("problem")},
    )


def _packages(hosts: Mapping[str, Data]) -> list[dict[str, t.Any]]:
    """Hosts that need the same from the same place share an entry."""
    found: dict[tuple[t.Any, ...], list[str]] = {}
    for name, host in hosts.items():
        for what in _PARTS:
            plan = host.get(what) or {}
            if plan.get("names"):
                versions = tuple((package, _version(plan, package)) for package in plan["names"])
                found.setdefault((what, host.get("system") or "", _from(plan), versions), []).append(name)
    return [
        {"what": what, "system": system, "from": place, "packages": dict(versions), "setting": f"{_PARTS[what]}_mirror", "hosts": names}
        for (what, system, place, versions), names in sorted(found.items())
    ]


def _version(plan: Data, package: str) -> str:
    """The version that is asked for: of a driver by its own plan, of the others by the package as apt or dnf takes it."""
    install = plan.get("install")
    if install is not None:
        return str(install.get(package) or "")
    form = re.compile(rf"{re.escape(package)}(?:=|-(?=[0-9]))(.+)")
    return next((found.group(1) for each in plan.get("specs") or [] if (found := form.fullmatch(each))), "")


def _from(plan: Data) -> str:
    text = (plan.get("repository") or {}).get("text") or ""
    return ", ".join(dict.fromkeys(_ADDRESS.findall(text))) or OWN


def _downloads(hosts: Mapping[str, Data]) -> list[dict[str, t.Any]]:
    """Keys that sign packages, NVIDIA's installer, and the licensed drivers of vGPUs."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, host in hosts.items():
        for what, role in _PARTS.items():
            plan = host.get(what) or {}
            key, runfile = (plan.get("repository") or {}).get("key"), plan.get("runfile")
            if key:
                found.setdefault((key["url"], key.get("checksum") or "", f"{role}_key"), []).append(name)
            if runfile:
                found.setdefault((runfile["url"], runfile["checksum"], f"{role}_runfile"), []).append(name)
        for setting, given in (host.get("named") or {}).items():
            if given["url"]:
                found.setdefault((given["url"], given["checksum"], setting), []).append(name)
    return [
        {"url": url, "checksum": checksum or None, "setting": setting, "hosts": names}
        for (url, checksum, setting), names in sorted(found.items())
    ]
