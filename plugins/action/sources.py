# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: reads the list of service projects, and gathers the manifests that they own, on the controller."""

from __future__ import annotations

import os
import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sources import Source, candidate_of, gather, read_sources

TEMPLATES = Path(__file__).resolve().parents[2] / "compose-templates"
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "path", "required": True},
    "checkouts": {"type": "path"},
    "own": {"type": "path"},
    "manifests": {"type": "path"},
    "templates": {"type": "list", "elements": "path", "default": []},
    "candidate": {
        "type": "dict",
        "options": {
            "project": {"type": "str", "required": True},
            "ref": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
        },
    },
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """The list; and with ``manifests`` what the projects own, gathered there.

    :raises FleetError: something is wrong; nothing is written then.
    """
    sources = read_sources(arguments["path"], door.read_text(arguments["path"]))
    asked = arguments["candidate"]
    candidate = None if asked is None else candidate_of(sources, asked["project"], asked["ref"])
    fetched = [source.data() for source in sources if source is not candidate]
    result: dict[str, t.Any] = {"changed": False, "sources": fetched, "services": []}
    directory = arguments["manifests"]
    if directory is None:
        return result
    roots = {source.name: os.path.join(arguments["checkouts"] or "", source.name) for source in sources}
    if candidate is not None:
        roots[candidate.name] = asked["path"]
    own = [] if arguments["own"] is None else door.read_texts(arguments["own"])
    found = gather(
        sources,
        {source.name: _texts(source, roots[source.name]) for source in sources},
        own,
        door.known_runtimes([*arguments["templates"], TEMPLATES]),
    )
    files = {os.path.join(directory, name): text for name, text in found.items()}
    there = door.yaml_files(directory) if os.path.isdir(directory) else []
    gone = [path for path in there if path not in files]
    before = {path: door.read_text_or_none(path) for path in [*files, *gone]}
    result.update(changed=any(before[path] != text for path, text in files.items()) or bool(gone))
    result["services"] = sorted(name.removesuffix(".yml") for name in found)
    if diff:
        result["diff"] = door.diffs({**files, **dict.fromkeys(gone, "")}, before)
    if not check_mode:
        door.make_directory(directory)
        door.write_all(files)
        door.remove_all(gone)
    return result


def _texts(source: Source, root: str) -> list[tuple[str, str]]:
    directory = os.path.join(root, source.model.directory)
    if not os.path.isdir(directory):
        wrong = f"'{source.model.project}' at '{source.model.ref}' has no directory '{source.model.directory}'"
        raise source.error("directory", wrong, "name the directory that has its manifests, or add one with a file .gitkeep")
    if os.path.realpath(directory) != os.path.join(os.path.realpath(root), source.model.directory) or any(
        os.path.islink(os.path.join(place, name)) for place, inner, names in os.walk(directory) for name in [*inner, *names]
    ):
        raise FleetError("a project of manifests has no links", file=directory, hint="write the file itself in place of the link")
    return door.read_texts(directory)


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
