# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What images say of themselves, recorded by digest for the gate: the file, what is not in it yet, and what was learnt (docs/compat.md)."""

from __future__ import annotations

import json
import typing as t
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.image_variables import Reference, kept, parse_reference
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import Field, Strict, check
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_requires import doubts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Line, Manifest

FORMAT = 1
HEAD = "# What images say that they need, by digest; written by playbook images, read by the compatibility gate (docs/compat.md).\n"
Data = Mapping[str, t.Any]

_Digest = t.Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
# So many names are written out in one line; of the others only their number.
_NAMES = 4


class _Image(Strict):
    seen: Line = Field(description="a name under which it was seen; its digest alone counts")
    variables: list[str]


class _File(Strict):
    format: t.Literal[1]
    images: dict[_Digest, _Image]


@dataclass(frozen=True)
class Recorded:
    """One image: a name under which it was seen, and ``NAME=VALUE`` of its variables that the gate reads."""

    seen: str
    variables: tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """Images of manifests that are pinned: digest -> how they are written and by which services. ``loose``: those that are not pinned.

    ``declared``: the CUDA that ``needs`` of their manifests names, of images for which every manifest does.
    """

    names: Mapping[str, tuple[str, ...]]
    services: Mapping[str, tuple[str, ...]]
    loose: tuple[str, ...]
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Learnt:
    """What came of asking: digest -> image, and one line for each image that nobody told of, and why.

    ``missing``: nothing at all is known of it; ``declared``: its manifests declare its CUDA, and that is judged.
    """

    images: Mapping[str, Recorded] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)

    @property
    def untold(self) -> list[str]:
        """Digests that are still to be asked about."""
        return sorted({*self.missing, *self.declared})


def read_record(path: str, text: str | None) -> dict[str, Recorded]:
    """digest -> image, of the record; nothing of one that is not there yet.

    :raises FleetError: not of this form, or a variable that the gate does not read: it may be somebody's secret.
    """
    if text is None:
        return {}
    located = read_yaml(text, path)
    file = check(_File, located)
    for digest, image in file.images.items():
        try:
            known = kept(image.variables)
        except FleetError as error:
            raise located.error(("images", digest, "variables"), error.message, "run playbook images again") from error
        if sorted(known) != sorted(image.variables):
            hint = "leave CUDA_VERSION, NVIDIA_REQUIRE_... and NVIDIA_DISABLE_REQUIRE, each once, as NAME=VALUE"
            raise located.error(("images", digest, "variables"), "it has more than the gate reads", hint)
    return {digest: Recorded(image.seen, tuple(image.variables)) for digest, image in file.images.items()}


def to_text(record: Mapping[str, Recorded]) -> str:
    """The record as its file: sorted by digest, every value in quotes."""
    lines = [HEAD, "---\n", f"format: {FORMAT}\n", "images:\n" if record else "images: {}\n"]
    for digest in sorted(record):
        image = record[digest]
        lines.append(f"  {digest}:\n    seen: {json.dumps(image.seen)}\n")
        lines.append("    variables:\n" if image.variables else "    variables: []\n")
        lines.extend(f"      - {json.dumps(text)}\n" for text in image.variables)
    return "".join(lines)


def variables_by_digest(record: Mapping[str, Recorded]) -> dict[str, list[str]]:
    """What :func:`compat_table.image_of_service` takes."""
    return {digest: list(image.variables) for digest, image in record.items()}


def images_of(manifests: Iterable[Manifest]) -> Wanted:
    """The images of the manifests, by digest."""
    names: dict[str, set[str]] = {}
    services: dict[str, set[str]] = {}
    declared: dict[str, set[str | None]] = {}
    loose = []
    for manifest in manifests:
        image = manifest.model.image
        if image is None:
            continue
        try:
            digest = parse_reference(image).digest
        except FleetError as error:
            loose.append(f"{manifest.service}: {error.message}: nothing is recorded of it")
            continue
        names.setdefault(digest, set()).add(image)
        services.setdefault(digest, set()).add(manifest.service)
        declared.setdefault(digest, set()).add(manifest.model.needs.cuda if manifest.model.needs else None)
    return Wanted(
        {digest: tuple(sorted(names[digest])) for digest in sorted(names)},
        {digest: tuple(sorted(services[digest])) for digest in sorted(names)},
        tuple(sorted(loose)),
        {digest: tuple(sorted(filter(None, declared[digest]))) for digest in sorted(names) if None not in declared[digest]},
    )


def unknown(wanted: Wanted, record: Collection[str], again: bool) -> list[str]:
    """Digests to ask about: those that are not recorded, or all."""
    return [digest for digest in wanted.names if again or digest not in record]


def by_host(wanted: Wanted, digests: Iterable[str], places: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """host -> images that its engine may have, for its plan has a service with them. ``places``: host -> services."""
    asked = list(digests)
    found = {}
    for host in sorted(places):
        here = set(places[host])
        images = [name for digest in asked if here & set(wanted.services[digest]) for name in wanted.names[digest]]
        if images:
            found[host] = images
    return found


def learn(wanted: Wanted, digests: Iterable[str], engines: Mapping[str, Data], registry: Data | None) -> Learnt:
    """What hosts and registries answered about these digests. ``engines``: host -> result of ``image_info``; ``registry``: of it here.

    Hosts agree but for an image that is built for several architectures: then the one for amd64 counts.
    """
    answers = [*((name, answer) for name, answer in sorted(engines.items())), *([("its registry", registry)] if registry else [])]
    images: dict[str, Recorded] = {}
    sources: dict[str, str] = {}
    missing: dict[str, str] = {}
    declared: dict[str, str] = {}
    for digest in digests:
        found: list[tuple[bool, int, str, tuple[str, ...]]] = []
        reasons: list[tuple[str, str]] = []
        for source, answer in answers:
            told, reason = _told(wanted.names[digest], answer)
            if told is not None:
                found.append((told[0] != "amd64", len(found), source, told[1]))
            elif reason:
                reasons.append((source, reason))
        if found:
            _other, _order, sources[digest], variables = min(found)
            images[digest] = Recorded(parse_reference(wanted.names[digest][0]).name, variables)
        elif digest in wanted.declared:
            words = f"declared: CUDA {' and '.join(wanted.declared[digest])}; {_because(reasons)}"
            declared[digest] = _line(wanted, digest, words)
        else:
            missing[digest] = _line(wanted, digest, _because(reasons))
    return Learnt(images, sources, missing, declared)


def _told(names: Sequence[str], answer: Data) -> tuple[tuple[t.Any, tuple[str, ...]] | None, str]:
    """What one answer says of an image under any of its names: (architecture, variables), or why it says nothing ('': not asked)."""
    found, reason = answer.get("found"), ""
    for name in names:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            try:
                # What comes from a host is looked at again: it shall bring nothing else into the record.
                return (found[name].get("architecture"), tuple(kept(found[name].get("variables")))), ""
            except FleetError as error:
                reason = error.message
        elif isinstance(answer.get("missing"), Mapping) and name in answer["missing"]:
            reason = reason or str(answer["missing"][name])
    if not reason and (answer.get("failed") or answer.get("unreachable")):
        reason = " ".join(str(answer.get("msg") or "no reason given").split())
    return None, reason


def _because(reasons: Iterable[tuple[str, str]]) -> str:
    """Who could not tell, and why: those with one reason together."""
    alike: dict[str, list[str]] = {}
    for source, reason in reasons:
        alike.setdefault(reason, []).append(source)
    return "; ".join(f"{_some(names)}: {reason}" for reason, names in alike.items()) or "nobody was asked"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES])
    return shown if len(names) <= _NAMES else f"{shown} and {len(names) - _NAMES} more"


def _line(wanted: Wanted, digest: str, words: str) -> str:
    reference: Reference = parse_reference(wanted.names[digest][0])
    return f"{reference.short} ({_some(wanted.services[digest])}): {words}"


def merged(record: Mapping[str, Recorded], learnt: Learnt, wanted: Wanted, drop: bool) -> dict[str, Recorded]:
    """The record with what was learnt. The name of one that says the same as before stays. ``drop``: without what no manifest uses."""
    result = dict(record)
    for digest, image in learnt.images.items():
        if digest not in record or record[digest].variables != image.variables:
            result[digest] = image
    return {digest: image for digest, image in result.items() if not drop or digest in wanted.names}


def lines(wanted: Wanted, learnt: Learnt) -> list[str]:
    """One line for each image that was asked about: what it says and who said so, what of it nobody can read, or why nothing is known."""
    found = []
    for digest in learnt.images:
        variables = learnt.images[digest].variables
        values = {name: value for name, _sign, value in (text.partition("=") for text in variables)}
        others = len(variables) - ("CUDA_VERSION" in values)
        says = f"CUDA {values['CUDA_VERSION']}" if "CUDA_VERSION" in values else "no CUDA"
        says += f", {others} more variable{'s' * (others != 1)}" if others else ""
        found.append(_line(wanted, digest, f"{says} (told by {learnt.sources[digest]})"))
        found.extend(_line(wanted, digest, f"{doubt}, so the gate can only warn") for doubt in doubts(variables))
    return [*found, *learnt.declared.values(), *learnt.missing.values(), *wanted.loose]
