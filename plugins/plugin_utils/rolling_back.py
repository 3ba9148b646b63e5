# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which earlier version of a service is rolled back to, from what its hosts keep; and the manifest that says so. Pure."""

from __future__ import annotations

import json
import posixpath
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import NOT_RENDERED, Manifest, by_service, read_manifest

Data = Mapping[str, t.Any]
# A version that was left for an earlier one is no aim of the next rollback, unless somebody names it.
_AIMS = ("serving", "replaced")
# What no version is made of stays as it is now: who goes back to an image does not open a route that was closed since.
STAYS = tuple(sorted(NOT_RENDERED - {"schema", "rollout"}))
# How a version proves itself goes back with it: its own time, its own warm-up request.
PROOF = ("timeout", "settle", "warm_up")


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
    old = read_manifest(target, kept_text)
    if old.service != service:
        raise FleetError(f"the manifest of version {found['number']} is of another service", field="to", hint="take it out of Git")
    last = text or next((one["manifest"]["text"] for one in versions if one["outcome"] != "failed" and one["manifest"]["text"]), kept_text)
    now = read_manifest(target, last)
    kept_text, words = _as_now(old, kept_text, now, last, int(found["number"]))
    version = f"version {found['number']} ({found['digest'][:19]}, {found['image']})"
    line = f"{service}: back to {version}, first served {found['since']} by {found['by']}"
    return Back(target, kept_text, str(found["digest"]), "; ".join([line, *words]))


def _as_now(old: Manifest, old_text: str, now: Manifest, now_text: str, number: int) -> tuple[str, list[str]]:
    """The manifest of an earlier version with what ``STAYS`` of the one of now, and words for what people would not expect."""
    was, has = old.located.data, now.located.data
    stays = {name: has[name] for name in STAYS if name in has}
    words: list[str] = []
    if now.model.route is not None and now.model.route.port not in [port.name for port in old.model.ports]:
        if old.model.route is None:
            wrong = f"version {number} has no port '{now.model.route.port}', which the route of now needs"
            raise FleetError(wrong, field="to", hint="take the route out of the manifest, or take the version out of Git")
        stays["route"] = {**stays["route"], "port": old.model.route.port}
        words.append(f"its route leads to the port '{old.model.route.port}' again")
    ways, proof = has.get("rollout") or {}, was.get("rollout") or {}
    rollout = {**{name: ways[name] for name in ways if name not in PROOF}, **{name: proof[name] for name in PROOF if name in proof}}
    wanted = {name: value for name, value in was.items() if name not in (*STAYS, "rollout")}
    wanted.update(stays, **({"rollout": rollout} if rollout else {}))
    kept = [name for name in (*STAYS, "rollout") if wanted.get(name) != was.get(name)]
    if kept:
        words.append(f"these stay as they are now: {', '.join(sorted(kept))}")
    back = [f"rollout.{name}" for name in PROOF if proof.get(name) != ways.get(name)]
    back += ["team"] if old.model.team != now.model.team else []
    if back:
        words.append(f"these go back with it: {', '.join(back)}")
    return (_spliced(old, old_text, now, now_text, wanted, kept) if kept else old_text), words


def _spliced(old: Manifest, old_text: str, now: Manifest, now_text: str, wanted: Data, names: t.Sequence[str]) -> str:
    """``old_text`` with the fields ``names`` as ``wanted`` has them, and all else in the bytes that its owner wrote, comments too."""
    blocks, theirs = _blocks(old, old_text), _blocks(now, now_text)
    for name in names:
        if name not in wanted:
            blocks.pop(name, None)
        else:
            same = name in theirs and now.located.data[name] == wanted[name]
            blocks[name] = theirs[name] if same else _written(name, wanted[name])
    text = "".join(block if block.endswith("\n") else f"{block}\n" for block in blocks.values())
    try:
        if read_yaml(text, old.file).data == wanted:
            return text
    except FleetError:
        pass  # not written one field a line: an anchor, or brackets around the whole
    return "".join(_written(name, value) for name, value in wanted.items())


def _blocks(manifest: Manifest, text: str) -> dict[str, str]:
    """Field -> its lines, with the comments above them; what is above the first field is ''."""
    lines = text.splitlines(keepends=True)
    starts = sorted((line - 1, str(path[0])) for path, line in manifest.located.lines.items() if len(path) == 1)
    blocks = {"": ""}
    end = 0
    for index, (start, name) in enumerate(starts):
        if index == 0:
            blocks[""], end = "".join(lines[:start]), start
        after = starts[index + 1][0] if index + 1 < len(starts) else len(lines)
        while index + 1 < len(starts) and after - 1 > start and (lines[after - 1].startswith("#") or not lines[after - 1].strip()):
            after -= 1
        blocks[name], end = "".join(lines[end:after]), after
    return blocks


def _written(name: str, value: t.Any) -> str:
    """A field in JSON, which is YAML that means the same to every reader."""
    return f"{name}: {json.dumps(value, ensure_ascii=False)}\n"


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
