# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose manifests count: the list of service projects, which the platform owns, held against what is in them (docs/gitlab.md)."""

from __future__ import annotations

import fnmatch
import re
import typing as t
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import AfterValidator, Field, Name, Strict, Wrong, check, model_validator
from ansible_collections.gpuops.fleet.plugins.plugin_utils.gateway import read_settings, strangers
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, Path, raise_all, read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Line, Manifest, read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.runtimes import volumes as runtime_volumes

_PROJECT = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$")
_REF = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")
_PATTERN = re.compile(r"^[a-z][a-z0-9-]*\*?$")

_HOST = re.compile(r"^(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")


def _project(value: str) -> str:
    if not _PROJECT.fullmatch(value) or ".." in value:
        raise Wrong(f"'{value}' is not the path of a project", "write it as in its address: group/project")
    return value


def _ref(value: str) -> str:
    if not _REF.fullmatch(value) or ".." in value:
        raise Wrong(f"'{value}' is not a branch, a tag or a commit", "write main, or the 40 hex digits of a commit")
    return value


def _pattern(value: str) -> str:
    if not _PATTERN.fullmatch(value):
        raise Wrong(f"'{value}' is neither a service nor a beginning of names", "write receipt-ocr, or claims-*")
    return value


def _directory(value: str) -> str:
    if value.startswith("/") or ".." in value.split("/"):
        raise Wrong(f"'{value}' leads out of the project", "name a directory of the project, such as manifests")
    return value


def _route_host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise Wrong(f"'{value}' is not a host name", "write ocr.example.com, or *.claims.example.com for all below it")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/"):
        raise Wrong(f"'{value}' is not a directory of a host", "write an absolute path without '..'")
    return value


class SourceModel(Strict):
    """One project at one ref, and what it may describe."""

    project: t.Annotated[str, AfterValidator(_project)] = Field(description="path of the project on the GitLab: group/project")
    ref: t.Annotated[str, AfterValidator(_ref)] = Field(default="main", description="protected branch that is followed, or a pinned commit")
    directory: t.Annotated[Line, AfterValidator(_directory)] = Field(default="manifests", description="where its manifests are")
    team: Name = Field(description="the only team that its manifests may name")
    services: list[t.Annotated[str, AfterValidator(_pattern)]] = Field(min_length=1, description="services that it may describe; claims-*")
    environments: list[Name] = Field(default_factory=list, description="only these; any when empty")
    lease_days: float | None = Field(default=None, gt=0, description="each service must have a lease of at most so many days: previews")
    priority: int = Field(default=100, ge=0, le=100, description="no service may have a higher priority")
    route_hosts: list[t.Annotated[str, AfterValidator(_route_host)]] = Field(
        default_factory=list, description="host names that a route may have: ocr.example.com, *.claims.example.com; by default none"
    )
    host_paths: list[t.Annotated[str, AfterValidator(_absolute)]] = Field(
        default_factory=list, description="directories of hosts from which it may mount; by default only the model store"
    )


class _Sources(Strict):
    sources: t.Literal[1]
    projects: list[SourceModel] = Field(default_factory=list)

    @model_validator(mode="after")
    def _once(self) -> _Sources:
        seen: dict[tuple[str, str], int] = {}
        for index, source in enumerate(self.projects):
            key = (source.project, source.ref)
            if key in seen:
                raise Wrong(
                    f"'{source.project}' at '{source.ref}' is already projects[{seen[key]}]", "make one of the two", "projects", index
                )
            seen[key] = index
        return self


@dataclass(frozen=True)
class Source:
    """A project at a ref, as the list has it. ``name``: of the directory that it is checked out to."""

    model: SourceModel
    index: int
    located: Located

    @property
    def name(self) -> str:
        """``claims.claims-services@main``: no two of a list have the same."""
        return f"{self.model.project}@{self.model.ref}".replace("/", ".")

    def data(self) -> dict[str, t.Any]:
        """Plain data for the playbook that checks it out."""
        return {**self.model.model_dump(), "name": self.name}

    def error(self, field: str, message: str, hint: str) -> FleetError:
        """An error at a field of this entry."""
        return self.located.error(("projects", self.index, field), message, hint)


def read_sources(path: str, text: str) -> list[Source]:
    """The list of service projects. :raises FleetError: with file, line, field, what was wrong and what would be right."""
    located = read_yaml(text, path)
    model = check(_Sources, located)
    return [Source(source, index, located) for index, source in enumerate(model.projects)]


def candidate_of(sources: Iterable[Source], project: str, ref: str) -> Source:
    """The entry that a change in ``project`` would come through, once merged into ``ref``.

    :raises FleetError: the list does not have it.
    """
    found = [source for source in sources if source.model.project == project]
    for source in found:
        if source.model.ref == ref:
            return source
    refs = ", ".join(source.model.ref for source in found)
    wrong = f"branch '{ref}' of '{project}' is not followed" if found else f"'{project}' is not in the list of service projects"
    raise FleetError(
        wrong, hint=f"followed are: {refs}" if found else "ask the platform team to add it to sources.yml, with its team and services"
    )


def gather(
    sources: Sequence[Source], texts: Mapping[str, Iterable[tuple[str, str]]], own: Iterable[tuple[str, str]], runtimes: Collection[str]
) -> dict[str, str]:
    """All manifests of the fleet, as ``SERVICE.yml`` -> text, in the bytes that their owners wrote.

    ``texts``: a source's name -> (path, text) of its manifests; ``own``: those of the platform project itself, which may describe anything.

    :raises FleetError: every problem of every manifest, and every manifest that describes what its project does not own.
    """
    own, known = list(own), {name: list(found) for name, found in texts.items()}
    errors: list[FleetError] = []
    whose = {path: source for source in sources for path, _text in known.get(source.name, ())}
    written = dict([*own, *(entry for found in known.values() for entry in found)])
    manifests: list[Manifest] = []
    try:
        manifests = read_manifests(written.items(), runtimes)
    except FleetError as error:
        errors.append(error)
        manifests = _readable(written)
    errors.extend(strangers(manifests, read_settings({})))
    for manifest in manifests:
        if manifest.file in whose:
            errors.extend(strange(manifest, whose[manifest.file]))
    raise_all(errors)
    return {f"{manifest.service}.yml": written[manifest.file] for manifest in manifests}


def _readable(written: Mapping[str, str]) -> list[Manifest]:
    """Those that can be read one by one, so that who owns them is said in the same breath as what is wrong with others."""
    found: list[Manifest] = []
    for entry in written.items():
        try:
            found.extend(read_manifests([entry]))
        except FleetError:
            continue
    return found


def strange(manifest: Manifest, source: Source) -> t.Iterator[FleetError]:
    """What of a manifest its project may not say, one error each."""
    model, allowed = manifest.model, source.model
    ask = "ask the platform team to change sources.yml, or"
    if model.team != allowed.team:
        yield manifest.located.error(("team",), f"'{allowed.project}' belongs to team '{allowed.team}'", f"write 'team: {allowed.team}'")
    if not any(fnmatch.fnmatchcase(manifest.service, pattern) for pattern in allowed.services):
        hint = f"{ask} use one of: {', '.join(allowed.services)}"
        yield manifest.located.error(("service",), f"'{allowed.project}' does not own '{manifest.service}'", hint)
    if allowed.environments and model.environment not in allowed.environments:
        hint = f"{ask} write one of: {', '.join(allowed.environments)}"
        yield manifest.located.error(("environment",), f"'{allowed.project}' may not use '{model.environment}'", hint)
    if model.priority > allowed.priority:
        yield manifest.located.error(
            ("priority",), f"'{allowed.project}' may have at most {allowed.priority}", f"write {allowed.priority} or less"
        )
    if allowed.lease_days is not None and (model.lease is None or model.lease.days > allowed.lease_days):
        wrong = f"what comes from branch '{allowed.ref}' of '{allowed.project}' ends after at most {allowed.lease_days:g} days"
        yield manifest.located.error(("lease",), wrong, f"write 'lease: {{days: {allowed.lease_days:g}}}'")
    host = None if model.route is None else model.route.host
    if host is not None and not any(_named(host, name) for name in allowed.route_hosts):
        hint = "leave it out, for the service has an address without it, or ask the platform team for 'route_hosts' in sources.yml"
        yield manifest.located.error(("route", "host"), f"'{allowed.project}' may not have the host name '{host}'", hint)
    for field, path in _mounted(manifest):
        if not any(_below(path, allowed_path) for allowed_path in ("", *allowed.host_paths)):
            hint = "write a path relative to the model store, or ask the platform team for 'host_paths' in sources.yml"
            yield manifest.located.error(field, f"'{allowed.project}' may not mount '{path}' of a host", hint)
    for index, volume in enumerate(model.volumes):
        # All teams read their models out of one store.
        if not volume.read_only and not volume.source.startswith("/") and not _of_team(volume.source, allowed.team):
            wrong = f"'{allowed.project}' may not write into '{volume.source}' of the model store"
            hint = f"write {allowed.team}/... or notebooks/{allowed.team}/..., or leave 'read_only' out"
            yield manifest.located.error(("volumes", index, "read_only"), wrong, hint)


def _of_team(path: str, team: str) -> bool:
    """Whether a path of the model store lies in a directory of the team: its first or its second part has the team's name."""
    return team in [part for part in path.split("/") if part not in ("", ".")][:2]


def _named(host: str, name: str) -> bool:
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _mounted(manifest: Manifest) -> t.Iterator[tuple[Path, str]]:
    """Field and source of all that a container of the service is given of the host, whoever asks for it: the owner, or the runtime."""
    for index, volume in enumerate(manifest.model.volumes):
        yield ("volumes", index, "source"), volume.source
    if manifest.model.lifecycle == "managed":
        for mount in runtime_volumes(manifest.data()):
            yield ("runtime",), mount["source"]


def _below(path: str, directory: str) -> bool:
    """Whether a path lies below one of the host; below '', the model store, lie those that are relative. '..' leads out of any."""
    if ".." in path.split("/"):
        return False
    if not directory:
        return not path.startswith("/")
    root = directory.rstrip("/")
    return path.rstrip("/") == root or path.startswith(root + "/")
