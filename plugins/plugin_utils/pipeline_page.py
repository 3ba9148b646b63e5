# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a merge request would change, as one HTML page that needs nothing else, and as lines for a log. Pure: the template is given."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline import CREATE, DELETE, KEEP, UPDATE, Changes, Replica, place_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import Turns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import numbers, several, table, without_place
from jinja2 import Environment, StrictUndefined, TemplateError

#: Name of the template below plugin_utils/data.
TEMPLATE: t.Final = "preview.html.j2"

WORDS: t.Final = {CREATE: "new", UPDATE: "changed", DELETE: "removed", KEEP: "kept"}
# What Markdown, or HTML in it, would read as more than a sign.
_SIGNS: t.Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_[]|~#@!"}
SIGNS: t.Final = {CREATE: "+", UPDATE: "~", DELETE: "−", KEEP: "="}


def summary(changes: Changes, unplaced: Sequence[Mapping[str, t.Any]]) -> str:
    """``2 replicas new, 1 changed, 0 removed, 9 as they are, 1 without a place``: that one may stand where it cannot stay."""
    new, changed, removed, kept = _counts(changes, unplaced).values()
    text = f"{several(new, 'replica')} new, {changed} changed, {removed} removed, {kept} as they are"
    return text + (f", {len(unplaced)} without a place" if unplaced else "")


def _counts(changes: Changes, unplaced: Sequence[Mapping[str, t.Any]]) -> dict[str, int]:
    """How many replicas have each action; of those that are as they were, those that have a place."""
    without = {(each["service"], each["replica"]) for each in unplaced}
    kept = sum(each.action == KEEP and (each.service, each.number) not in without for each in changes.replicas)
    return {**{action: changes.count(action) for action in (CREATE, UPDATE, DELETE)}, KEEP: kept}


def page_data(
    changes: Changes,
    unplaced: Sequence[Mapping[str, t.Any]],
    notes: Iterable[str],
    binding: bool = False,
    reasons: Mapping[str, str] | None = None,
    turns: Turns | None = None,
) -> dict[str, t.Any]:
    """What the page shows: the counts, a row a replica (what changes first), in which order those go who leave places for others, who does
    not serve meanwhile, GPUs whose slices change, who has no place, remarks.

    ``binding``: the plan is one that is carried out, and no preview. ``reasons``: replica -> why its new place is where it is.
    """
    order = [CREATE, UPDATE, DELETE, KEEP]
    rows = sorted(
        (_row(changes, replica, reasons or {}) for replica in changes.replicas), key=lambda row: (order.index(row["action"]), row["name"])
    )
    return {
        "summary": summary(changes, unplaced),
        "counts": [(WORDS[action], action, count) for action, count in _counts(changes, unplaced).items()],
        "changed": [row for row in rows if row["action"] != KEEP],
        "kept": [row for row in rows if row["action"] == KEEP],
        "gpus": [
            {"host": host, "gpu": gpu[:12], "before": before or "not in a plan", "after": after or "not in a plan"}
            for host, gpu, before, after in changes.gpus
        ],
        "unplaced": [dict(each) for each in unplaced],
        "steps": [] if turns is None else list(turns.steps),
        "outages": [] if turns is None else [dict(each) for each in turns.outages],
        "notes": list(notes),
        "binding": binding,
    }


def _row(changes: Changes, replica: Replica, reasons: Mapping[str, str] | None = None) -> dict[str, str]:
    service = changes.services.get(replica.service)
    reason = (reasons or {}).get(replica.name)
    return {
        "name": replica.name,
        "action": replica.action,
        "word": WORDS[replica.action],
        "sign": SIGNS[replica.action],
        "team": service.team if service else "",
        "environment": service.environment if service else "",
        "before": _at(replica.before),
        "after": _at(replica.after),
        "why": replica.why if reason is None else f"{replica.why}; {reason}",
    }


def _at(where: tuple[str, Mapping[str, t.Any]] | None) -> str:
    if where is None:
        return ""
    ports = " ".join(f"{name}:{port}" for name, port in sorted(where[1]["ports"].items()))
    return f"{where[0]} {place_of(where[1])}" + (f" {ports}" if ports else "")


def lines(changes: Changes, unplaced: Sequence[Mapping[str, t.Any]]) -> list[str]:
    """The same for a job's log: one line a replica that changes, then the sum."""
    rows: list[Sequence[t.Any]] = [("CHANGE", "REPLICA", "FROM", "TO", "WHY")]
    rows.extend(
        (row["word"], row["name"], row["before"] or "-", row["after"] or "-", row["why"])
        for row in (_row(changes, replica) for replica in changes.replicas)
        if row["action"] != KEEP
    )
    rest = [f"no place for {each['service']} replica {each['replica']}: {each['reason']}" for each in unplaced]
    return [*(table(rows) if len(rows) > 1 else []), *rest, summary(changes, unplaced)]


def markdown(data: Mapping[str, t.Any], *, title: str) -> str:
    """The same as the page, in Markdown for the discussion of a merge request. ``data``: of :func:`page_data`."""
    text = [f"## {_plain(title)}", "", f"{data['summary']}.", ""]
    gone = {row["name"] for row in data["changed"] if row["action"] == DELETE}
    lost = [each for each in data["unplaced"] if replica_name(each["service"], each["replica"]) in gone]
    # What this change takes from somebody is read first; who has no place anyway may be many.
    text += ["### Lose their place", "", *_reasons(lost), ""] if lost else []
    if data["changed"]:
        text += ["### Changes", "", "| replica | change | from | to | why |", "|---|---|---|---|---|"]
        text += [
            f"| {' | '.join(_plain(row[key]) or '–' for key in ('name', 'word', 'before', 'after', 'why'))} |" for row in data["changed"]
        ]
        text.append("")
    for title_, told in (("In this order", _steps(data)), ("Does not serve meanwhile", _reasons(data["outages"]))):
        text += [f"### {title_}", "", *told, ""] if told else []
    if data["gpus"]:
        text += ["### GPUs that are cut in another way", "", "| host | GPU | cut as | becomes |", "|---|---|---|---|"]
        text += [f"| {' | '.join(_plain(row[key]) for key in ('host', 'gpu', 'before', 'after'))} |" for row in data["gpus"]]
        text.append("")
    rest = [each for each in data["unplaced"] if each not in lost]
    text += ["### Without a place", "", *_reasons(rest), ""] if rest else []
    text += ["### Remarks", "", *(f"- {_plain(note)}" for note in data["notes"])] if data["notes"] else []
    return "\n".join(text).rstrip() + "\n"


def _steps(data: Mapping[str, t.Any]) -> list[str]:
    return [f"{number}. {_plain(step)}" for number, step in enumerate(data["steps"], 1)]


def _reasons(replicas: Iterable[Mapping[str, t.Any]]) -> list[str]:
    """A line for all replicas of a service that are told the same."""
    return [
        f"- **{_plain(service)}** replica{'s' if len(each) > 1 else ''} {numbers(each)}: {_plain(reason)}"
        for service, each, reason in without_place(replicas)
    ]


def _plain(value: object) -> str:
    """Text that Markdown, and HTML in it, takes as text, on one line and in one cell of a table."""
    return "".join(_SIGNS.get(sign, sign) for sign in " ".join(str(value).split()))


def render(template: str, data: Mapping[str, t.Any], *, title: str, generated: str = "") -> str:
    """The page. Every value is escaped.

    :raises FleetError: the template, which a site may replace, is not one or asks for something that is not there.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    try:
        return environment.from_string(template).render({**data, "title": title, "generated": generated})
    except TemplateError as error:
        raise FleetError(f"the template of the preview cannot be rendered: {error}", line=getattr(error, "lineno", None)) from error
