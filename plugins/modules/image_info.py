#!/usr/bin/python
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what images say that they need of CUDA and of a driver."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_info
short_description: Read what images say that they need of CUDA and of a driver
version_added: 0.2.0
author:
  - gpuops.fleet contributors (@gpuops)
description:
  - Reads the variables C(CUDA_VERSION), C(NVIDIA_REQUIRE_*) and C(NVIDIA_DISABLE_REQUIRE) of images that are pinned by their digests.
    On a GPU host from its container engine, or anywhere from the registries by their HTTP API. No other variable is returned, since
    an image's environment may hold secrets.
  - Whatever a registry answers is held against its digest, and nothing is pulled. An image that cannot be read is an answer with a
    reason, not a failure. A registry that did not answer is not asked again in the same run.
  - Proxies are those of the environment (C(https_proxy), C(no_proxy)).
extends_documentation_fragment:
  - gpuops.fleet.attributes
  - gpuops.fleet.attributes.info_module
  - gpuops.fleet.attributes.actiongroup
  - gpuops.fleet.host.engine
options:
  images:
    description:
      - Images, each as V(NAME@sha256:DIGEST) with an optional tag before the V(@).
    type: list
    elements: str
    required: true
  from:
    description:
      - Who is asked. V(engine) is the Docker engine of the host, which knows what it has pulled. V(registry) is the registry that the
        name of the image begins with; Docker Hub where it begins with none.
    type: str
    choices:
      - engine
      - registry
    default: engine
  timeout:
    description:
      - Longest time for one answer, in seconds.
    type: int
    default: 20
  mirrors:
    description:
      - For a registry, by its name in images (V(docker.io) for Docker Hub), the address that is asked in its place, such as
        V(https://mirror.example.com/nvcr). A path is put before the names of its images there. V(http://) is without TLS, and the only
        way to have none.
    type: dict
    default: {}
  logins:
    description:
      - Logins of registries.
    type: list
    elements: dict
    default: []
    suboptions:
      registry:
        description: Name of the registry in images, or the host (with its port) of a mirror, which is never given another registry's login.
        type: str
        required: true
      username:
        description: Who asks.
        type: str
        required: true
      password:
        description: The password or access token. A login whose password is empty counts for none.
        type: str
        required: true
  ca_file:
    description:
      - File of certificates in PEM form that are trusted beside those of the system.
    type: path
seealso:
  - module: gpuops.fleet.images
  - module: gpuops.fleet.compat
"""

EXAMPLES = r"""
- name: Read an image from its registry, on the controller
  gpuops.fleet.image_info:
    images:
      - nvcr.io/nvidia/tritonserver@sha256:8cf1a7a5a2ea1b9ce8ff14eb9b4e0b51c6f1b0dd9ba41a1d2d1d2d2e0f1f0a11
    from: registry
    mirrors:
      nvcr.io: https://mirror.example.com/nvcr
  delegate_to: localhost
  run_once: true
  register: read

- name: Read it from the engine of a host that has it
  gpuops.fleet.image_info:
    images:
      - nvcr.io/nvidia/tritonserver@sha256:8cf1a7a5a2ea1b9ce8ff14eb9b4e0b51c6f1b0dd9ba41a1d2d1d2d2e0f1f0a11
"""

RETURN = r"""
found:
  description: What was read, by image as it was asked for.
  returned: success
  type: dict
  sample:
    registry.example.com/ocr@sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef:
      architecture: amd64
      variables:
        - CUDA_VERSION=12.4.1
        - NVIDIA_REQUIRE_CUDA=cuda>=12.4
missing:
  description: Images that could not be read, each with the reason in one line.
  returned: success
  type: dict
  sample: {}
"""

import typing as t
from urllib.parse import quote

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import HTTP_NOT_FOUND, HTTP_OK, Engine, EngineError, own_words
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.image_variables import parse_reference, read_config

SPEC: dict[str, t.Any] = {
    "images": {"type": "list", "elements": "str", "required": True},
    "from": {"type": "str", "choices": ["engine", "registry"], "default": "engine"},
    "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
    "timeout": {"type": "int", "default": 20},
    "mirrors": {"type": "dict", "default": {}},
    "logins": {
        "type": "list",
        "elements": "dict",
        "default": [],
        # Only the password is hidden: what is hidden is cut out of the result wherever it stands, and a user may be called as an image is.
        "options": {
            "registry": {"type": "str", "required": True},
            "username": {"type": "str", "required": True},
            "password": {"type": "str", "required": True, "no_log": True},
        },
    },
    "ca_file": {"type": "path"},
}
Read = t.Callable[[str], dict[str, t.Any]]


def ask_engine(engine: Engine, image: str) -> dict[str, t.Any]:
    """``{variables, architecture}`` of an image that the engine has. FleetError when it has none, or does not answer."""
    reference = parse_reference(image)
    # Pulled by digest, an image has no tag there.
    status, detail = engine.call("GET", f"/images/{quote(f'{reference.name}@{reference.digest}', safe='/:@')}/json")
    if status == HTTP_NOT_FOUND:
        raise FleetError("the engine does not have it")
    if status != HTTP_OK or not isinstance(detail, dict):
        raise EngineError(f"the Docker engine answered {status}: {own_words(detail)}", status)
    return read_config(detail.get("Config"), detail.get("Architecture"))


def collect(images: t.Iterable[str], read: Read) -> dict[str, t.Any]:
    """``found`` and ``missing`` of all images."""
    found: dict[str, t.Any] = {}
    missing: dict[str, str] = {}
    for image in dict.fromkeys(images):
        try:
            found[image] = read(image)
        except FleetError as error:
            missing[image] = str(error)
    return {"changed": False, "found": found, "missing": missing}


def run(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The module's result. FleetError when the options themselves are wrong."""
    if params["timeout"] <= 0:
        raise FleetError(f"{params['timeout']} is no time", field="timeout", hint="write seconds, such as 20")
    if params["from"] == "registry":
        # http.client and ssl take their time to load: a host that is asked for its engine's images pays for neither.
        from ansible_collections.gpuops.fleet.plugins.module_utils.registry import Login, Registries

        # In a pipeline of a merge request a protected variable is empty: then the registry is asked as anybody may.
        logins = {each["registry"]: Login(each["username"], each["password"]) for each in params["logins"] if each["password"]}
        return collect(params["images"], Registries(params["timeout"], params["mirrors"], logins, params["ca_file"]).read)
    gone: list[EngineError] = []

    def ask(image: str) -> dict[str, t.Any]:
        if gone:  # it did not answer, and would not now
            raise gone[0]
        try:
            return ask_engine(engine, image)
        except EngineError as error:
            if error.status is None:
                gone.append(error)
            raise

    with Engine(params["docker_socket"], params["timeout"]) as engine:
        return collect(params["images"], ask)


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
