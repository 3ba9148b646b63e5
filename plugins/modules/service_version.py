#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the versions of a replica on its host, and put the one that served back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_version
short_description: Keep the versions of a replica on its host, and put the one that served back
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Keeps compose file, devices and manifest of each version of a replica below C(<state_dir>/versions/<name>), numbered from 1.
  - Starts and stops nothing, and waits for nothing.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.full
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease_if_given
  - gpuops.fleet.host.services
options:
  name:
    description:
      - Name of the replica, C(<service>-<number>).
    type: str
    required: true
  state:
    description:
      - V(kept) makes what is in the directory of the replica a version that can serve again, unless one that serves is kept already.
        Ask for it before anything is written.
      - V(serving) says that what is in the directory serves now. The version that served until then becomes V(replaced), or
        V(rolled-back) when the new one is one that served before. The same manifest is the same version.
      - V(restored) puts the compose file of the version that served last back into the directory, and says which devices it gets.
      - V(failed) says that this version did not pass its gate, and why.
    type: str
    choices:
      - kept
      - serving
      - restored
      - failed
    required: true
  digest:
    description:
      - Digest of the manifest. If left out, the compose file's own.
    type: str
  image:
    description:
      - The image. If left out, the first one that the compose file names.
    type: str
  by:
    description:
      - Who brings this version.
    type: str
    default: ansible
  reason:
    description:
      - Why it failed. It is kept as one line.
    type: str
    default: ''
  entries:
    description:
      - With O(state=restored), the devices that the replica is meant to have now, as M(gpuops.fleet.slice_env) takes them.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the variable.
        type: str
        required: true
      gpu:
        description: UUID of the GPU.
        type: str
        required: true
      profile:
        description: MIG profile of the slice. If left out, the variable names the whole GPU.
        type: str
      start:
        description: Memory slice at which the slice starts. Needed with O(entries[].profile).
        type: int
  source:
    description:
      - Name of the directory below O(services_dir) in which its files are, for a version that ran beside the one that serves.
        If left out, that of the replica.
    type: str
  manifest_file:
    description:
      - File of the manifest, for whoever rolls back.
    type: str
  manifest_text:
    description:
      - Its text.
    type: str
  keep:
    description:
      - How many versions that served are kept, and as many that failed. The one that serves and the one that it replaced always are.
    type: int
    default: 5
seealso:
  - module: gpuops.fleet.service_version_info
  - module: gpuops.fleet.service_gate
"""

EXAMPLES = r"""
- name: Keep what serves before it is changed
  gpuops.fleet.service_version:
    name: receipt-ocr-1
    state: kept

- name: Say that the new version serves
  gpuops.fleet.service_version:
    name: receipt-ocr-1
    state: serving
    digest: "{{ placement.manifest }}"
    by: alice
"""

RETURN = r"""
version:
  description: The version that this is about. V(none) when there is none.
  returned: success
  type: dict
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
entries:
  description:
    - With O(state=restored), on what the version serves again. That is the replica's place of now, unless that has fewer devices than the
      version knows; then it is where the version was. The module fails when another replica has something of that.
  returned: success
  type: list
  elements: dict
  sample: [{name: GPU_0, gpu: GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e, profile: 1g.10gb, start: 4}]
diff:
  description: A line for each version, before and after. With O(state=restored), the compose file.
  returned: success
  type: dict
  sample: {before: '', after: "version 1: serving, sha256:77ab... of registry.example.com/receipt-ocr@sha256:9f86..., by alice"}
"""

import typing as t
from datetime import datetime, timezone
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils import versions as kept
from ansible_collections.gpuops.fleet.plugins.module_utils.drains import stamp
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import DEVICE_OPTIONS, entries_of, parse_entries
from ansible_collections.gpuops.fleet.plugins.module_utils.words import without_names

SPEC: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["kept", "serving", "restored", "failed"], "required": True},
    "digest": {"type": "str"},
    "image": {"type": "str"},
    "by": {"type": "str", "default": "ansible"},
    "reason": {"type": "str", "default": ""},
    "source": {"type": "str"},
    "manifest_file": {"type": "str"},
    # What owners wrote into `env` stays out of the host's log.
    "manifest_text": {"type": "str", "no_log": True},
    "keep": {"type": "int", "default": 5},
    "entries": {**DEVICE_OPTIONS["entries"], "required": False, "default": []},
    "services_dir": {"type": "path", "default": "/srv/gpuops/services"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def run(params: t.Mapping[str, t.Any], check: bool, now: datetime) -> dict[str, t.Any]:
    """The module's result at the moment ``now``. FleetError when a file is damaged or missing, or cannot be written."""
    state_dir, name, state = Path(params["state_dir"]), params["name"], params["state"]
    if params["keep"] < 1:
        raise FleetError(f"{params['keep']} versions are none", field="keep", hint="keep at least 1")
    if params["lease"] and not check:
        leases.check(state_dir, params["lease"])
    versions = kept.Versions(state_dir, name, check)
    directory = Path(params["services_dir"]) / (params["source"] or name)
    if state == "restored":
        return _restored(versions, directory, params)
    found = kept.files_in(directory)
    if state == "kept":
        change = versions.keep(found, stamp(now))
    elif state == "failed":
        change = versions.fail(_wanted(params, found, now), found, params["keep"])
    else:
        if found is None and not check:
            raise FleetError(
                f"there is no {directory / kept.COMPOSE_FILE}", hint="write it, start the service, and say then that it serves"
            )
        # In check mode its files are not there yet when this is its first version.
        change = versions.serve(_wanted(params, found, now), found or kept.Files(""), params["keep"])
    return {"changed": change.changed, "version": change.version.data() if change.version else None, "entries": [], "diff": change.diff()}


def _restored(versions: kept.Versions, directory: Path, params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    path = directory / kept.COMPOSE_FILE
    before = read_text(path) or ""
    version, files, changed = versions.restore(directory)
    wished = parse_entries(params["entries"])
    devices = kept.devices_again(files, wished, lambda: kept.devices_of_others(directory.parent, params["name"]))
    diff = {"before": before, "after": files.compose, "before_header": str(path), "after_header": str(path)}
    return {"changed": changed, "version": version.data(), "entries": entries_of(devices), "diff": diff}


def _wanted(params: t.Mapping[str, t.Any], found: kept.Files | None, now: datetime) -> kept.Version:
    """What is known of the version; its number and outcome are not."""
    files = found or kept.Files("")
    digest, image = params["digest"] or files.digest, params["image"] or files.image
    reason = without_names(params["reason"], params["name"])
    manifest = params["manifest_file"] or None, params["manifest_text"] or None
    return kept.Version(0, digest, image, params["by"], stamp(now), "", reason, *manifest)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode, datetime.now(timezone.utc))
    except FleetError as error:
        module.fail_json(msg=f"{module.params['name']}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
