# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A site for integration tests: simulated hosts, an inventory of its own, and real ansible-playbook processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import socketserver
import subprocess
import sys
import threading
import typing as t
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
SIMULATOR = REPOSITORY / "build" / "simulator"
DIGEST = "0123456789abcdef" * 4


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# The demo's own tools make the hosts and run the playbooks here as well.
demo = _load("gpuops_demo", REPOSITORY / "tests" / "demo" / "run.py")


class Played:
    """What one run of a playbook did."""

    def __init__(self, run: t.Any) -> None:
        self.status: int = run.status
        self.output: str = run.output
        self.problems: list[str] = run.problems
        self.recap: dict[str, dict[str, int]] = run.recap

    def changed(self) -> list[tuple[str, str]]:
        """(task, host) of every change, loops item by item, by name: hosts do not come in the same order twice."""
        task, found = "", []
        for line in self.output.splitlines():
            if heading := re.match(r"^TASK \[(?:gpuops\.fleet\.\w+ : )?(.*?)\] \**$", line):
                task = heading[1]
            elif change := re.match(r"^changed: \[(\S+?)[ \]]", line):
                found.append((task, change[1]))
        return sorted(found)

    def said(self) -> list[str]:
        """The lines of the last message that is a list: a table, or a proposal."""
        last = list(re.finditer(r'^    "msg": (\[\n.*?^    \])', self.output, re.MULTILINE | re.DOTALL))[-1]
        lines: list[str] = json.loads(last[1])
        return lines

    def message(self) -> str:
        """The one reason why it failed, without the host's name."""
        assert self.status != 0, self.output
        (problem,) = {problem.split(": ", 1)[1] for problem in self.problems}
        return problem


class Site:
    """Hosts below ``work`` and an inventory beside them; the demo's own group_vars say where everything is."""

    def __init__(self, work: Path, hosts: dict[str, str]) -> None:
        self.work = work
        self.hosts = hosts
        self.inventory = work / "inventory"
        self.manifests = self.inventory / "manifests"
        self.plans = work / "plans"
        (self.inventory / "host_vars").mkdir(parents=True, exist_ok=True)
        (self.inventory / "group_vars").mkdir(exist_ok=True)
        self.manifests.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / "inventories" / "demo" / "group_vars" / "gpu_hosts.yml", self.inventory / "group_vars")
        listing = {"all": {"children": {"gpu_hosts": {"hosts": dict.fromkeys(hosts)}}}}
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump(listing), encoding="utf-8")
        for name, board in hosts.items():
            demo.make_host(work, name, board, SIMULATOR)
            if not (self.inventory / "host_vars" / f"{name}.yml").exists():
                self.variables(name)

    def copy(self, work: Path) -> Site:
        """The same site at another place, in the state in which this one is now."""
        shutil.copytree(self.work, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("docker.sock"))
        return Site(work, self.hosts)

    def variables(self, host: str, **more: t.Any) -> None:
        """Write a host's variables; ``fleet_environment: production`` is always among them."""
        path = self.inventory / "host_vars" / f"{host}.yml"
        path.write_text(yaml.safe_dump({"fleet_environment": "production", **more}, sort_keys=False), encoding="utf-8")

    def manifest(self, service: str, memory: str = "8 GiB", **more: t.Any) -> Path:
        """Write the manifest of a service that needs one slice."""
        data = {
            "schema": 1,
            "service": service,
            "team": "claims",
            "environment": "production",
            "image": f"registry.example.com/{service}@sha256:{DIGEST}",
            "gpu": {"isolation": "slice", "memory": memory},
            "ports": [{"name": "http", "container": 8080}],
        }
        path = self.manifests / f"{service}.yml"
        path.write_text(yaml.safe_dump({**data, **more}, sort_keys=False), encoding="utf-8")
        return path

    def planned(self, host: str) -> list[str]:
        """The replicas of a host's plan, by name."""
        return [f"{line['service']}-{line['replica']}" for line in self.plan(host)["services"]]

    def play(self, playbook: str, *options: str) -> Played:
        """Run a playbook of the collection; no run may ever show a traceback."""
        played = Played(demo.play(playbook, self.work, REPOSITORY / "collections", *options, inventory=self.inventory / "hosts.yml"))
        assert "Traceback" not in played.output, played.output
        return played

    def done(self, playbook: str, *options: str) -> Played:
        """The same, and it must succeed."""
        played = self.play(playbook, *options)
        assert played.status == 0, played.output
        return played

    def simctl(self, host: str, *arguments: str) -> str:
        """What ``simctl`` answers for one host."""
        return str(demo.simctl(SIMULATOR, self.work / host / "gpus", *arguments))

    def by_hand(self, host: str, layout: list[dict[str, t.Any]]) -> None:
        """Cut a host's GPUs as an engineer would without a plan; nothing of it is recorded on the host."""
        arguments = json.dumps({"layout": layout, "reset": True, "state_dir": str(self.work / "by-hand")})
        command = [
            str(Path(sys.executable).parent / "ansible"),
            "-i",
            str(self.inventory / "hosts.yml"),
            host,
            "-m",
            "gpuops.fleet.mig",
            "-a",
            arguments,
        ]
        env = demo.environment(self.work, REPOSITORY / "collections")
        done = subprocess.run(command, env=env, cwd=self.work, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.rmtree(self.work / "by-hand")

    def mutations(self) -> dict[str, list[t.Any]]:
        """Every NVML call so far that changed something, by host."""
        return {host: json.loads(self.simctl(host, "log", "--mutations", "--json")) for host in self.hosts}

    def plan(self, host: str) -> dict[str, t.Any]:
        """The plan file of a host."""
        data: dict[str, t.Any] = yaml.safe_load((self.plans / f"{host}.yml").read_text(encoding="utf-8"))
        return data

    def files(self) -> dict[str, bytes]:
        """Every file that a run could have written: on the hosts (their GPUs' own state apart), and plans, facts and reports."""
        found: dict[str, bytes] = {}
        for path in sorted(self.work.rglob("*")):
            parts = path.relative_to(self.work).parts
            inner = parts[1] if len(parts) > 1 else ""
            if path.is_file() and parts[0] not in ("log", "ansible", "inventory") and inner not in ("gpus", "tmp"):
                found[str(path.relative_to(self.work))] = path.read_bytes()
        return found


class DockerEngine(socketserver.ThreadingUnixStreamServer):
    """What an engine's API says about its containers, on a real socket; the shapes are those of Engine API 1.51."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, containers: t.Sequence[dict[str, t.Any]], more: t.Mapping[str, t.Any]) -> None:
        info = {"ServerVersion": "28.3.0", "Runtimes": {"nvidia": {}, "runc": {}}, "CDISpecDirs": ["/etc/cdi"]}
        self.answers: dict[str, t.Any] = {"/info": info, "/containers/json?all=1": [{"Id": each["Id"]} for each in containers]}
        self.answers.update({f"/containers/{each['Id']}/json": each for each in containers})
        self.answers.update(more)
        super().__init__(str(path), EngineHandler)


class EngineHandler(BaseHTTPRequestHandler):
    """Answers GET from the engine's answers."""

    protocol_version = "HTTP/1.1"
    server: DockerEngine

    def do_GET(self) -> None:
        """Answer, or say that there is no such thing."""
        body = json.dumps(self.server.answers.get(self.path, {"message": "page not found"})).encode()
        self.send_response(200 if self.path in self.server.answers else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """A client on a unix socket has no address."""
        return "client"

    def log_message(self, *_: t.Any) -> None:
        """Say nothing."""


def container(number: int, name: str, device: str, port: int) -> dict[str, t.Any]:
    """A running container that somebody started by hand with one GPU device."""
    return {
        "Id": f"{number:064x}",
        "Name": f"/{name}",
        "State": {"Status": "running", "Running": True, "Pid": 4711},
        "Image": "sha256:" + "a" * 64,
        "Config": {"Image": f"registry.example.com/{name}:1.4", "Env": [], "Labels": {}},
        "HostConfig": {
            "Runtime": "runc",
            "NanoCpus": 2_000_000_000,
            "Memory": 8 * 2**30,
            "ShmSize": 2**26,
            "PortBindings": {"8080/tcp": [{"HostIp": "", "HostPort": str(port)}]},
            "DeviceRequests": [{"Driver": "nvidia", "Count": 0, "DeviceIDs": [device], "Capabilities": [["gpu"]], "Options": {}}],
        },
        "NetworkSettings": {"Ports": {"8080/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(port)}]}},
    }


@contextlib.contextmanager
def engine(path: Path, containers: t.Sequence[dict[str, t.Any]], more: t.Mapping[str, t.Any] | None = None) -> t.Iterator[None]:
    """An engine behind the socket ``path`` for as long as the block runs. ``more``: answers by their paths."""
    with DockerEngine(path, containers, more or {}) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            running.shutdown()
            thread.join()


MakeSite = t.Callable[..., Site]
