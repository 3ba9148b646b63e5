#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""See that the model files of a service are on the host, with their checksums."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_files
short_description: See that the model files of a service are on the host, with their checksums
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Looks for the files and directories that a service reads from the model store, and compares the SHA-256 of those of which its
    manifest states one.
  - Copies a file that is missing from O(source), under another name first. A file that is there with another checksum is never overwritten,
    because a version that runs may have it open.
  - What was hashed is remembered with size, time and inode of the file, so that a second run is quick.
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host
  - gpuops.fleet.host.lease
options:
  models_dir:
    description:
      - The model store of the host.
    type: path
    default: /srv/gpuops/models
  paths:
    description:
      - Files and directories below the store that have to be there.
    type: list
    elements: str
    default: []
  files:
    description:
      - Files below the store that have to be there with a certain checksum.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path below the store.
        type: str
        required: true
      sha256:
        description: SHA-256 of the content in hexadecimal.
        type: str
        required: true
  source:
    description:
      - Directory of the host that has the same files, such as a mounted archive. What the store lacks is copied from there.
      - If left out, nothing is copied.
    type: path
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
seealso:
  - module: gpuops.fleet.service_probe
"""

EXAMPLES = r"""
- name: See that the model is there
  gpuops.fleet.model_files:
    paths: [llama-3.1-8b-instruct]
    files:
      - path: llama-3.1-8b-instruct/model-00001-of-00004.safetensors
        sha256: 2b1879f356aed350030bb40eb45ad362c89d9891096f79a3ab323d3ba5607668
    source: /mnt/model-archive
"""

RETURN = r"""
copied:
  description: Files that were copied, or would be, by their path below the store.
  returned: success
  type: list
  elements: str
  sample: [llama-3.1-8b-instruct/model-00001-of-00004.safetensors]
steps:
  description: What was done, or would be, in words.
  returned: success
  type: list
  elements: str
  sample: [copy faces/1/model.onnx from /mnt/model-archive to /srv/gpuops/models]
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.model_files import ModelFiles, Wish

SPEC: dict[str, t.Any] = {
    "models_dir": {"type": "path", "default": "/srv/gpuops/models"},
    "paths": {"type": "list", "elements": "str", "default": []},
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"path": {"type": "str", "required": True}, "sha256": {"type": "str", "required": True}},
    },
    "source": {"type": "path"},
    "state_dir": {"type": "path", "default": "/var/lib/gpuops-fleet"},
    "lease": {"type": "str", "no_log": True},
}


def run(params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError when a file is missing or another one than wished, or another holds the host."""
    state_dir = Path(params["state_dir"])

    def alive() -> None:
        if not check:
            leases.check(state_dir, params["lease"])

    alive()
    files = ModelFiles(Path(params["models_dir"]), state_dir, Path(params["source"]) if params["source"] else None, check, alive)
    staged = files.stage(params["paths"], [Wish(one["path"], one["sha256"].lower()) for one in params["files"]])
    return {"changed": bool(staged.copied), "copied": staged.copied, "steps": staged.steps}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
