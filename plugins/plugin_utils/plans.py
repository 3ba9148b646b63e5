# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan documents (docs/plan.md): a solution as text that reviews well, and back again with errors that name the line."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of, replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import Field, Strict, Wrong, check, model_validator
from ansible_collections.gpuops.fleet.plugins.plugin_utils.held import AMOUNTS
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import TIME_SLICE, GpuLayout, Host, Placement, Solution, Unplaced
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import Order

# The file for what belongs to no host; so no host can have this name.
FLEET = "fleet"

Data = Mapping[str, t.Any]
_Digest = t.Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
_PLAIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_./@:+-]*$")
# What YAML 1.1 or 1.2 readers might take for something else than text: numbers, times, dates, truth values.
_NUMBERLIKE = re.compile(r"^(?:0[xob].*|[0-9:._eE+-]+)$")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))


class _State(Strict):
    gpu: str
    mig: bool
    instances: list[str]


class _Base(Strict):
    digest: _Digest
    gpus: list[_State]


class _Layout(Strict):
    gpu: str
    pci: str | None = None
    model: str | None = None
    mode: t.Literal["mig", "whole", "shared"] | None = None
    found: t.Literal[True] | None = None
    profile: str | None = None
    start: int | None = Field(default=None, ge=0)
    compute: t.Literal["keep"] | None = None
    sharing: t.Literal["mps"] | None = None


class _Amounts(Strict):
    cpus: float | None = Field(default=None, ge=0)
    memory: int | None = Field(default=None, ge=0)
    shm: int | None = Field(default=None, ge=0)
    disk: int | None = Field(default=None, ge=0)


class _Service(Strict):
    service: str
    replica: int = Field(ge=1)
    gpu: str | None = None
    gpus: list[str] | None = Field(default=None, min_length=1)
    profile: str | None = None
    start: int | None = Field(default=None, ge=0)
    mode: t.Literal["whole", "shared"] | None = None
    sharing: t.Literal["mps"] | None = None
    memory: int | None = Field(default=None, ge=0)
    compute: float | None = Field(default=None, ge=0)
    host: _Amounts | None = None
    ports: dict[str, int]
    lifecycle: t.Literal["adopted"] | None = None
    manifest: _Digest

    @model_validator(mode="after")
    def _one_place(self) -> _Service:
        slice_ = self.gpu is not None and self.gpus is None and self.profile is not None and self.start is not None and self.mode is None
        empty = self.profile is None and self.start is None
        shared = self.gpu is not None and self.gpus is None and empty and self.mode == "shared"
        whole = self.gpu is None and self.gpus is not None and empty and self.mode == "whole"
        if not (slice_ or shared or whole):
            raise Wrong("it names no place", "write gpu, profile and start; or gpu and 'mode: shared'; or gpus and 'mode: whole'")
        return self


class _Plan(Strict):
    plan: t.Literal[1]
    host: str
    serial: int = Field(ge=1)
    digest: _Digest
    base: _Base
    layout: list[_Layout]
    services: list[_Service]


@dataclass(frozen=True)
class HostPlan:
    """A host's plan as data (the keys of docs/plan.md) and as the text of its file."""

    data: Data
    text: str

    @property
    def serial(self) -> int:
        """The higher, the newer; a host takes no older one than it carries."""
        return int(self.data["serial"])

    @property
    def placements(self) -> list[Placement]:
        """Where the plan puts replicas."""
        return [_placement(str(self.data["host"]), line) for line in self.data["services"]]


def read_plan(path: str, text: str) -> HostPlan:
    """A host's plan from its file.

    :raises FleetError: not of this form, or edited by hand: then its digests are not those of its content.
    """
    located = read_yaml(text, path)
    _is_a_plan(located)
    check(_Plan, located)
    try:
        plan_record.check_plan(located.data)
    except FleetError as error:
        raise located.error(tuple((error.field or "").split(".")), error.message, error.hint) from error
    return HostPlan(located.data, text)


def _is_a_plan(located: Located) -> None:
    """:raises FleetError: it is something else, or of a release that is newer than this one."""
    form = located.data.get("plan")
    if "plan" not in located.data:
        raise FleetError("this is no plan", file=located.file, hint="move it elsewhere: this directory is for plans alone")
    if isinstance(form, int) and not isinstance(form, bool) and form > 1:
        wrong = f"form {form} of plans is of a newer release"
        raise located.error(("plan",), wrong, "plan with the release of gpuops.fleet that wrote it, or a newer one")


def _placement(host: str, line: Data) -> Placement:
    ports = tuple(sorted(line["ports"].items()))
    key = (line["service"], line["replica"], host)
    if "profile" in line:
        return Placement(*key, "mig", (line["gpu"],), Slice(line["start"], line["profile"]), ports)
    gpus = tuple(line.get("gpus") or [line["gpu"]])
    return Placement(*key, line["mode"], gpus, None, ports, line.get("sharing", TIME_SLICE))


def make_host_plan(
    host: Host,
    solution: Solution,
    facts: Data,
    digests: Mapping[str, str],
    adopted: Iterable[str],
    previous: HostPlan | None,
    adopting: bool = False,
    amounts: Mapping[str, Data] | None = None,
) -> HostPlan:
    """The plan of one host; the text of ``previous``, byte for byte, when nothing that it decides has changed.

    ``digests``: of each service's manifest. ``adopted``: services that are only kept in place. ``adopting``: every GPU that is
    found in MIG mode is listed, although nobody has decided anything about it. ``amounts``: of each service what its lines keep, as
    :func:`held.amounts_of` has it.
    """
    layout = _layout_lines(host, solution, facts, [] if previous is None else previous.data["layout"], adopting)
    services = _service_lines(host, solution, digests, adopted, amounts or {}, layout, previous)
    by_uuid = {gpu.get("uuid"): gpu for gpu in facts["gpus"]}
    touched = [by_uuid[line["gpu"]] for line in layout if "mode" in line]
    base = [plan_record.state_of(gpu) for gpu in touched]
    digest = plan_record.digest_of_plan(layout, services)
    base_digest = plan_record.digest_of_state(touched)
    carried = facts.get("plan")
    if previous is not None and _stands(previous.data, digest, base_digest, carried):
        return previous
    return _written(host.name, _serial(None if previous is None else previous.data, digest, carried), layout, services, base)


def keep_host_plan(
    host: Host,
    solution: Solution,
    facts: Data | None,
    digests: Mapping[str, str],
    adopted: Iterable[str],
    previous: HostPlan,
    amounts: Mapping[str, Data] | None = None,
) -> HostPlan:
    """The plan of a host that is down: it loses what has moved away, and its layout stays, for nobody sees what it would do.

    ``facts``: as they were published last, None when they never were. The text of ``previous``, byte for byte, when nothing moves.
    """
    layout = previous.data["layout"]
    services = _service_lines(host, solution, digests, adopted, amounts or {}, layout, previous)
    digest = plan_record.digest_of_plan(layout, services)
    if digest == previous.data["digest"]:
        return previous
    carried = None if facts is None else facts.get("plan")
    known = {line["gpu"]: line for line in previous.data["base"]["gpus"]}
    known.update({gpu["uuid"]: plan_record.state_of(gpu) for gpu in (facts or {}).get("gpus") or () if gpu.get("uuid")})
    base = [known[line["gpu"]] for line in layout if "mode" in line and line["gpu"] in known]
    return _written(host.name, _serial(previous.data, digest, carried), layout, services, base)


def with_other_gpus(previous: HostPlan, new: Mapping[str, str], facts: Data) -> HostPlan:
    """The plan with GPUs exchanged for others of their kind (``new``: old UUID -> new), made from the state that ``facts`` say is there.

    What was found on an old board and kept as it was is not on the new one: its slices are made whole. Every GPU of the plan must be in
    the facts or in ``new``.
    """

    def exchanged(line: Data) -> dict[str, t.Any]:
        result = dict(line)
        if line.get("gpu") in new:
            result = {key: value for key, value in result.items() if key != "compute"}
            result["gpu"] = new[line["gpu"]]
        if "gpus" in line:
            result["gpus"] = [new.get(uuid, uuid) for uuid in line["gpus"]]
        return result

    layout = [exchanged(line) for line in previous.data["layout"]]
    services = [exchanged(line) for line in previous.data["services"]]
    by_uuid = {gpu["uuid"]: gpu for gpu in facts["gpus"]}
    base = [plan_record.state_of(by_uuid[line["gpu"]]) for line in layout if "mode" in line]
    digest = plan_record.digest_of_plan(layout, services)
    return _written(str(previous.data["host"]), _serial(previous.data, digest, facts.get("plan")), layout, services, base)


def _written(host: str, serial: int, layout: Sequence[Data], services: Sequence[Data], base: Sequence[Data]) -> HostPlan:
    data = {
        "plan": plan_record.PLAN_FORMAT,
        "host": host,
        "serial": serial,
        "digest": plan_record.digest_of_plan(layout, services),
        "base": {"digest": plan_record.digest_of_base(base), "gpus": base},
        "layout": layout,
        "services": services,
    }
    return HostPlan(data, to_text(data))


def _stands(previous: Data, digest: str, base_digest: str, carried: Data | None) -> bool:
    """Is the last plan still right as it is written?

    A plan that its host has not begun must be made from the state that is there now, or the host would refuse it for ever.
    """
    if previous["digest"] != digest:
        return False
    if carried is not None and carried["serial"] >= previous["serial"]:
        return bool(carried["serial"] == previous["serial"] and carried["digest"] == digest)
    return bool(previous["base"]["digest"] == base_digest)


def _serial(previous: Data | None, digest: str, carried: Data | None) -> int:
    """One more than anything seen before; that of the plan which the host carries when it is this very plan and its file is lost."""
    last = 0 if previous is None else int(previous["serial"])
    if carried is None:
        return last + 1
    if carried["digest"] == digest and carried["serial"] > last:
        return int(carried["serial"])
    return max(last, int(carried["serial"])) + 1


def _layout_lines(host: Host, solution: Solution, facts: Data, before: Sequence[Data], adopting: bool) -> list[dict[str, t.Any]]:
    """GPUs that a decision touches, and those in MIG mode that were found and adopted, for as long as no decision touches them.

    A slice that was found without a compute instance stays so until a service is placed on it; one that a plan has asked for
    and that has none was left by a crash, and is made whole. What a surge holds goes with it, so that no layout has it.
    """
    lines: list[dict[str, t.Any]] = []
    found = {line["gpu"] for line in before if line.get("found")}
    asked = {(line["gpu"], Slice(line["start"], line["profile"])) for line in before if "profile" in line and "compute" not in line}
    needed = {(gpu, placement.slice) for placement in solution.by_host.get(host.name, ()) for gpu in placement.gpus}
    keep = _without_compute(facts) - asked - needed
    for gpu in sorted(host.gpus, key=lambda gpu: (gpu.pci, gpu.uuid)):
        layout = solution.layouts.get((host.name, gpu.uuid))
        line: dict[str, t.Any] = {"gpu": gpu.uuid, "pci": gpu.pci, "model": gpu.board, "mode": "mig"}
        if layout is not None:
            line["mode"], slices = layout.mode, layout.slices
            line.update(_sharing(layout))
        elif (adopting or gpu.uuid in found) and gpu.blocked is None and _in_mig_mode(gpu.uuid, facts):
            line["found"], slices = True, tuple(one.slice for one in gpu.instances)
        else:
            continue
        lines.append(line)
        temporary = {one.slice for one in gpu.instances if one.temporary}
        for one in (one for one in slices if one not in temporary):
            kept = {"compute": "keep"} if (gpu.uuid, one) in keep else {}
            lines.append({"gpu": gpu.uuid, "profile": one.profile, "start": one.start, **kept})
    return lines


def _without_compute(facts: Data) -> set[tuple[str, Slice | None]]:
    """(GPU, slice) of GPU instances that nobody can use."""
    return {
        (gpu["uuid"], Slice(one["start"], one["profile"]))
        for gpu in facts["gpus"]
        for one in (gpu.get("mig") or {}).get("instances") or ()
        if not one.get("ci")
    }


def _in_mig_mode(uuid: str, facts: Data) -> bool:
    """In force, and no other mode waits for a reset: a plan would end that."""
    mig = next((gpu["mig"] for gpu in facts["gpus"] if gpu["uuid"] == uuid), None)
    return bool(mig and mig["current"] and mig["pending"])


def _sharing(what: GpuLayout | Placement) -> dict[str, str]:
    """Said only where it is not by turns, so that plans of before read as ever."""
    return {"sharing": what.sharing} if what.sharing != TIME_SLICE else {}


def _service_lines(
    host: Host,
    solution: Solution,
    digests: Mapping[str, str],
    adopted: Iterable[str],
    amounts: Mapping[str, Data],
    layout: Sequence[Data],
    previous: HostPlan | None,
) -> list[dict[str, t.Any]]:
    """The lines of a host's services. As long as a manifest stays the same, so do the amounts: another release might count otherwise.

    A plan of a release that kept no amounts gets them when something else changes in it, not for that alone.
    """
    kept = frozenset(adopted)
    last = {} if previous is None else {name_of(line): line for line in previous.data["services"]}
    lines = []
    for place in solution.by_host.get(host.name, ()):
        digest, before = digests[place.service], last.get(place.name, {})
        known = {key: before[key] for key in AMOUNTS if key in before} if before.get("manifest") == digest else {}
        lines.append(_service_line(place, digest, place.service in kept, known or amounts.get(place.service, {})))
    bare = [{key: value for key, value in line.items() if key not in AMOUNTS} for line in lines]
    if previous is not None and previous.data["digest"] == plan_record.digest_of_plan(layout, bare):
        return bare
    return lines


def _service_line(placement: Placement, digest: str, adopted: bool, amounts: Data) -> dict[str, t.Any]:
    line: dict[str, t.Any] = {"service": placement.service, "replica": placement.replica}
    if placement.slice is not None:
        line.update(gpu=placement.gpus[0], profile=placement.slice.profile, start=placement.slice.start)
    elif placement.mode == "shared":
        line.update(gpu=placement.gpus[0], mode="shared", **_sharing(placement))
    else:
        line.update(gpus=list(placement.gpus), mode="whole")
    line.update(amounts)
    line["ports"] = dict(placement.ports)
    if adopted:
        line["lifecycle"] = "adopted"
    line["manifest"] = digest
    return line


def to_text(plan: Data) -> str:
    """A host's plan as YAML, one decision a line."""
    return "\n".join(
        [
            f"plan: {plan['plan']}",
            f"host: {_scalar(plan['host'])}",
            f"serial: {plan['serial']}",
            f"digest: {plan['digest']}",
            "base:",
            f"  digest: {plan['base']['digest']}",
            *_lines("  gpus", plan["base"]["gpus"]),
            *_lines("layout", plan["layout"]),
            *_lines("services", plan["services"]),
            "",
        ]
    )


class _Fleet(Strict):
    plan: t.Literal[1]
    unplaced: list[dict[str, t.Any]] = Field(default_factory=list)
    settings: list[dict[str, str]] | None = None
    steps: list[str] = Field(default_factory=list)
    outages: list[dict[str, t.Any]] = Field(default_factory=list)
    proof: dict[str, t.Any] | None = None
    asked: str | None = None


@lru_cache(maxsize=1)
def _read_fleet(path: str, text: str) -> _Fleet:
    """A ``fleet.yml``, read once: a plan asks for one part after the other, and thousands may be without a place. Nobody writes to it."""
    located = read_yaml(text, path)
    _is_a_plan(located)
    return check(_Fleet, located)


Settings = Mapping[str, Mapping[str, str]]
# Between why there is no place and what would help.
_HELPS = "; what would help: "


@dataclass(frozen=True)
class Turns:
    """The steps of the last plan in which a replica left a place, and who does not serve meanwhile, as ``fleet.yml`` has them."""

    steps: tuple[str, ...] = ()
    outages: tuple[Data, ...] = ()


def turns_of(made: Order) -> Turns:
    """An order as data."""
    outages = tuple({"service": each.service, "replica": each.replica, "reason": each.reason} for each in (*made.outages, *made.pauses))
    return Turns(tuple(step.line for step in made.steps), outages)


def read_turns(path: str, text: str) -> Turns:
    """What a ``fleet.yml`` says of steps. :raises FleetError: not of this form."""
    found = _read_fleet(path, text)
    return Turns(tuple(found.steps), tuple(found.outages))


def fleet_text(
    unplaced: Iterable[Data],
    settings: Settings | None = None,
    turns: Turns | None = None,
    proof: Data | None = None,
    asked: str | None = None,
) -> str:
    """The text of ``fleet.yml``: what belongs to no host. ``settings``: digests by service and part; None: nobody knows them.

    ``proof``: as :func:`proofs.proof_data` has it. ``asked``: as :func:`asked.asked_of` has it, for those without a place.
    """
    known = [] if settings is None else [{"service": name, **parts} for name, parts in sorted(settings.items()) if parts]
    lines = ["plan: 1", *_lines("unplaced", list(unplaced)), *([] if settings is None else _lines("settings", known))]
    if turns is not None and turns.steps:
        lines += ["steps:", *(f"  - {_scalar(step)}" for step in turns.steps)]
        lines += _lines("outages", turns.outages) if turns.outages else []
    lines += [f"proof: {flow(proof)}"] if proof else []
    lines += [f"asked: {_scalar(asked)}"] if asked else []
    return "\n".join([*lines, ""])


def read_proof(path: str, text: str, unplaced: Sequence[Data], asked: str | None, proof: Data | None) -> Data | None:
    """What the last plan had proven, or had not, if it was ``asked`` the same; what it had proven, if these were without a place then too;
    else ``proof``.

    :raises FleetError: not of this form.
    """
    found = _read_fleet(path, text)
    if asked is not None and asked == found.asked:
        return found.proof
    return (found.proof if found.unplaced == list(unplaced) else None) or proof


def as_told(path: str, text: str, unplaced: Sequence[Unplaced], asked: str | None) -> tuple[Unplaced, ...]:
    """The same; as the last plan told them where that was ``asked`` the same, or told besides whom somebody gave way to.

    What would help is looked for from where everybody is, so a second look might find something else that helps as well.

    :raises FleetError: not of this form.
    """
    found = _read_fleet(path, text)
    last = {replica_name(line.get("service"), line.get("replica")): str(line.get("reason")) for line in found.unplaced}
    same = asked is not None and asked == found.asked
    told = []
    for each in unplaced:
        before = last.get(replica_name(each.service, each.replica), "")
        reason, _helps, help_ = before.partition(_HELPS)
        known = help_ and (same or before.endswith(f": {reason_of(each)}"))
        told.append(replace(each, reason=reason, help=help_) if known else each)
    return tuple(told)


def read_settings(path: str, text: str) -> Settings | None:
    """What a ``fleet.yml`` says of settings; None for one that was written before there were any.

    :raises FleetError: not of this form.
    """
    lines = _read_fleet(path, text).settings
    return None if lines is None else {line["service"]: {key: line[key] for key in line if key != "service"} for line in lines}


def settings_lines(before: Settings, after: Settings, there: Iterable[str], changed: Collection[str]) -> list[str]:
    """A line for each service in the last plans (``there``) whose settings change. ``changed``: those that get a new version too."""
    lines = []
    for name in sorted(set(there) & set(after)):
        old, new = before.get(name, {}), after[name]
        parts = [part for part in sorted({*old, *new}) if old.get(part) != new.get(part)]
        if parts:
            said = f"{name}: {', '.join(parts)} {'changes' if len(parts) == 1 else 'change'}"
            lines.append(said if name in changed else f"{said}, no container is made anew")
    return lines


def unplaced_lines(unplaced: Iterable[Unplaced]) -> list[dict[str, t.Any]]:
    """``{service, replica, reason}``; the reason ends with the nearest thing that would help."""
    return [{"service": each.service, "replica": each.replica, "reason": reason_of(each)} for each in unplaced]


def reason_of(unplaced: Unplaced) -> str:
    """Why there is no place, and the nearest thing that would help, in one line."""
    return f"{unplaced.reason}{_HELPS}{unplaced.help}"


def _lines(name: str, entries: Sequence[Data]) -> list[str]:
    indent = name[: len(name) - len(name.lstrip())]
    if not entries:
        return [f"{name}: []"]
    return [f"{name}:", *(f"{indent}  - {flow(entry)}" for entry in entries)]


def flow(value: t.Any) -> str:
    """As YAML in flow style, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {flow(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(entry) for entry in value) + "]"
    return _scalar(value)


def _scalar(value: t.Any) -> str:
    """A scalar that every YAML reader takes for the same thing."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and not text.endswith(":") and not _NUMBERLIKE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if all(character.isprintable() for character in text):
        return "'" + text.replace("'", "''") + "'"
    escaped = (character if character.isprintable() and character not in '"\\' else f"\\U{ord(character):08x}" for character in text)
    return '"' + "".join(escaped) + '"'
