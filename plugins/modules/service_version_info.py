#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read which versions of a service a host keeps, which one serves, and whether somebody stopped it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_version_info
short_description: Read which versions of a service a host keeps, which one serves, and whether somebody stopped it
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Returns the versions of one replica, or of all of a service or a host, as M(gpuops.fleet.service_version) keeps them.
  - Says whether somebody stopped the service on this host, and whether the directory of a surge of it is there.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.services
options:
  name:
    description:
      - Name of one replica. If both this and O(service) are left out, all there are on the host.
    type: str
  service:
    description:
      - Name of a service, all replicas of which are meant.
    type: str
  started:
    description:
      - Name of a service that counts as not stopped, because the play lets it run again. In check mode the host still says that it is
        stopped.
    type: str
seealso:
  - module: gpuops.fleet.service_version
"""

EXAMPLES = r"""
- name: Read which versions of the service are kept here
  gpuops.fleet.service_version_info:
    service: receipt-ocr
  register: known
"""

RETURN = r"""
replicas:
  description: What is kept of each replica, by its name.
  returned: success
  type: dict
  contains:
    versions:
      description: Its versions, by number.
      type: list
      elements: dict
      contains:
            number:
              description: Its number. Numbers grow by one and are never used twice.
              type: int
              sample: 3
            digest:
              description: Digest of its manifest; of its compose file where nobody knows the manifest.
              type: str
              sample: sha256:77ab...
            image:
              description: Its image.
              type: str
              sample: registry.example.com/receipt-ocr@sha256:9f86...
            by:
              description: Who brought it.
              type: str
              sample: alice
            since:
              description: When, in UTC.
              type: str
              sample: '2026-11-21T12:00:00Z'
            outcome:
              description: V(serving), V(replaced) by a newer one, V(failed) its gate, or V(rolled-back) in favour of an earlier one.
              type: str
              sample: serving
            reason:
              description: Why it failed. Empty otherwise.
              type: str
              sample: ''
            manifest:
              description: Its manifest, C(file) and C(text). Both are V(none) where nobody knows it.
              type: dict
              sample: {file: manifests/receipt-ocr.yml, text: "schema: 1"}
    serving:
      description: Number of the one that serves. V(none) when none does.
      type: int
      sample: 3
    compose:
      description: SHA-256 of its compose file, without blanks around it, in hexadecimal digits. Empty when none serves.
      type: str
      sample: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
surges:
  description: Names of the surges, C(<service>-surge), of which there are files on this host.
  returned: success
  type: list
  elements: str
  sample: [receipt-ocr-surge]
stopped:
  description: Who stopped which service on this host until it is deployed again, by its name.
  returned: success
  type: dict
  sample: {receipt-ocr: {by: alice, reason: its customer left, since: '2026-11-21T12:00:00Z'}}
left_alone:
  description: The same in words.
  returned: success
  type: dict
  sample: {receipt-ocr: "stopped by alice (its customer left) since 2026-11-21T12:00:00Z"}
over:
  description: Replicas whose lease has ended (M(gpuops.fleet.service_lease)) and that nothing may start, and why in words, by their names.
  returned: success
  type: dict
  sample: {claims-lab-1: "its lease is over since 2026-12-01T12:00:00Z: extend it, or remove the manifest"}
"""

import hashlib
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import service_leases, stopped
from ansible_collections.gpuops.fleet.plugins.module_utils import versions as kept
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import DEVICES_FILE

SURGE = "-surge"
SPEC: dict[str, t.Any] = {
    "name": {"type": "str"},
    "service": {"type": "str"},
    "started": {"type": "str"},
    "services_dir": {"type": "path", "default": "/srv/gpuops/services"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
}


def run(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The module's result. FleetError when a file is damaged."""
    state_dir, name, service = Path(params["state_dir"]), params["name"], params["service"]
    names = [name] if name else kept.replicas_in(state_dir)
    if service and not name:
        names = [one for one in names if stopped.service_of(one) == service]
    stops = {one: stop for one, stop in stopped.read(state_dir).items() if one != params["started"]}
    return {
        "changed": False,
        "replicas": {one: _replica(kept.Versions(state_dir, one)) for one in names},
        "surges": _surges(Path(params["services_dir"])),
        "stopped": stops,
        "left_alone": {one: stopped.words(stop) for one, stop in stops.items()},
        "over": {one: service_leases.ended_words(record) for one, record in service_leases.ended_records(state_dir).items()},
    }


def _replica(versions: kept.Versions) -> dict[str, t.Any]:
    serving = versions.serving()
    return {
        "versions": [each.data() for each in versions.all()],
        "serving": serving.number if serving else None,
        "compose": hashlib.sha256(versions.files(serving).compose.strip().encode()).hexdigest() if serving else "",
    }


def _surges(services_dir: Path) -> list[str]:
    """Others may have a directory of such a name: ours have this file, which is written first."""
    return sorted(path.parent.name for path in services_dir.glob(f"*{SURGE}/{DEVICES_FILE}"))


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
