#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Grant, extend, end or remove the lease of a service's replica on its host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_lease
short_description: Grant, extend, end or remove the lease of a replica
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - A lease says for how long a notebook or a preview may hold its GPU (docs/leases.md). It is kept on the host; the host agent's timer
    gives notice before its end and then has Compose stop the replica. Nothing of the replica is removed.
  - This module writes what the timer goes by. M(gpuops.fleet.gpu_info) reads it, as RV(gpuops.fleet.gpu_info#module:facts.leases).
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
  - gpuops.fleet.host.services
  - gpuops.fleet.host.proc
  - gpuops.fleet.host.engine
attributes:
  idempotent:
    support: partial
    details:
      - O(days) with O(state=extended) counts from now to the next full hour, so the same run an hour later extends again. All else is
        idempotent.
options:
  state:
    description:
      - V(granted) is for whoever starts the replica. The lease begins when it is granted first; a later grant changes its terms and does
        not restart its time. RV(ended) then says whether the replica may be started.
      - V(extended) makes it last longer, never shorter. Where it had ended, the replica is started again on its own slice, and waited for.
      - V(ended) ends it now and stops the replica.
      - V(removed) forgets it, which is for a replica that leaves the host, or whose manifest has no lease any more.
    type: str
    choices:
      - granted
      - extended
      - ended
      - removed
    default: granted
  service:
    description:
      - Name of the service.
    type: str
    required: true
  replica:
    description:
      - Number of the replica.
    type: int
    required: true
  team:
    description:
      - Whose it is. Needed with O(state=granted).
    type: str
  days:
    description:
      - With O(state=granted) how long the lease lasts from its beginning. With O(state=extended) how long from now.
    type: float
  until:
    description:
      - With O(state=extended) its new end, in place of O(days). A date means the end of that day in UTC, a date-time without an offset is
        UTC.
    type: str
  max_days:
    description:
      - The site's limit of how far from now the end of an extension may be.
    type: float
    default: 30
  notice_hours:
    description:
      - How long before the end the notice is given.
    type: float
    default: 24
  idle_minutes:
    description:
      - The lease ends earlier when the GPU was idle for so long. If left out, it does not.
    type: int
  idle_below:
    description:
      - Share of the GPU's time below which it is idle.
    type: float
    default: 0.05
  by:
    description:
      - Who extends or ends it. Needed for that.
    type: str
  secrets_dir:
    description:
      - Where secrets of running services are, in the host's memory.
    type: path
    default: /run/gpuops-fleet/secrets
  timeout:
    description:
      - Longest wait in seconds until a replica that is started again is healthy.
    type: int
    default: 600
requirements:
  - nvidia-ml-py (Python package) on the host, to start a replica again on its own slice
seealso:
  - module: gpuops.fleet.host_lease
  - module: gpuops.fleet.gpu_info
"""

EXAMPLES = r"""
- name: Let a notebook run for another week
  gpuops.fleet.service_lease:
    state: extended
    service: notebook-lin
    replica: 1
    days: 7
    by: lin
"""

RETURN = r"""
name:
  description: The replica.
  returned: success
  type: str
  sample: notebook-lin-1
ended:
  description: Whether the lease has ended. Then the replica must not be started.
  returned: success
  type: bool
  sample: false
words:
  description: The lease in a few words; empty when there is none.
  returned: success
  type: str
  sample: its lease ends 2026-12-01T12:00:00Z
ends:
  description: When it ends; V(none) when there is none.
  returned: success
  type: str
  sample: '2026-12-01T12:00:00Z'
steps:
  description: What was done to the replica itself, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: ["start notebook-lin-1 again"]
other_facts:
  description: Whether what the facts of the host say of the lease changes by it (RV(gpuops.fleet.gpu_info#module:facts.leases)).
  returned: success
  type: bool
  sample: true
diff:
  description: The lease before and after.
  returned: success
  type: dict
  sample: {before: '', after: "notebook-lin-1: its lease ends 2026-12-01T12:00:00Z"}
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import agent_config, lease_end, lease_round
from ansible_collections.gpuops.fleet.plugins.module_utils import service_leases as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of

GRANTED = "granted"
EXTENDED = "extended"
ENDED = "ended"
REMOVED = "removed"
SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": [GRANTED, EXTENDED, ENDED, REMOVED], "default": GRANTED},
    "service": {"type": "str", "required": True},
    "replica": {"type": "int", "required": True},
    "team": {"type": "str"},
    "days": {"type": "float"},
    "until": {"type": "str"},
    "max_days": {"type": "float", "default": 30},
    "notice_hours": {"type": "float", "default": 24},
    "idle_minutes": {"type": "int"},
    "idle_below": {"type": "float", "default": 0.05},
    "by": {"type": "str"},
    "lease": {"type": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "services_dir": {"type": "path", "default": "/srv/gpuops/services"},
    "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
    "secrets_dir": {"type": "path", "default": "/run/gpuops-fleet/secrets"},
    "proc_root": {"type": "path", "default": "/proc"},
    "timeout": {"type": "int", "default": 600},
}


Records = dict[str, leases.Record]


class ServiceLease:
    """One run of the module at one moment."""

    def __init__(self, params: t.Mapping[str, t.Any], check: bool, clock: leases.Clock | None = None) -> None:
        self.params, self.check = params, check
        paths = ("state_dir", "services_dir", "docker_socket", "secrets_dir", "proc_root")
        self.config = agent_config.parse({**{name: str(params[name]) for name in paths}, "health_wait": params["timeout"]})
        self.clock = leases.Clock.read(self.config.proc_root) if clock is None else clock
        self.name = name_of(params)
        self.steps: list[str] = []

    def run(self) -> dict[str, t.Any]:
        """The module's result. FleetError when it is refused, or when the replica could not be stopped or started."""
        state, token = self.params["state"], self.params["lease"]
        decide = {GRANTED: self._granted, EXTENDED: self._extended, ENDED: self._ended, REMOVED: self._removed}[state]
        before, after = leases.change(self.config.state_dir, decide, token, self.check)
        old, new = before.get(self.name), after.get(self.name)
        if not self.check:
            self._tidy(old, new)
        self._act(new)
        return {
            "changed": old != new or bool(self.steps),
            "name": self.name,
            "ended": new is not None and new["ended"] is not None,
            "words": "" if new is None else leases.words(new),
            "ends": None if new is None else new["ends"],
            "steps": self.steps,
            "other_facts": self._fact(old) != self._fact(new),
            "diff": {"before": self._line(old), "after": self._line(new)},
        }

    def _fact(self, record: leases.Record | None) -> leases.Record | None:
        return None if record is None else leases.as_fact(self.name, record)

    def _line(self, record: leases.Record | None) -> str:
        return "" if record is None else leases.lines({self.name: record})

    def _granted(self, found: Records) -> Records:
        given = self.params
        terms = leases.Terms(given["days"], given["notice_hours"], given["idle_minutes"], given["idle_below"])
        if not 0 < terms.days <= 3660:
            raise FleetError(f"a lease of {terms.days:g} days is none", field="days", hint="write more than 0")
        whose = (given["service"], given["replica"], given["team"])
        return {**found, self.name: leases.grant(found.get(self.name), *whose, terms, self.clock.now)}

    def _known(self, found: Records) -> leases.Record:
        if self.name not in found:
            hint = "a lease begins when apply starts a service whose manifest has one (block 'lease')"
            raise FleetError(f"{self.name} has no lease on this host", field="service", hint=hint)
        return found[self.name]

    def _extended(self, found: Records) -> Records:
        until = leases.until_of(self.params["days"], self.params["until"], self.params["max_days"], self.clock.now)
        return {**found, self.name: leases.extend(self._known(found), until, self.params["by"].strip(), self.clock.now)}

    def _ended(self, found: Records) -> Records:
        return {**found, self.name: leases.end(self._known(found), f"{leases.BY}{self.params['by'].strip()}", self.clock.now)}

    def _removed(self, found: Records) -> Records:
        return {name: record for name, record in found.items() if name != self.name}

    def _tidy(self, old: leases.Record | None, new: leases.Record | None) -> None:
        """Take the notice out of the home when it stands no more. One that cannot be is no reason to fail: the timer tries again."""
        if old is None or old["notice_file"] is None:
            return
        if new is None:
            lease_end.tidy_notice(self.config, self.name, {**old, "noticed": None, "idle": None})
            return
        with leases.changed(self.config.state_dir) as book:
            if self.name in book["leases"]:
                lease_end.tidy_notice(self.config, self.name, book["leases"][self.name])

    def _act(self, record: leases.Record | None) -> None:
        """Start a replica whose lease was extended after its end; stop one whose lease was ended."""
        if record is None or not self.config.docker_socket.exists():
            return
        token, problems = self.params["lease"], []
        if self.params["state"] == EXTENDED and record["restart"]:
            self.steps.append(f"start {self.name} again")
            problems = [] if self.check else lease_round.start(self.config, token, self.name, _silent)
        elif self.params["state"] == ENDED and lease_end.lives(lease_end.containers(self.config.docker_socket, self.name)):
            self.steps.append(f"stop {self.name}")
            problems = [] if self.check else lease_end.stop(self.config, token, self.name, _silent)
        if problems:
            raise FleetError("; ".join(problems))


def _silent(_line: str) -> None:
    """A module says nothing but its result."""


def main() -> None:
    """Entry point."""
    by = [("state", EXTENDED, ("by",)), ("state", ENDED, ("by",))]
    module = AnsibleModule(
        argument_spec=SPEC,
        required_if=[("state", GRANTED, ("team", "days")), ("state", EXTENDED, ("days", "until"), True), *by],
        mutually_exclusive=[("days", "until")],
        supports_check_mode=True,
    )
    try:
        result = ServiceLease(module.params, module.check_mode).run()
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
