# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the scripts of ci/ give to the programs that they call, with programs in their place that tell it."""

from __future__ import annotations

import re
import subprocess
import typing as t
from pathlib import Path

import pytest
import yaml

CI = Path(__file__).resolve().parents[2] / "ci"


def job(file: str, name: str) -> dict[str, t.Any]:
    found: dict[str, t.Any] = yaml.safe_load((CI / file).read_text(encoding="utf-8"))[name]
    return found


def told(folder: Path, program: str, script: str, lines: list[str], **variables: str) -> str:
    """What ``program``, of which ``script`` is the body here, wrote when these lines ran in a shell that had these variables."""
    (folder / program).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / program).chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    return subprocess.run(["/bin/sh", "-e"], input="\n".join(lines), env=env, check=True, capture_output=True, text=True, cwd=folder).stdout


@pytest.mark.parametrize(("file", "name", "part"), [("child.yml", ".fleet-child", "before_script"), ("base.yml", ".fleet-plan", "script")])
def test_hosts_are_known_by_the_keys_that_the_site_gives(tmp_path: Path, file: str, name: str, part: str) -> None:
    show = 'echo "${ANSIBLE_SSH_COMMON_ARGS-not set}" | tail -1'
    before = [line for line in job(file, name)[part] if line.startswith("test -z")]
    lines = [*before, "ansible-playbook"]
    assert told(tmp_path, "ansible-playbook", show, lines) == "not set\n"
    known = told(tmp_path, "ansible-playbook", show, lines, FLEET_KNOWN_HOSTS="/tmp/known")
    assert known == "-o StrictHostKeyChecking=yes -o UserKnownHostsFile=/tmp/known\n"


def test_the_push_of_the_state_knows_the_server_by_the_same_keys(tmp_path: Path) -> None:
    (push,) = [line for line in job("base.yml", ".fleet-plan")["script"] if " push " in line]
    before = [line for line in job("base.yml", ".fleet-plan")["script"] if line.startswith('test -z "$FLEET_KNOWN_HOSTS')]
    command = told(tmp_path, "git", 'echo "$GIT_SSH_COMMAND"', [*before, push], FLEET_KNOWN_HOSTS="/tmp/known", FLEET_STATE_KEY="/tmp/key")
    assert command == "ssh -o StrictHostKeyChecking=yes -o UserKnownHostsFile=/tmp/known -o IdentitiesOnly=yes -i /tmp/key\n"
    assert told(tmp_path, "git", 'echo "$GIT_SSH_COMMAND"', [*before, push]).split() == ["ssh"]


def test_the_trigger_token_is_in_no_argument_of_a_program(tmp_path: Path) -> None:
    variables = {"FLEET_TRIGGER_TOKEN": "glptt-secret", "FLEET_PLATFORM_REF": "main", "FLEET_PLATFORM": "platform/gpu-fleet"}
    api = {"CI_API_V4_URL": "https://gitlab.example.com/api/v4"}
    found = told(tmp_path, "curl", 'echo "$@"; cat', job("service.yml", "hand over")["script"], **variables, **api)
    arguments, _newline, given = found.partition("\n")
    assert "glptt-secret" not in arguments
    assert arguments.endswith(
        "--form token=<- --form ref=main https://gitlab.example.com/api/v4/projects/platform%2Fgpu-fleet/trigger/pipeline"
    )
    assert given == "glptt-secret"


@pytest.mark.parametrize("name", [".fleet-compat", ".fleet-preview", ".fleet-plan"])
def test_images_are_asked_about_before_anything_is_judged_and_logins_are_in_no_argument(tmp_path: Path, name: str) -> None:
    given = {
        "FLEET_ROOT": ".",
        "FLEET_INVENTORY": "inventory/hosts.yml",
        "FLEET_IMAGES_STRICT": "false",
        "FLEET_SECRETS": "/tmp/secrets.yml",
    }
    script = [line for line in job("base.yml", name)["script"] if "ansible-playbook" in line and "gather_sources" not in line][:2]
    calls = told(tmp_path, "ansible-playbook", 'echo "$@"', script, **given).splitlines()
    learnt, judged = calls
    assert "gpuops.fleet.images" in learnt
    assert re.search(r"gpuops\.fleet\.(check|plan)\b", judged)
    # A merge request reaches no host and has no secret.
    _program, *options = learnt.split(" -e ")
    if name == ".fleet-plan":
        assert options == ['{"fleet_images_strict":false}', "@/tmp/secrets.yml"]
    else:
        assert options == ['{"fleet_published_only":true,"fleet_images_strict":false}']


def test_what_was_judged_is_kept_and_only_the_binding_plan_pushes() -> None:
    compat = job("base.yml", ".fleet-compat")
    (check,) = [line for line in compat["script"] if "gpuops.fleet.check" in line]
    for path in compat["artifacts"]["paths"]:
        assert f"$PWD/{path}" in check
    assert compat["artifacts"]["when"] == "always"
    pushing = [name for name, each in yaml.safe_load((CI / "base.yml").read_text(encoding="utf-8")).items() if " push " in str(each)]
    assert pushing == [".fleet-plan"]
    sample = CI.parent / "inventories/example/gitlab/platform/inventory/group_vars/all.yml"
    assert yaml.safe_load(sample.read_text(encoding="utf-8"))["fleet_images"] == "{{ inventory_dir }}/../state/images.yml"
