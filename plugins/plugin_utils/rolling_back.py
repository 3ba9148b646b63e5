# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which earlier version of a service is rolled back to, from what its hosts keep; and the manifest that says so. Pure."""

from __future__ import annotations

import posixpath
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import by_service, read_manifest

Data = Mapping[str, t.Any]
# A version that was left for an earlier one is no aim of the next rollback, unless somebody names it.
_AIMS = ("serving", "replaced")


@dataclass(frozen=True)
class Back:
    """The version that is wanted again: where its manifest is written, the text, and how people see it."""

    file: str
    text: str
    digest: str
    line: str


def back_to(
    service: str, to: str | None, kept: Mapping[str, Mapping[str, Data]], texts: t.Sequence[tuple[str, str]], directory: str
) -> Back:
    """The version before the one that the manifest asks for; with ``to`` the one of this number, or with this beginning of its digest.

    ``kept``: host -> replica -> {versions}, as ``service_version_info`` returns them. ``texts``: (path, text) of the manifests as they are.

    :raises FleetError: nothing earlier is known, the number means several versions, or its manifest is not known.
    """
    known = by_service(texts)
    path, text = known.get(service, (None, None))
    wanted = None if path is None or text is None else read_manifest(path, text).digest()
    versions = _versions(service, kept)
    if not versions:
        raise FleetError(
            f"no host keeps a version of {service}", field="service", hint="see playbook status for the services that there are"
        )
    found = _named(service, to, versions) if to else _earlier(service, wanted, versions)
    kept_text, file = found["manifest"]["text"], found["manifest"]["file"]
    if not kept_text:
        wrong = f"nobody kept the manifest of version {found['number']} of {service} ({found['digest'][:19]})"
        raise FleetError(wrong, field="to", hint="take it out of Git")
    target = path or _below(directory, file or f"{service}.yml")
    if read_manifest(target, kept_text).service != service:
        raise FleetError(f"the manifest of version {found['number']} is of another service", field="to", hint="take it out of Git")
    version = f"version {found['number']} ({found['digest'][:19]}, {found['image']})"
    line = f"{service}: back to {version}, first served {found['since']} by {found['by']}"
    return Back(target, kept_text, str(found["digest"]), line)


def _below(directory: str, file: str) -> str:
    name = posixpath.normpath(file)
    if name.startswith(("/", "..")):
        raise FleetError(f"the kept manifest says that its file is {file}", field="to", hint="take it out of Git")
    return posixpath.join(directory, name)


def _versions(service: str, kept: Mapping[str, Mapping[str, Data]]) -> list[dict[str, t.Any]]:
    """Every version that any replica on any host keeps, the newest first."""
    found = [
        {**version, "where": f"{replica} on {host}"}
        for host, replicas in sorted(kept.items())
        for replica, data in sorted(replicas.items())
        if replica.rpartition("-")[0] == service and replica.rpartition("-")[2].isdigit()
        for version in data["versions"]
    ]
    return sorted(found, key=lambda one: (str(one["since"]), int(one["number"])), reverse=True)


def _earlier(service: str, wanted: str | None, versions: t.Sequence[dict[str, t.Any]]) -> dict[str, t.Any]:
    for version in versions:
        if version["outcome"] in _AIMS and version["digest"] != wanted:
            return version
    raise FleetError(f"there is no earlier version of {service}: {_listed(versions)}", field="to", hint="name one with -e to=NUMBER")


def _named(service: str, to: str, versions: t.Sequence[dict[str, t.Any]]) -> dict[str, t.Any]:
    by_digest = to.startswith("sha256:")
    found = [one for one in versions if (str(one["digest"]).startswith(to) if by_digest else str(one["number"]) == to.lstrip("0"))]
    if not found:
        raise FleetError(f"there is no version {to} of {service}: {_listed(versions)}", field="to", hint="name one of these")
    digests = sorted({str(one["digest"]) for one in found})
    if len(digests) > 1:
        wrong = f"version {to} of {service} is not the same everywhere: {', '.join(sorted(_words(one) for one in found))}"
        raise FleetError(wrong, field="to", hint=f"name it by its digest: -e to={digests[0][:19]}")
    return found[0]


def _listed(versions: t.Sequence[dict[str, t.Any]]) -> str:
    return "kept are " + ", ".join(dict.fromkeys(_words(one) for one in versions))


def _words(one: Data) -> str:
    return f"{one['number']} ({one['digest'][:19]}, {one['outcome']}, {one['where']})"
