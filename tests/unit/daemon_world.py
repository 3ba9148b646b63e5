# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker engine that reads its settings file: a socket, a process below a proc of its own, and a ``systemctl`` beside it.

What it makes of its settings is as Docker does: a reload takes up what a reload can, a restart takes up all and ends every container unless
live-restore was in force. Shapes of the answers: Engine API 1.51.
"""

from __future__ import annotations

import json
import socketserver
import sys
import typing as t
from http.server import BaseHTTPRequestHandler
from pathlib import Path

BOOT = "4f1c0000-0000-0000-0000-000000000000"
SYSTEMCTL = """\
import json, os, sys
here, words = {here!r}, sys.argv[1:]
place = os.path.join(here, "engine.json")
with open(os.path.join(here, "acts"), "a") as log:
    log.write(" ".join(words) + "\\n")
world = json.load(open(place))
if words[0] in world["fails"]:
    sys.exit(world["fails"][words[0]])
if words[0] == "show":
    print(world["kill_mode"])
    sys.exit(0)
if words[0] == "daemon-reload":
    for name, one in world["containers"].items():
        if (one["by_hook"] and world["info"]["CgroupDriver"] == "systemd") or name in world["blinded"]:
            one["sees"] = []
else:
    try:
        settings = json.load(open(os.path.join(here, "daemon.json")))
    except FileNotFoundError:
        settings = {{}}
    info = world["info"]
    if words[0] == "restart":
        for name, one in world["containers"].items():
            if name in world["lost"] or not info["LiveRestoreEnabled"]:
                one["running"] = False
            elif name in world["blinded"]:
                one["sees"] = []
        info["CDISpecDirs"] = ["/etc/cdi"] if settings.get("features", {{}}).get("cdi") else []
        info["LoggingDriver"] = settings.get("log-driver", "json-file")
        world["start"] += 1
    if not world["deaf"]:
        if "live-restore" in settings:
            info["LiveRestoreEnabled"] = settings["live-restore"]
        info["Runtimes"] = {{"runc": {{"path": "runc"}}, **settings.get("runtimes", {{}})}}
json.dump(world, open(place, "w"))
stat = os.path.join(here, "proc", "77", "stat")
open(stat, "w").write("77 (dockerd) S " + "0 " * 18 + str(world["start"]) + " 0\\n")
"""


class World:
    """The host below ``home``; ``world`` is what the engine is at this moment."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = home / "docker.sock"
        self.settings = home / "daemon.json"
        self.state_dir = home / "state"
        self.pid_file = home / "docker.pid"
        self.proc_root = home / "proc"
        self.dev_root = home / "dev"
        for folder in (self.proc_root / "77", self.proc_root / "sys/kernel/random", self.dev_root):
            folder.mkdir(parents=True)
        (self.proc_root / "sys/kernel/random/boot_id").write_text(f"{BOOT}\n", encoding="utf-8")
        (self.proc_root / "77/cmdline").write_bytes(b"/usr/sbin/dockerd\0-H\0fd://\0")
        (self.proc_root / "77/stat").write_text("77 (dockerd) S " + "0 " * 18 + "100 0\n", encoding="utf-8")
        self.pid_file.write_text("77", encoding="utf-8")
        info = {"ServerVersion": "26.1.5", "LiveRestoreEnabled": False, "Runtimes": {"runc": {"path": "runc"}}, "CDISpecDirs": []}
        info |= {"LoggingDriver": "json-file", "CgroupDriver": "systemd"}
        self.set(
            info=info,
            containers={},
            fails={},
            lost=[],
            blinded=[],
            deaf=False,
            start=100,
            kill_mode="process",
            runc="1.1.15+ds1",
            images=True,
        )
        self.systemctl = self._program("systemctl", SYSTEMCTL.format(here=str(home)))

    def _program(self, name: str, text: str) -> Path:
        script, program = self.home / f"{name}.py", self.home / name
        script.write_text(text, encoding="utf-8")
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {script} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return program

    @property
    def world(self) -> dict[str, t.Any]:
        """What the engine is now."""
        return dict(json.loads((self.home / "engine.json").read_text(encoding="utf-8")))

    def set(self, **more: t.Any) -> None:
        """Change what it is; ``info`` is merged."""
        place = self.home / "engine.json"
        now = self.world if place.exists() else {"info": {}}
        now["info"] |= more.pop("info", {})
        place.write_text(json.dumps(now | more), encoding="utf-8")

    def run(self, name: str, sees: t.Sequence[str] = (), by_hook: bool = False) -> None:
        """A container that runs, with these GPUs: by CDI, or by NVIDIA's hook."""
        containers = self.world["containers"]
        containers[name] = {"sees": list(sees), "has": list(sees), "by_hook": by_hook, "running": True}
        self.set(containers=containers)

    def acts(self) -> list[str]:
        """What systemctl was asked, in order, but for questions."""
        log = self.home / "acts"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [line for line in lines if not line.startswith("show")]


class Server(socketserver.ThreadingUnixStreamServer):
    """The engine's socket."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, world: World) -> None:
        self.place = world
        super().__init__(str(world.socket), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _answer(self, status: int, body: t.Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _detail(self, name: str, one: dict[str, t.Any]) -> dict[str, t.Any]:
        kind = "nvidia" if one["by_hook"] else "cdi"
        names = one["has"] if one["by_hook"] else [f"nvidia.com/gpu={uuid}" for uuid in one["has"]]
        requests = [{"Driver": kind, "DeviceIDs": names, "Capabilities": [["gpu"]]}] if names else []
        state = {"Running": one["running"], "Status": "running" if one["running"] else "exited", "StartedAt": "t0", "Pid": 4711}
        return {"Id": name, "Name": f"/{name}", "State": state, "Config": {"Labels": {}}, "HostConfig": {"DeviceRequests": requests}}

    def do_GET(self) -> None:
        world = self.server.place.world
        parts = self.path.split("?")[0].split("/")
        if parts[1] == "info":
            return self._answer(200, world["info"])
        if parts[1] == "version":
            return self._answer(200, {"Components": [{"Name": "Engine", "Version": "26.1.5"}, {"Name": "runc", "Version": world["runc"]}]})
        if parts[1] == "exec":
            return self._answer(200, {"ExitCode": 0 if world["containers"][parts[2]]["sees"] else 255})
        if parts[2] == "json":
            return self._answer(200, [{"Id": name, "Labels": {}} for name in world["containers"]])
        return self._answer(200, self._detail(parts[2], world["containers"][parts[2]]))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        world, parts = self.server.place.world, self.path.split("/")
        if parts[1] == "containers":
            status = 201 if world["images"] else 400
            return self._answer(status, {"Id": parts[2]} if status == 201 else {"message": "no nvidia-smi"})
        sees = world["containers"][parts[2]]["sees"]
        text = "".join(f"GPU {at}: NVIDIA A100 (UUID: {uuid})\n" for at, uuid in enumerate(sees))
        return self._answer(200, (text or "Failed to initialize NVML: Unknown Error\n").encode())

    def address_string(self) -> str:
        """Nobody is named on a unix socket."""
        return "client"

    def log_message(self, *_: t.Any) -> None:
        """Say nothing."""
