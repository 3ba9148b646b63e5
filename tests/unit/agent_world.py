# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``systemctl`` and ``docker`` as executables that remember: what they were asked, and what became of units and containers.

``systemctl`` behaves as systemd 257 of Debian 13: a unit is read from its file when it is first started, and not again without a reload.
``docker compose up`` makes a container in the engine of ``engine_world``, unless one with the same variables runs there.
"""

from __future__ import annotations

import json
import os
import sys
import typing as t
from pathlib import Path

import engine_world

PROJECT = "com.docker.compose.project"
SYSTEMCTL = """\
import json, os, sys
here, units = {here!r}, {units!r}
words = [word for word in sys.argv[1:] if word not in ("--no-reload", "--root=/")]
with open(os.path.join(here, "systemctl.log"), "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
store = os.path.join(here, "systemd.json")
state = json.load(open(store))
def text(name):
    path = os.path.join(units, name)
    return open(path).read() if os.path.exists(path) else None
def load(name):
    if name not in state["memory"]:
        if text(name) is None:
            sys.exit("Unit " + name + " not found.")
        state["memory"][name] = {{"text": text(name), "active": "inactive"}}
if "--no-reload" in sys.argv:  # as systemd does: whatever it has in memory is called outdated until a reload
    state["outdated"] = True
verb, names = words[0], [word for word in words[1:] if not word.startswith("-")]
if verb in state["fail"]:
    sys.exit("Failed to " + verb + ": " + state["fail"][verb])
if verb == "list-units":
    for name in names:
        if name in state["memory"]:
            print(name, "loaded", state["memory"][name]["active"], "running", "what it is")
elif verb == "is-enabled":
    print("enabled" if names[0] in state["enabled"] else "disabled")
    sys.exit(0 if names[0] in state["enabled"] else 1)
elif verb == "show":
    known = state["memory"].get(names[0])
    print("yes" if known and (state.get("outdated") or known["text"] != text(names[0])) else "no")
elif verb == "reenable":
    if text(names[0]) is None:
        sys.exit("Failed to enable unit: Unit file " + names[0] + " does not exist.")
    state["enabled"] = sorted(set(state["enabled"]) | set(names))
elif verb == "disable":
    state["enabled"] = sorted(set(state["enabled"]) - set(names))
    for name in names:
        state["memory"].pop(name, None)
elif verb == "stop":
    state["memory"].pop(names[0], None)
elif verb == "restart":
    load(names[0])
    state["memory"][names[0]]["active"] = "active"
elif verb == "daemon-reload":
    for name, known in state["memory"].items():
        known["text"] = text(name)
else:
    sys.exit("Unknown command verb " + verb)
json.dump(state, open(store, "w"))
"""

# What `docker compose up` does to the engine is asked of the test's engine by a request that no engine has.
DOCKER = """\
import json, os, socket, sys
from http.client import HTTPConnection
here, words = {here!r}, sys.argv[1:]
with open(os.path.join(here, "docker.log"), "a") as log:
    log.write(json.dumps(words) + "\\n")
rules = json.load(open(os.path.join(here, "docker.json")))
if rules.get("sleep"):
    import time
    time.sleep(rules["sleep"])
name = words[words.index("--project-name") + 1] if "--project-name" in words else words[-1]
if name in rules.get("fail", {{}}):
    sys.exit(rules["fail"][name])
variables = {{}}
if "--project-directory" in words:
    with open(os.path.join(words[words.index("--project-directory") + 1], ".env")) as env:
        variables = dict(line.strip().split("=", 1) for line in env if "=" in line and not line.startswith("#"))
connection = HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.sock.connect(words[words.index("--host") + 1][len("unix://"):])
connection.request("PUT", "/world", json.dumps({{"verb": "up" if "up" in words else "stop", "name": name, "variables": variables}}))
connection.getresponse().read()
"""


class Programs:
    """Both executables, first in ``path``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.unit_dir = home / "units"
        self.folder = home / "programs"
        self.folder.mkdir(parents=True)
        self._write("systemctl", SYSTEMCTL.format(here=str(home), units=str(self.unit_dir)))
        self._write("docker", DOCKER.format(here=str(home)))
        self.systemd(memory={}, enabled=[], fail={})
        self.docker_rules()

    def _write(self, name: str, script: str) -> None:
        source = self.home / f"{name}.py"
        source.write_text(script, encoding="utf-8")
        program = self.folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {source} "$@"\n', encoding="utf-8")
        program.chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH that finds them first."""
        return os.pathsep.join([str(self.folder), os.environ["PATH"]])

    def systemd(self, **state: t.Any) -> dict[str, t.Any]:
        """What systemd knows: ``memory``, ``enabled``, ``fail`` (verb: words); changed by what is given."""
        store = self.home / "systemd.json"
        known = {**(json.loads(store.read_text()) if store.exists() else {}), **state}
        store.write_text(json.dumps(known), encoding="utf-8")
        return dict(known)

    def docker_rules(self, **rules: t.Any) -> None:
        """``fail``: by project, what Compose complains of; ``sleep``: seconds before it answers."""
        (self.home / "docker.json").write_text(json.dumps(rules), encoding="utf-8")

    def told(self) -> list[str]:
        """What systemctl was asked to change, in order."""
        log = self.home / "systemctl.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.split()[0] not in ("is-active", "is-enabled", "list-units", "show")]

    def composed(self) -> list[list[str]]:
        """Arguments of each call of docker, in order."""
        log = self.home / "docker.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


class AgentEngine(engine_world.Engine):
    """The engine, where ``docker compose up`` makes containers. ``health``: by project, what the engine says of it, one word a question."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.RequestHandlerClass = _Handler
        self.made = 0
        self.health: dict[str, list[str]] = {}

    def put(self, project: str, names: t.Sequence[str], state: str = "running", **labels: str) -> str:
        """A container of a project with these devices, CDI names or UUIDs; its id."""
        self.made += 1
        identifier = f"{self.made:064x}"
        driver = "cdi" if all("=" in name for name in names) else "nvidia"
        self.containers[identifier] = {
            "Id": identifier,
            "Name": f"/{project}",
            "Config": {"Image": "ocr", "Labels": {PROJECT: project, **labels}},
            "HostConfig": {"DeviceRequests": [{"Driver": driver, "DeviceIDs": list(names), "Capabilities": [["gpu"]]}]},
            "State": {"Status": state, "ExitCode": 0 if state != "exited" else 137},
        }
        return identifier

    def devices(self) -> dict[str, list[str]]:
        """What each project's running container has."""
        return {
            known["Config"]["Labels"][PROJECT]: known["HostConfig"]["DeviceRequests"][0]["DeviceIDs"]
            for known in self.containers.values()
            if known["State"]["Status"] == "running"
        }

    def obey(self, wish: t.Mapping[str, t.Any]) -> None:
        """Do what the ``docker`` command asked for."""
        if wish["verb"] == "stop":
            for known in self.containers.values():
                if wish["name"] in (known["Id"], known["Config"]["Labels"].get(PROJECT)):
                    known["State"]["Status"] = "exited"
            return
        names = list(wish["variables"].values())
        mine = [known for known in self.containers.values() if known["Config"]["Labels"].get(PROJECT) == wish["name"]]
        same = [known for known in mine if known["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == names]
        for known in mine:
            if known not in same:
                del self.containers[known["Id"]]
        if same:
            same[0]["State"]["Status"] = "running"
        else:
            self.put(wish["name"], names)


class _Handler(engine_world._Handler):
    server: AgentEngine

    def do_PUT(self) -> None:  # noqa: N802 -- the name that http.server calls
        self.server.obey(json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0))))
        self._answer(204)

    def do_GET(self) -> None:  # noqa: N802 -- the name that http.server calls
        if self.path == "/info":
            return self._answer(200, {"ServerVersion": "28.3.0", "Runtimes": {"nvidia": {}, "runc": {}}, "CDISpecDirs": ["/etc/cdi"]})
        if self.path.endswith("/json") and self.path.split("/")[2] in self.server.containers:
            known = self.server.containers[self.path.split("/")[2]]
            words = self.server.health.get(known["Config"]["Labels"].get(PROJECT, ""))
            if words:
                known["State"]["Health"] = {"Status": words.pop(0) if len(words) > 1 else words[0]}
        return super().do_GET()
