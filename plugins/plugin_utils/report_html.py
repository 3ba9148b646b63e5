# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A report as one HTML page that needs nothing else: no script, no font, no image, no network. Pure: the template is given as text."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_gpu import (
    ASIDE,
    FREE,
    HELD,
    OVERHEAD,
    PLANNED,
    STRANDED,
    UNUSED,
    Block,
    GpuView,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.room import gib
from jinja2 import Environment, StrictUndefined, TemplateError

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.report import Report

#: Name of the template below plugin_utils/data.
TEMPLATE: t.Final = "report.html.j2"

#: kind -> (word, what it means), in the order of the legend.
MEANING: t.Final[dict[str, tuple[str, str]]] = {
    HELD: ("Allocated", "given to a service by the plan, whether the service is busy or not"),
    PLANNED: ("Planned", "promised to a service by the plan; the slice is not there yet"),
    UNUSED: ("Unused slice", "cut and ready, and no service holds it"),
    FREE: ("Free", "not cut and not given to anyone; new slices or services can have it"),
    STRANDED: (
        "Stranded",
        "not cut, and no slice can be made there while those beside it stay; another layout reaches it",
    ),
    ASIDE: (
        "Set aside",
        "on a lost, cordoned or drained GPU or a host that is down, used by something outside the plan, or kept free by policy",
    ),
    OVERHEAD: ("Overhead", "what the driver keeps of each slice, and rounding: no layout gives it to a program"),
}

MODES: t.Final = {"mig": "MIG", "whole": "whole", "shared": "shared", "unassigned": "not assigned", "out": "out of service"}


def percent(part: int, whole: int) -> str:
    """``12.5%``; ``0%`` of nothing. What is more than nothing never prints as ``0%``, what is less than all never as ``100%``."""
    if not whole or not part:
        return "0%"
    value = min(max(100 * part / whole, 0.1), 99.9) if part != whole else 100.0
    return f"{value:.1f}".removesuffix(".0") + "%"


def plural(count: int, one: str, many: str = "") -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def span(start: int, size: int, units: int) -> str:
    """CSS position of a part on an axis of ``units``."""
    return f"left:{100 * start / units:.4f}%;width:{100 * size / units:.4f}%"


def holder(block: Block) -> str:
    """Who or what a part belongs to, in words."""
    if block.tenant:
        return str(block.tenant)
    if block.kind == ASIDE:
        return "in use" if block.why.startswith("used outside") else block.label
    return MEANING[block.kind][0].lower()


def details(block: Block) -> str:
    """One line that says all of a part; the tooltip of a drawn part, and what a screen reader says."""
    words = [holder(block)]
    if block.tenant:
        words.append(f"team {block.tenant.team}" if block.tenant.team else "no manifest")
    if block.label not in words:
        words.append(block.label)
    words.append(f"{block.mib:,} MiB")
    if block.compute:
        words.append(f"{plural(block.compute, 'compute slice')}, {block.sm} SMs")
    if block.why and block.why not in words:
        words.append(block.why)
    return ", ".join(words)


def compute_parts(gpu: GpuView) -> list[tuple[int, int, Block | None]]:
    """The compute axis of a MIG GPU as (start, size, the slice or None for what is left), in compute slices.

    Compute slices have no fixed place on a board, so they are drawn side by side in the order of the memory.
    """
    parts: list[tuple[int, int, Block | None]] = []
    at = 0
    for block in gpu.blocks:
        if block.compute:
            parts.append((at, block.compute, block))
            at += block.compute
    if at < gpu.compute_slices:
        parts.append((at, gpu.compute_slices - at, None))
    return parts


def fleet_parts(report: Report) -> list[tuple[str, str, int]]:
    """The fleet's memory as (kind, team or '', MiB): teams first, then what nobody has; parts of 0 MiB are left out.

    What is held by services without a manifest is one part of kind held with team ''.
    """
    parts = [(HELD, team.name, team.mib) for team in report.teams]
    parts.append((HELD, "", report.mib(HELD) - sum(team.mib for team in report.teams)))
    parts += [(kind, "", report.mib(kind)) for kind in (PLANNED, UNUSED, FREE, STRANDED, ASIDE, OVERHEAD)]
    return [part for part in parts if part[2]]


def render(template: str, report: Report, *, title: str = "GPU fleet", generated: str = "") -> str:
    """The page. Every value is escaped. ``generated`` is text for the head, such as a date; left out when empty.

    :raises FleetError: the template, which a site may replace, is not one or asks for something that is not there.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters.update(gib=gib, details=details, holder=holder, capitalize_first=lambda text: text[:1].upper() + text[1:])
    teams = {team.name: team for team in report.teams}
    context = {
        "report": report,
        "title": title,
        "generated": generated,
        "teams": teams,
        "meaning": MEANING,
        "modes": MODES,
        "percent": percent,
        "plural": plural,
        "span": span,
        "compute_parts": compute_parts,
        "fleet_parts": fleet_parts(report),
    }
    try:
        return environment.from_string(template).render(context)
    except TemplateError as error:
        raise FleetError(f"the report's template cannot be rendered: {error}", line=getattr(error, "lineno", None)) from error
