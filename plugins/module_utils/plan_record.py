# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which plan a host carries, and whether it may begin the one that it is given (docs/plan.md, "Rules").

The digests here are computed by the planner on the controller and again by the host, so this code serves both. All of it
works on plain data: a host plan as in docs/plan.md, GPUs as in docs/facts.md, and the record, which is
``{serial, digest, state: started | done, services, standing}``. ``standing`` are the service lines of plans before this one
whose containers may still run, because this plan has not come to its end.
"""

from __future__ import annotations

import hashlib
import json
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, parse_slice
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json

PLAN_FORMAT = 1
_BY_HAND = "take it back from Git, or remove it and run playbook adopt; plans are not edited by hand"
SURGE = "-surge"
# What the lines of a plan always have (docs/plan.md).
_BASE, _LAYOUT, _SERVICE = {"gpu", "mig", "instances"}, {"gpu"}, {"service", "replica"}
_Record = Mapping[str, t.Any]
_Line = Mapping[str, t.Any]


def _digest(data: t.Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def state_of(gpu: _Line) -> dict[str, t.Any]:
    """A GPU of the host facts as a line of a plan's ``base``: ``{gpu: UUID, mig: bool, instances: ['1g.10gb@0', ...]}`` by start."""
    mig = gpu.get("mig") or {}
    slices = sorted(Slice(int(one["start"]), str(one["profile"])) for one in mig.get("instances") or [])
    return {"gpu": gpu["uuid"], "mig": bool(mig.get("current")), "instances": [str(one) for one in slices]}


def digest_of_base(lines: Iterable[_Line]) -> str:
    """``sha256:...`` of ``base.gpus`` lines, in whatever order they and their instances come."""
    canonical = sorted([line["gpu"], bool(line["mig"]), sorted(line["instances"])] for line in lines)
    return _digest(canonical)


def digest_of_state(gpus: Iterable[_Line]) -> str:
    """``base.digest`` for GPUs as they are in the host facts: of UUID, current MIG mode and every (profile, start), nothing else."""
    return digest_of_base(state_of(gpu) for gpu in gpus)


def digest_of_plan(layout: Sequence[_Line], services: Sequence[_Line]) -> str:
    """``digest`` of a host plan: of its layout and services, and of their order."""
    return _digest({"layout": list(layout), "services": list(services)})


def replica_name(service: t.Any, replica: t.Any) -> str:
    """``receipt-ocr-1``: a replica, as its directory and its compose project are named."""
    return f"{service}-{replica}"


def name_of(line: _Line) -> str:
    """The same of a line that says ``service`` and ``replica``."""
    return replica_name(line["service"], line["replica"])


def surge_name(service: str) -> str:
    """``receipt-ocr-surge``: compose project and directory of a new version that runs beside the old one."""
    return f"{service}{SURGE}"


def managed(line: _Line) -> bool:
    """False for a service that was found running and is only kept in place (``lifecycle: adopted``)."""
    return str(line.get("lifecycle", "managed")) != "adopted"


def wish_of(plan: _Line) -> list[dict[str, t.Any]]:
    """The plan's layout as the option ``layout`` of module ``mig``: one entry a GPU, in the plan's order."""
    wishes: dict[str, dict[str, t.Any]] = {}
    for line in plan["layout"]:
        wish = wishes.setdefault(line["gpu"], {"gpu": line["gpu"], "mig": False, "instances": []})
        if "profile" in line:
            wish["instances"].append({key: line[key] for key in ("profile", "start", "compute") if key in line})
        if "profile" in line or line.get("mode") == "mig":
            wish["mig"] = True
    return list(wishes.values())


def gpus_of(plan: _Line) -> list[str]:
    """UUIDs of the GPUs that the plan was made from or that it shapes: those that the host must observe. In a stable order."""
    return sorted({line["gpu"] for line in [*plan["base"]["gpus"], *plan["layout"]]})


def device_of(line: _Line) -> tuple[tuple[str, ...], str, int]:
    """What a service line stands on: its GPUs, and the profile and start of its slice (``whole``, ``shared``, ``mps`` and -1 without).

    A GPU that is shared through MPS is another thing than one that is shared by turns: exclusive mode lets nobody on it who came without
    MPS. And whoever had it whole took more of it than its part.
    """
    gpus = tuple(sorted(line["gpus"])) if "gpus" in line else (line["gpu"],)
    return gpus, line.get("profile") or line.get("sharing") or line.get("mode", ""), line.get("start", -1)


def devices_of(line: _Line) -> list[dict[str, t.Any]]:
    """The variables of a replica's ``.env``, as module ``slice_env`` takes them: GPU_0 is its slice or GPU, GPU_1 the next GPU."""
    gpus = line.get("gpus") or [line["gpu"]]
    place = {key: line[key] for key in ("profile", "start") if line.get(key) is not None}
    return [{"name": f"GPU_{number}", "gpu": gpu, **place} for number, gpu in enumerate(gpus)]


@dataclass(frozen=True)
class Outcome:
    """What the host makes of a plan. ``record`` is what is to be written, None for nothing.

    ``needed``: anything to record or to do. ``stop``: replicas (``receipt-ocr-1``) that must not run while the layout changes,
    because their device changes or they left the plan. ``gone``: those of them that left it. ``rolled``: replicas that stay where they are
    and may run by another manifest than the plan's, or publish other ports. ``new``: replicas that no plan before had here.
    """

    needed: bool
    record: _Record | None = None
    stop: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    rolled: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def check_plan(plan: _Line) -> None:
    """FleetError unless this is a host plan of our format whose digests are those of its content."""
    missing = [key for key in ("plan", "host", "serial", "digest", "base", "layout", "services") if key not in plan]
    if missing:
        raise FleetError("this is not a host plan", hint=f"it lacks {', '.join(missing)}")
    if plan["plan"] != PLAN_FORMAT:
        raise FleetError(f"the plan has format {plan['plan']} and this collection knows format {PLAN_FORMAT}", field="plan")
    _check_shape(plan)
    if plan["digest"] != digest_of_plan(plan["layout"], plan["services"]):
        raise FleetError("the plan's layout or services are not those that its digest was made from", field="digest", hint=_BY_HAND)
    if plan["base"]["digest"] != digest_of_base(plan["base"]["gpus"]):
        raise FleetError("the plan's base is not the one that its digest was made from", field="base.digest", hint=_BY_HAND)


def _check_shape(plan: _Line) -> None:
    """FleetError for what cannot be read as a plan, whatever its digests say: who calls the module by hand may hand over anything."""
    base, serial = plan["base"], plan["serial"]
    if not isinstance(serial, int) or isinstance(serial, bool):
        raise FleetError(f"expected a whole number, found {serial}", field="serial", hint=_BY_HAND)
    if not isinstance(base, Mapping) or not {"digest", "gpus"} <= set(base):
        raise FleetError("expected digest and gpus", field="base", hint=_BY_HAND)
    parts = (("base.gpus", base["gpus"], _BASE), ("layout", plan["layout"], _LAYOUT), ("services", plan["services"], _SERVICE))
    for name, lines, needed in parts:
        if not isinstance(lines, (list, tuple)) or not all(isinstance(line, Mapping) and needed <= set(line) for line in lines):
            raise FleetError(f"expected a list of lines with {', '.join(sorted(needed))}", field=name, hint=_BY_HAND)
    if not all("gpu" in line or "gpus" in line for line in plan["services"]):
        raise FleetError("expected gpu or gpus in every line", field="services", hint=_BY_HAND)


def _same(record: _Record | None, plan: _Line) -> bool:
    return record is not None and (record["serial"], record["digest"]) == (plan["serial"], plan["digest"])


def _refuse_older(record: _Record, plan: _Line) -> None:
    if plan["serial"] < record["serial"]:
        raise FleetError(
            f"this host carries plan serial {record['serial']}, and the given plan is older: serial {plan['serial']}",
            field="serial",
            hint="plan again, or take the latest plan file",
        )
    if plan["serial"] == record["serial"]:
        raise FleetError(
            f"this host carries another plan of serial {record['serial']} ({record['digest'][:19]}, given: {plan['digest'][:19]})",
            field="serial",
            hint="two plans were made from one; plan again",
        )


def _slices(texts: Iterable[str]) -> list[str]:
    return [str(one) for one in sorted(parse_slice(text) for text in texts)]


def _words(line: _Line) -> str:
    slices = ", ".join(_slices(line["instances"])) or "no slice"
    return f"MIG on with {slices}" if line["mig"] else "MIG off"


def drift(base: Sequence[_Line], observed: Mapping[str, _Line]) -> list[str]:
    """Where the host is not as the plan's ``base`` says, one sentence a GPU. ``observed``: lines as of :func:`state_of` by UUID."""
    found = []
    for line in base:
        now = observed.get(line["gpu"])
        if now is None:
            found.append(f"{line['gpu']} is not on this host")
        elif _words(now) != _words(line):
            found.append(f"{line['gpu']} has {_words(now)}, and the plan was made from {_words(line)}")
    return found


def layout_is_true(plan: _Line, observed: Mapping[str, _Line]) -> bool:
    """True when every GPU that the plan names has the layout that it asks for."""
    for wish in wish_of(plan):
        wanted = {"mig": wish["mig"], "instances": [f"{one['profile']}@{one['start']}" for one in wish["instances"]]}
        if wish["gpu"] not in observed or _words(observed[wish["gpu"]]) != _words(wanted):
            return False
    return True


def asks_nothing(plan: _Line, observed: Mapping[str, _Line]) -> bool:
    """True when a host that carries no plan has nothing to do for this one, and records none: all is as it was found and adopted."""
    return layout_is_true(plan, observed) and not any(managed(line) for line in plan["services"])


def begin(plan: _Line, record: _Record | None, observed: Mapping[str, _Line]) -> Outcome:
    """May this host begin ``plan``? What it then records, stops and forgets.

    ``record`` is what the host carries (None: nothing), ``observed`` the lines of :func:`state_of` by UUID. The plan that the
    host has begun or carried out already is always taken: then the run repairs. FleetError for an older plan, another one of
    the same serial, or a base that is not what is there; the message says what differs.
    """
    check_plan(plan)
    if record is not None and _same(record, plan):
        if record["state"] == "done":
            return Outcome(needed=False)
        return Outcome(True, record, *_stop_and_gone(record["standing"], plan), *_rolled_and_new(record["standing"], plan))
    if record is not None:
        _refuse_older(record, plan)
    differs = drift(plan["base"]["gpus"], observed)
    if differs:
        raise FleetError(f"this host is not as it was when the plan was made: {'; '.join(differs)}", field="base", hint="plan again")
    if record is None and asks_nothing(plan, observed):
        return Outcome(needed=False)
    standing = [] if record is None else [*record["standing"], *record["services"]]
    started = {"serial": plan["serial"], "digest": plan["digest"], "state": "started", "services": _managed(plan), "standing": standing}
    return Outcome(True, started, *_stop_and_gone(standing, plan), *_rolled_and_new(standing, plan))


def _managed(plan: _Line) -> list[dict[str, t.Any]]:
    return [dict(line) for line in plan["services"] if managed(line)]


def _stop_and_gone(standing: Iterable[_Line], plan: _Line) -> tuple[list[str], list[str]]:
    wanted = {name_of(line): device_of(line) for line in _managed(plan)}
    listed = {name_of(line) for line in plan["services"]}
    stop = {
        name_of(line) for line in standing if wanted.get(name_of(line)) != device_of(line) and name_of(line) not in listed - set(wanted)
    }
    return sorted(stop), sorted(stop - listed)


def _rolled_and_new(standing: Sequence[_Line], plan: _Line) -> tuple[list[str], list[str]]:
    """A plan that was begun and not done may have got anywhere, so any line that stands counts."""
    before: dict[str, list[_Line]] = {}
    for line in standing:
        before.setdefault(name_of(line), []).append(line)
    rolled = [
        name_of(line)
        for line in _managed(plan)
        if any(
            device_of(old) == device_of(line) and (old.get("manifest"), old.get("ports")) != (line.get("manifest"), line.get("ports"))
            for old in before.get(name_of(line), [])
        )
    ]
    return sorted(rolled), sorted(name_of(line) for line in _managed(plan) if name_of(line) not in before)


def finish(plan: _Line, record: _Record | None, observed: Mapping[str, _Line]) -> Outcome:
    """The plan was carried out. FleetError when this host never began it."""
    if record is not None and _same(record, plan):
        if record["state"] == "done":
            return Outcome(needed=False)
        return Outcome(True, {**record, "state": "done", "standing": []})
    if begin(plan, record, observed).needed:
        raise FleetError(
            f"plan serial {plan['serial']} was not begun on this host", field="serial", hint="record it with state: begun first"
        )
    return Outcome(needed=False)


def path_in(state_dir: Path) -> Path:
    """Where a host keeps its record."""
    return state_dir / "plan.json"


def read(state_dir: Path) -> dict[str, t.Any] | None:
    """The record of this host; None when it carries no plan. FleetError when the file is damaged."""
    path = path_in(state_dir)
    record = read_json(path)
    if record is not None:
        missing = [key for key in ("serial", "digest", "state", "services", "standing") if key not in record]
        if missing:
            raise FleetError("this file is not the record of a plan", file=str(path), hint=f"it lacks {', '.join(missing)}")
    return record


def summary(record: _Record | None) -> dict[str, t.Any] | None:
    """The part of the record that the host facts carry: ``{serial, digest, state}``."""
    return None if record is None else {key: record[key] for key in ("serial", "digest", "state")}


def write(state_dir: Path, record: _Record) -> None:
    """Put the record on disk, crash-safe."""
    write_json(path_in(state_dir), dict(record))
