#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read who held which slice of a host from when to when."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ledger_info
short_description: Read who held which slice of a host from when to when, and what was rolled out
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Returns the holds of slices and GPUs that the host's ledger has, as the host agent wrote them, cut to an interval; and the rollouts of
    services in it.
  - A host without a ledger has none of them. Nothing is changed.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
options:
  since:
    description:
      - Begin of the interval, as C(2026-11-01) or C(2026-11-01T00:00:00Z), in UTC unless it says otherwise. If left out, all there is.
    type: str
  until:
    description:
      - Its end, in the same form. It is not later than now, which is the default.
    type: str
seealso:
  - module: gpuops.fleet.gpu_info
"""

EXAMPLES = r"""
- name: Read who held what in November
  gpuops.fleet.ledger_info:
    since: '2026-11-01'
    until: '2026-12-01'
  register: november
"""

RETURN = r"""
holds:
  description:
    - Every hold that touches the interval, by its begin.
    - RV(holds[].since), RV(holds[].until) and RV(holds[].seconds) are the part of it that lies in the interval.
  returned: success
  type: list
  elements: dict
  contains:
    gpu:
      description: UUID of the GPU, or the name that the container gave it when no GPU bore it.
      type: str
      sample: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e
    pci:
      description: Its PCI address. V(none) when it was not known.
      type: str
      sample: '0000:07:00.0'
    profile:
      description: Profile of the slice. V(none) for a whole GPU.
      type: str
      sample: 1g.10gb
    start:
      description: First memory slice. V(none) for a whole GPU.
      type: int
      sample: 4
    service:
      description: Who held it. V(none) for a container that the collection did not start, as are replica, team and environment.
      type: str
      sample: receipt-ocr
    replica:
      description: Number of the replica.
      type: int
      sample: 1
    team:
      description: The service's team.
      type: str
      sample: claims
    environment:
      description: The service's environment.
      type: str
      sample: production
    container:
      description: Short id of the container.
      type: str
      sample: 3f1c0a9b7d55
    name:
      description: Its name.
      type: str
      sample: receipt-ocr-1
    began:
      description: When the hold began, in UTC.
      type: str
      sample: '2026-11-21T12:00:00Z'
    ended:
      description: When it ended. V(none) while it lasts.
      type: str
      sample: '2026-11-21T18:30:00Z'
    why:
      description:
        - Why it ended, which is V(stopped) when somebody asked for it, V(exited), V(failed) or V(out of memory) when it ended by itself,
          V(host went down), or V(unknown) when nobody saw it. V(none) while it lasts.
      type: str
      sample: stopped
    exit_code:
      description: Exit status of the container, where it is known.
      type: int
      sample: 143
    since:
      description: Begin of the part in the interval.
      type: str
      sample: '2026-11-21T12:00:00Z'
    until:
      description: End of that part.
      type: str
      sample: '2026-11-21T18:30:00Z'
    seconds:
      description: Length of that part.
      type: float
      sample: 23400.0
rollouts:
  description:
    - Every rollout of a replica that touches the interval and came to an end, by its begin.
  returned: success
  type: list
  elements: dict
  contains:
    service:
      description: The service.
      type: str
      sample: receipt-ocr
    replica:
      description: Number of the replica.
      type: int
      sample: 1
    from_digest:
      description: Digest of the manifest that served before. V(none) when none did.
      type: str
      sample: sha256:0b1c...
    to_digest:
      description: Digest of the manifest that was to serve.
      type: str
      sample: sha256:77ab...
    image:
      description: Its image.
      type: str
      sample: registry.example.com/receipt-ocr@sha256:9f86...
    by:
      description: Who rolled it out.
      type: str
      sample: alice
    began:
      description: When it began, in UTC.
      type: str
      sample: '2026-11-21T12:00:00Z'
    ended:
      description: When it ended.
      type: str
      sample: '2026-11-21T12:01:10Z'
    way:
      description: V(side-by-side) or V(stop-first).
      type: str
      sample: side-by-side
    outcome:
      description:
        - V(serving) when the new version serves; V(kept) when the old one never ceased to; V(restored) when the old one serves again;
          V(failed) when neither does; V(interrupted) when whoever rolled it out did not come to an end.
      type: str
      sample: serving
    reason:
      description: Why the new version does not serve, in one line. Empty when it does.
      type: str
      sample: ''
    steps:
      description: The steps that were done, in their order.
      type: list
      elements: dict
      contains:
        step:
          description: What was done.
          type: str
          sample: drain
        seconds:
          description: How long it took.
          type: float
          sample: 30.2
alive:
  description: When the host agent last gave a sign of life, in UTC. What ended since then is not known. V(none) when it never did.
  returned: success
  type: str
  sample: '2026-11-21T18:45:10Z'
"""

import time
import typing as t
from datetime import datetime, timezone
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Ledger, last_alive, path_in

SPEC: dict[str, t.Any] = {
    "since": {"type": "str"},
    "until": {"type": "str"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
}
_TIMES = ("began", "ended", "since", "until")


def parse(text: str | None, field: str) -> float | None:
    """UTC seconds of an option; None when it is left out. FleetError when it is no date."""
    if text is None:
        return None
    written = text.strip()
    try:
        # Python 3.9 and 3.10 know no Z
        moment = datetime.fromisoformat(written[:-1] + "+00:00" if written[-1:] in ("Z", "z") else written)
    except ValueError:
        hint = "write a date such as 2026-11-01, or a date-time such as 2026-11-01T06:00:00Z"
        raise FleetError(f"'{text}' is no date", field=field, hint=hint) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def stamp(at: float | None) -> str | None:
    """``2026-11-21T12:00:00Z``"""
    return None if at is None else datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def run(params: t.Mapping[str, t.Any], now: float) -> dict[str, t.Any]:
    """The module's result at the moment ``now``. FleetError when the ledger is of no use, or the interval is none."""
    state_dir = Path(params["state_dir"])
    since, until = parse(params["since"], "since"), parse(params["until"], "until")
    first, last = since or 0.0, now if until is None else min(until, now)
    if until is not None and first > until:
        raise FleetError(f"the interval ends ({params['until']}) before it begins ({params['since']})", field="until")
    path = path_in(state_dir)
    holds: list[dict[str, t.Any]] = []
    rollouts: list[dict[str, t.Any]] = []
    if path.exists():
        with Ledger(path, read_only=True) as ledger:
            holds, rollouts = ledger.holds(first, last), ledger.rollouts(first, last)
    return {"changed": False, "holds": _shown(holds), "rollouts": _shown(rollouts), "alive": stamp(last_alive(state_dir))}


def _shown(rows: t.Iterable[t.Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    return [{key: stamp(value) if key in _TIMES else value for key, value in row.items()} for row in rows]


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, time.time())
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
