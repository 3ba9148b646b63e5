# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sample projects for tests, with the demo's kind of hosts below them: all are this machine, and one of them has an engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import typing as t
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from compose_world import World, answers, compose_world, in_path
from fleet_site import REPOSITORY, SIMULATOR, _load, demo

from lab.errors import LabError
from lab.gitlab import Pipeline, Projects, runner, widget
from lab.guest import free_ports

BOARD = "a100-80gb:1"
SERVING, IDLE = ("gpu-prod-01", "gpu-prod-02", "gpu-stage-01"), "gpu-train-01"
HOSTS = (*SERVING, IDLE)
# The host with an engine, and the name of its gateway, which is this machine as well.
ENGINE, GATEWAY = "gpu-stage-01", "gw-01"
# What must be nowhere but where it was given.
SECRET, KEY, PASSWORD = "planted-5ecret-6f1d2c", "planted-key-of-claims-9c41f0e2", "planted-of-the-registry-70be"
registry_world = _load("registry_world", REPOSITORY / "tests" / "unit" / "registry_world.py")


class GitLab(Projects):
    """The sample projects, their inventory led to hosts below ``work``; one host more, with nothing to serve, and a gateway."""

    def __init__(self, work: Path) -> None:
        super().__init__(work, lambda: {**demo.environment(work, REPOSITORY / "collections"), "FLEET_DEMO": str(work)})
        *self.ports, self.http, self.metrics, self.nobody = free_ports(7)
        # images.example.com, which asks pipelines of the protected branch for a login; nobody answers for registry.example.com.
        self.registry = registry_world.Registry()
        self.form, self.letters = (self._image(name) for name in ("form-ocr", "letters"))
        # The path of a socket may have 107 bytes.
        self.run_dir = Path("/tmp") / f"gpuops-pipeline-{self.http}"
        # The unit tests keep one there where none is installed. Without any, the fleet has no gateway.
        kept = REPOSITORY / "build" / "cache" / "debian" / "haproxy" / "run"
        self.haproxy = shutil.which("haproxy", path=f"/usr/sbin:/usr/local/sbin:/usr/bin:{kept}")
        self._gateway_process: subprocess.Popen[bytes] | None = None
        for name in HOSTS:
            demo.make_host(work, name, BOARD, SIMULATOR)
        self._hosts()
        self.commit(self.platform, "Hosts of the test")
        manifests = self.claims / "manifests"
        form = (manifests / "form-ocr.yml").read_text(encoding="utf-8")
        (manifests / "form-ocr.yml").write_text(re.sub(r"image: .*", f"image: {self.form}", form), encoding="utf-8")
        with (manifests / "receipt-ocr.yml").open("a", encoding="utf-8") as receipt:
            receipt.write("needs: {cuda: '12.4'}\n")
        self.commit(self.claims, "An image that a registry has, and one whose needs are declared")
        self.git(self.claims, "push", "--quiet", "origin", "main:preview")
        secrets = self.home / "secrets.yml"
        login = {"registry": self.registry.host, "username": "fleet", "password": PASSWORD}
        given = {
            "fleet_secrets": {"receipt-ocr": {"token": SECRET}},
            "fleet_gateway_keys": {"claims": [KEY]},
            "fleet_registry_logins": [login],
        }
        secrets.write_text(yaml.safe_dump(given), encoding="utf-8")
        self.protected_variables["FLEET_SECRETS"] = str(secrets)

    def _image(self, name: str) -> str:
        """An image of the registry, as a manifest writes it."""
        variables = ["CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4", f"NAME={name}"]
        return f"images.example.com/claims/{name}@{self.registry.index(amd64=self.registry.image({'Env': variables}))}"

    def shows_images_to_all(self, everybody: bool) -> None:
        """Whether the registry asks for the login."""
        self.registry.rules.login = None if everybody else ("fleet", PASSWORD)

    def _hosts(self) -> None:
        """The sample's hosts are the demo's kind: this machine, each below a directory of its own."""
        inventory = self.platform / "inventory"
        variables = inventory / "group_vars"
        (variables / "gpu_hosts").mkdir()
        text = (REPOSITORY / "inventories" / "demo" / "group_vars" / "gpu_hosts.yml").read_text(encoding="utf-8")
        papers = ("fleet_plans", "fleet_facts", "fleet_reports", "fleet_exports", "fleet_images")
        places = {name: value for name, value in yaml.safe_load(text).items() if name not in papers}
        places["fleet_registry_mirrors"] = {
            "images.example.com": self.registry.url,
            "registry.example.com": f"http://127.0.0.1:{self.nobody}",
        }
        places["fleet_registry_timeout"] = 5
        (variables / "gpu_hosts" / "1-hosts.yml").write_text(yaml.safe_dump(places), encoding="utf-8")
        (variables / "gpu_hosts.yml").rename(variables / "gpu_hosts" / "2-sample.yml")
        known = yaml.safe_load((inventory / "hosts.yml").read_text(encoding="utf-8"))
        groups = known["all"]["children"]
        groups["gpu_hosts"]["children"]["training"] = {"hosts": {IDLE: None}}
        if self.haproxy:
            groups["gateways"] = {"hosts": {GATEWAY: self._gateway(self.haproxy)}}
        (inventory / "hosts.yml").write_text(yaml.safe_dump(known, sort_keys=False), encoding="utf-8")
        more = {
            # The platform's own cut, which no service asked for.
            IDLE: {"fleet_environment": "training", "fleet_gpu_layouts": [{"gpu": 0, "mode": "mig", "slices": ["3g.40gb@0"]}]},
            # Real ports of this machine, on which something answers.
            ENGINE: {"fleet_gpu_access": "nvidia", "fleet_ports": ",".join(f"{port}-{port}" for port in self.ports)},
        }
        (inventory / "host_vars").mkdir()
        for name, values in more.items():
            (inventory / "host_vars" / f"{name}.yml").write_text(yaml.safe_dump(values), encoding="utf-8")

    def _gateway(self, program: str) -> dict[str, t.Any]:
        home = self.work / GATEWAY
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(self.work / ENGINE / "bin" / "python"),
            "ansible_become": False,
            "gateway_package": False,
            "gateway_service": False,
            "gateway_program": program,
            "gateway_path": str(home / "gateway.cfg"),
            "gateway_directory": str(home / "files"),
            "gateway_run_dir": str(self.run_dir),
            "gateway_http_port": self.http,
            "gateway_address": "127.0.0.1",
            "gateway_metrics": f"127.0.0.1:{self.metrics}",
            "gateway_maxconn": 500,
            "gateway_state_dir": str(home / "state"),
            "gateway_user": "",
            "gateway_group": "",
        }

    @contextmanager
    def engine(self) -> Iterator[World]:
        """While it lasts, one host has an engine whose containers are well, and its services answer at their ports."""
        folder = self.work / "engine"
        folder.mkdir()
        before = os.environ["PATH"]
        with ExitStack() as stack:
            world = stack.enter_context(compose_world(folder, self.work / ENGINE / "docker.sock"))
            for port in self.ports:
                stack.enter_context(answers(port))
            os.environ["PATH"] = in_path(folder)
            stack.callback(self._end_gateway)
            stack.callback(self.registry.end)
            try:
                yield world
            finally:
                os.environ["PATH"] = before

    def start_gateway(self) -> None:
        """HAProxy with the configuration that a pipeline brought, as its unit would start it."""
        if self.haproxy is None:
            return
        self.run_dir.mkdir()
        argv = [self.haproxy, "-W", "-f", str(self.work / GATEWAY / "gateway.cfg"), "-S", str(self.run_dir / "master.sock")]
        self._gateway_process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not (self.run_dir / "admin.sock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _end_gateway(self) -> None:
        if self._gateway_process is not None:
            self._gateway_process.terminate()
            self._gateway_process.wait(15)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def services(self, host: str) -> dict[str, dict[str, t.Any]]:
        """Replica -> its compose file as it is on a host."""
        root = self.work / host / "services"
        return {path.parent.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(root.glob("*/compose.yml"))}

    def slices(self, host: str) -> list[str]:
        """What the driver of a host says that its GPU is cut into."""
        (gpu,) = json.loads(demo.simctl(SIMULATOR, self.work / host / "gpus", "show", "--json"))["gpus"]
        return sorted(f"{one['profile']}@{one['start']}" for one in (gpu["mig"] or {}).get("instances", []))

    def everywhere(self) -> Iterator[tuple[Path, bytes]]:
        """Every file of the world: repositories unpacked, clones, artifacts, hosts, logs."""
        for path in sorted(self.work.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path, path.read_bytes()


def gitlab(work: Path) -> GitLab:
    """The world of the sample projects; the test is skipped where gitlab-ci-local cannot be fetched."""
    try:
        runner()
    except LabError as error:
        pytest.skip(str(error))
    return GitLab(work)


__all__ = ["ENGINE", "GATEWAY", "HOSTS", "IDLE", "KEY", "PASSWORD", "SECRET", "SERVING", "GitLab", "Pipeline", "gitlab", "widget"]
