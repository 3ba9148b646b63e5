# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the independent judge of plans knows of quotas: it shares no code with the planner."""

from __future__ import annotations

import typing as t


class Ledger:
    """What teams have. ``here``: all places that count; ``gpus``: by host and UUID."""

    def __init__(self, problem: t.Any, here: list[t.Any], gpus: dict[tuple[str, str], t.Any]) -> None:
        self.problem, self.gpus = problem, gpus
        self.needs = {need.service: need for need in problem.needs}
        self.teams = {quota.team: [place for place in here if self.needs[place.service].team == quota.team] for quota in problem.quotas}

    def complaints(self) -> list[str]:
        """No team has more than it may have, and no workspace."""
        if any(self.needs[place.service].adopted for places in self.teams.values() for place in places):
            return []  # those run, whatever a quota says
        wrong = []
        for quota in self.problem.quotas:
            for limit in quota.limits:
                over = self._counted(self.teams[quota.team], limit) - limit.most
                if over > 0 and not (quota.borrow and quota.workspace):
                    wrong.append(f"{quota.team}: {over} more {limit.counted} than its quota")
        for space in {quota.workspace for quota in self.problem.quotas if quota.workspace}:
            wrong += self._of_workspace(space)
        return wrong

    def _of_workspace(self, space: str) -> list[str]:
        wrong = []
        members = [quota for quota in self.problem.quotas if quota.workspace == space]
        for limit in (limit for each in self.problem.workspaces if each.name == space for limit in each.limits):
            if sum(self._counted(self.teams[quota.team], limit) for quota in members) > limit.most:
                wrong.append(f"workspace {space}: more {limit.counted} than it has")
        for kind in {(limit.counted, limit.board) for quota in members for limit in quota.limits}:
            lent = free = 0
            for quota in members:
                for limit in (limit for limit in quota.limits if (limit.counted, limit.board) == kind):
                    left = limit.most - self._counted(self.teams[quota.team], limit)
                    lent += max(0, -left)
                    free += max(0, left) if quota.lend else 0
            if lent > free:
                wrong.append(f"workspace {space}: {lent} {kind} are borrowed, and {free} are lent")
        return wrong

    def _counted(self, places: list[t.Any], limit: t.Any) -> int:
        total = 0
        for place in places:
            for gpu in (self.gpus[(place.host, uuid)] for uuid in place.gpus):
                if limit.board not in gpu.board:
                    continue
                found = [each for each in gpu.geometry.profiles if place.slice and each.name == place.slice.profile] if gpu.geometry else []
                if limit.counted == "slices":
                    total += found[0].size if found else 0
                elif limit.counted == "gpus":
                    total += place.mode == "whole"
                elif place.mode == "shared":
                    total += self.needs[place.service].memory_mib
                else:
                    total += found[0].memory_mib if found else gpu.memory_mib
        return total
