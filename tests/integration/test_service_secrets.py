# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service's secret from the inventory to its container's mount, by real ansible-playbook processes: it shows nowhere else."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from fleet_site import REPOSITORY, demo

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Site

HOST = "host-s"
CANARY = "canary-8d31-of-the-hub"
SECOND = "canary-9e42-is-newer"


class Peeper:
    """Looks at every process of this machine, as any user on a host may, as often as it can: is a secret among the arguments?"""

    def __init__(self, *forms: str) -> None:
        self._forms = [form.encode() for form in forms]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.looks = 0
        self.found: list[bytes] = []

    def __enter__(self) -> Peeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(0.01):
            self.looks += 1
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) != os.getpid():
                    self.found += [text for text in self._texts(name) if any(form in text for form in self._forms)]

    @staticmethod
    def _texts(process: str) -> Iterator[bytes]:
        for part in ("cmdline", "environ"):
            try:
                yield Path("/proc", process, part).read_bytes()
            except OSError:
                continue


def test_a_secret_goes_from_the_inventory_to_the_mount_and_nowhere_else(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYSTEMD_CREDENTIAL_SECRET", str(tmp_path / "hostkey"))  # where systemd-creds is there: not this machine's key
    site = make_site(host_s="a100-80gb:1")
    site.manifest("ocr")
    site.variables(HOST, fleet_gpu_modes=["mig"], fleet_secrets={"ocr": {"hub_token": CANARY}})
    with Peeper(CANARY, base64.b64encode(CANARY.encode()).decode()) as peeper:
        printed = [site.done(playbook, "--diff", "-vvv").output for playbook in ("plan", "apply")]
    assert peeper.looks > 50
    assert peeper.found == []
    plain = site.work / HOST / "secrets" / "ocr-1" / "hub_token"
    assert plain.read_text() == CANARY
    assert "hub_token: mode 0444" in printed[1]
    assert all(CANARY not in text for text in printed)
    for path in site.work.rglob("*"):
        if path.is_file() and path != plain and "inventory" not in path.parts:
            assert CANARY.encode() not in path.read_bytes(), path


def run(site: Site, folder: Path, *tasks: dict[str, t.Any]) -> tuple[int, str]:
    """Status and output of a play of one's own that tells all it knows."""
    folder.mkdir()
    book = folder / "book.yml"
    book.write_text(yaml.safe_dump([{"hosts": "gpu_hosts", "gather_facts": False, "tasks": list(tasks)}]), encoding="utf-8")
    program = str(Path(sys.executable).parent / "ansible-playbook")
    argv = [program, "--diff", "-vvv", "-i", str(site.inventory / "hosts.yml"), str(book)]
    env = demo.environment(site.work, REPOSITORY / "collections")
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def role(site: Site, manifest: Path, secrets: dict[str, str], **more: t.Any) -> dict[str, t.Any]:
    """A task that brings replica ocr-1 to a state, on a whole GPU."""
    gpu = json.loads(site.simctl(HOST, "show", "--json"))["gpus"][0]["uuid"]
    data = read_manifest(str(manifest), manifest.read_text(encoding="utf-8")).data()
    own = {
        "model_service_name": "ocr-1",
        "model_service_manifest": data,
        "model_service_placement": {"service": "ocr", "replica": 1, "gpu": gpu, "ports": {"http": 18000}},
        "model_service_devices": [{"name": "GPU_0", "gpu": gpu}],
        "model_service_services_dir": "{{ fleet_services_dir }}",
        "model_service_state_dir": "{{ fleet_state_dir }}",
        "model_service_secrets_dir": "{{ fleet_secrets_dir }}",
        "model_service_secrets": secrets,
        **more,
    }
    return {"name": "Bring it there", "ansible.builtin.include_role": {"name": "gpuops.fleet.model_service"}, "vars": own}


def test_values_that_change_reach_the_container_and_what_leaves_is_removed(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYSTEMD_CREDENTIAL_SECRET", str(tmp_path / "hostkey"))
    site = make_site(host_s="a100-80gb:1")
    manifest = site.manifest("ocr")
    keep = {"ansible.builtin.command": "cp -r {{ fleet_services_dir }}/ocr-1 {{ fleet_secrets_dir }} {{ demo_dir }}/kept-{{ kept }}"}
    tasks: list[dict[str, t.Any]] = []
    for number, secrets in enumerate(({"hub_token": CANARY}, {"hub_token": SECOND, "other": "7 of 9"}, {"other": "7 of 9"})):
        folder = {"ansible.builtin.file": {"path": f"{{{{ demo_dir }}}}/kept-{number}", "state": "directory", "mode": "0755"}}
        tasks += [role(site, manifest, secrets), folder, {**keep, "vars": {"kept": number}}]
    tasks.append(role(site, manifest, {}, model_service_state="absent"))
    status, output = run(site, tmp_path / "book", *tasks)
    assert status == 0, output
    assert CANARY not in output
    assert SECOND not in output

    models = [yaml.safe_load((site.work / f"kept-{number}/ocr-1/compose.yml").read_text())["services"]["model"] for number in range(3)]
    revisions = [model["labels"]["gpuops.secrets"] for model in models]
    assert len(set(revisions)) == 3
    mounts = [[(volume["source"], volume["target"]) for volume in model["volumes"]] for model in models]
    ready = site.work / HOST / "secrets" / "ocr-1"
    token, other = ((str(ready / name), f"/run/secrets/{name}") for name in ("hub_token", "other"))
    assert mounts == [[token], [token, other], [other]]
    assert models[0]["volumes"][0] == {
        "type": "bind",
        "source": token[0],
        "target": token[1],
        "read_only": True,
        "bind": {"create_host_path": False},
    }
    for number, names in enumerate((["hub_token"], ["hub_token", "other"], ["other"])):
        assert sorted(path.name for path in (site.work / f"kept-{number}/secrets/ocr-1").iterdir()) == names
    assert (site.work / "kept-1/secrets/ocr-1/hub_token").read_text() == SECOND
    assert not list((site.work / HOST).rglob("hub_token*"))
    assert not ready.exists()


def test_a_template_of_the_site_that_mounts_no_secret_is_refused_before_anything_is_written(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(host_s="a100-80gb:1")
    (tmp_path / "http.yml.j2").write_text(
        "{% import 'parts.j2' as parts with context %}\nname: x\nservices:\n  model:\n{{ parts.identity() -}}\n{{ parts.device() -}}\n"
    )
    task = role(site, site.manifest("ocr"), {"hub_token": CANARY}, model_service_templates=[str(tmp_path)])
    status, output = run(site, tmp_path / "book", task)
    assert status != 0
    assert "mounts no secret, and the service has some; write parts.volumes() into it" in output
    assert CANARY not in output
    assert not (site.work / HOST / "secrets").exists()
    assert not (site.work / HOST / "services").exists()
