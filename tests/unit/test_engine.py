# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Docker engine, played by a real HTTP server on a unix socket with answers in the shape of Engine API 1.51."""

from __future__ import annotations

import json
import socketserver
import stat
import threading
import time
import typing as t
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import engine
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import Engine, EngineError, VersionProbe
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

INFO = {
    "ID": "7TRN:IPZB:QYBB:VPBQ:UMPP:KARE:6ZNR:XE6T:7EWV:PKF4:ZOJD:TPYS",
    "ServerVersion": "28.3.0",
    "Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}, "io.containerd.runc.v2": {"path": "runc"}},
    "DefaultRuntime": "runc",
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
}


def detail(number: int, name: str, **host: t.Any) -> dict[str, t.Any]:
    """A container as `/containers/{id}/json` describes it."""
    return {
        "Id": f"{number:064x}",
        "Name": f"/{name}",
        "State": {"Status": "running", "Running": True, "Pid": 4711},
        "Image": "sha256:" + "a" * 64,
        "Config": {
            "Image": "registry.example.com/claims/ocr:1.4",
            "Env": ["PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
            "Labels": {
                "com.docker.compose.project": "ocr-1",
                "com.docker.compose.service": "app",
                "gpuops.team": "claims",
                "traefik.http.middlewares.auth.basicauth.users": "admin:$apr1$secret",
            },
        },
        "HostConfig": {"Runtime": "runc", "NanoCpus": 0, "Memory": 0, "ShmSize": 67108864, "PortBindings": {}, **host},
        "NetworkSettings": {"Ports": {}},
    }


def request(*ids: str, driver: str = "nvidia", count: int = 0) -> dict[str, t.Any]:
    return {"Driver": driver, "Count": count, "DeviceIDs": list(ids) or None, "Capabilities": [["gpu"]], "Options": {}}


class Server(socketserver.ThreadingUnixStreamServer):
    """Answers from ``routes`` (path -> (status, body)) and keeps what was asked."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: str) -> None:
        self.routes: dict[str, tuple[int, t.Any]] = {}
        self.asked: list[str] = []
        self.connections = 0
        self.close_after_answer = False
        super().__init__(path, Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        status, body = self.server.routes.get(self.path, (404, {"message": "No such container"}))
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if self.server.close_after_answer:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: t.Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(str(tmp_path / "docker.sock")) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def path_of(server: Server) -> str:
    return str(server.server_address)


def test_an_engine_tells_version_runtimes_and_cdi(server: Server) -> None:
    server.routes["/info"] = (200, INFO)
    with Engine(path_of(server)) as docker:
        assert docker.info() == (
            {
                "present": True,
                "version": "28.3.0",
                "cdi": True,
                "runtimes": ["io.containerd.runc.v2", "nvidia", "runc"],
                "error": None,
            },
            False,
        )


@pytest.mark.parametrize("dirs", [{}, {"CDISpecDirs": []}, {"CDISpecDirs": None}])
def test_an_engine_that_reads_no_cdi_directory_has_no_cdi(dirs: dict[str, t.Any]) -> None:
    info = {key: value for key, value in INFO.items() if key != "CDISpecDirs"}
    assert engine.parse_info({**info, **dirs})["cdi"] is False


def test_an_engine_without_runtimes_has_none() -> None:
    assert engine.parse_info({"ServerVersion": "20.10", "Runtimes": None})["runtimes"] == []


def serve(server: Server, *containers: dict[str, t.Any]) -> None:
    server.routes["/containers/json?all=1"] = (200, [{"Id": entry["Id"], "Names": [entry["Name"]]} for entry in containers])
    for entry in containers:
        server.routes[f"/containers/{entry['Id']}/json"] = (200, entry)


def test_a_container_with_a_gpu_is_described(server: Server) -> None:
    one = detail(1, "ocr-1-app-1", DeviceRequests=[request("MIG-aa")], NanoCpus=1500000000, Memory=8 * 2**30, ShmSize=2**30)
    one["NetworkSettings"]["Ports"] = {
        "8080/tcp": [{"HostIp": "0.0.0.0", "HostPort": "18080"}, {"HostIp": "::", "HostPort": "18080"}],
        "9000/udp": None,
    }
    serve(server, one)
    with Engine(path_of(server)) as docker:
        assert docker.containers() == [
            {
                "id": "0" * 12,
                "name": "ocr-1-app-1",
                "image": "registry.example.com/claims/ocr:1.4",
                "state": "running",
                "project": "ocr-1",
                "service": "app",
                "devices": ["MIG-aa"],
                "ports": [{"host": 18080, "container": 8080, "protocol": "tcp"}],
                "cpus": 1.5,
                "memory_mib": 8192,
                "shm_mib": 1024,
                "labels": {"com.docker.compose.project": "ocr-1", "com.docker.compose.service": "app", "gpuops.team": "claims"},
            }
        ]


def test_only_containers_that_name_a_gpu_are_told_by_name_and_over_one_connection(server: Server) -> None:
    serve(
        server,
        detail(1, "z", DeviceRequests=[request("GPU-1")]),
        detail(2, "database"),
        detail(3, "a", DeviceRequests=[request("GPU-2")]),
    )
    with Engine(path_of(server)) as docker:
        assert [container["name"] for container in docker.containers()] == ["a", "z"]
    assert server.connections == 1
    assert len(server.asked) == 4


def test_an_engine_that_closes_after_each_answer_is_called_again(server: Server) -> None:
    server.close_after_answer = True
    serve(server, detail(1, "a", DeviceRequests=[request("GPU-1")]), detail(2, "b", DeviceRequests=[request("GPU-2")]))
    with Engine(path_of(server)) as docker:
        assert [container["name"] for container in docker.containers()] == ["a", "b"]
    assert server.connections == 3


def test_a_container_removed_meanwhile_is_left_out(server: Server) -> None:
    one, gone = detail(1, "stays", DeviceRequests=[request("GPU-1")]), detail(2, "gone", DeviceRequests=[request("GPU-1")])
    serve(server, one, gone)
    del server.routes[f"/containers/{gone['Id']}/json"]
    with Engine(path_of(server)) as docker:
        assert [container["name"] for container in docker.containers()] == ["stays"]


def test_another_refusal_about_a_container_is_an_error(server: Server) -> None:
    one = detail(1, "a")
    serve(server, one)
    server.routes[f"/containers/{one['Id']}/json"] = (500, {"message": "layer does not exist"})
    with Engine(path_of(server)) as docker, pytest.raises(EngineError) as caught:
        docker.containers()
    assert caught.value.status == 500
    assert str(caught.value) == f"Docker engine at {path_of(server)}: GET /containers/{one['Id']}/json answered 500: layer does not exist"


def test_nobody_behind_the_socket_is_said(tmp_path: Path) -> None:
    with Engine(str(tmp_path / "docker.sock")) as docker, pytest.raises(EngineError) as caught:
        docker.info()
    assert str(caught.value) == f"Docker engine at {tmp_path / 'docker.sock'}: No such file or directory"
    assert caught.value.status is None


@pytest.mark.parametrize("status", [200, 502])
def test_an_answer_that_is_not_json_is_said(server: Server, status: int) -> None:
    server.routes["/info"] = (status, b"<html>Bad Gateway</html>")
    with Engine(path_of(server)) as docker, pytest.raises(EngineError, match=rf"GET /info answered {status} without JSON"):
        docker.info()


def test_an_error_whose_body_is_no_object_is_said(server: Server) -> None:
    server.routes["/info"] = (403, ["no"])
    with Engine(path_of(server)) as docker, pytest.raises(EngineError, match=r"GET /info answered 403: no reason given$"):
        docker.info()


def test_an_engine_that_hangs_is_left_at_the_deadline(tmp_path: Path) -> None:
    import socket

    path = str(tmp_path / "docker.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(path)
        silent.listen()
        begun = time.monotonic()
        with Engine(path, deadline=0.2) as docker, pytest.raises(EngineError, match="timed out"):
            docker.info()
        assert 0.1 < time.monotonic() - begun < 5


def test_an_engine_that_answers_no_http_is_said(tmp_path: Path) -> None:
    class Rude(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    path = str(tmp_path / "docker.sock")
    with socketserver.UnixStreamServer(path, Rude) as rude:
        thread = threading.Thread(target=rude.handle_request)
        thread.start()
        with Engine(path) as docker, pytest.raises(EngineError, match=r"SSH-2\.0"):
            docker.info()
        thread.join()


VISIBLE = "NVIDIA_VISIBLE_DEVICES="
ALL_IN_ENV = {"Env": [VISIBLE + "all"]}


@pytest.mark.parametrize(
    ("config", "host", "devices"),
    [
        pytest.param({}, {"DeviceRequests": [request("GPU-1", "MIG-2")]}, ["GPU-1", "MIG-2"], id="ids"),
        pytest.param({}, {"DeviceRequests": [request(count=-1)]}, ["all"], id="--gpus all"),
        pytest.param({}, {"DeviceRequests": [request(count=2, driver="")]}, ["0", "1"], id="--gpus 2"),
        pytest.param({}, {"DeviceRequests": [request("0", "0", driver="")]}, ["0"], id="index, twice"),
        pytest.param({}, {"DeviceRequests": [{"Driver": "nvidia", "Count": -1}]}, ["all"], id="driver without capabilities"),
        pytest.param({}, {"DeviceRequests": [{"Count": -1, "Capabilities": [["nvidia"]]}]}, ["all"], id="capability nvidia"),
        pytest.param({}, {"DeviceRequests": [{"Count": -1, "Capabilities": [["tpu"]]}]}, [], id="another capability"),
        pytest.param({}, {"DeviceRequests": [request("0", driver="amd")]}, [], id="another driver"),
        pytest.param({}, {"DeviceRequests": [request("nvidia.com/gpu=GPU-1", driver="cdi")]}, ["GPU-1"], id="cdi"),
        pytest.param({}, {"DeviceRequests": [request("nvidia.com/gpu=0:1", driver="cdi")]}, ["0:1"], id="cdi MIG index"),
        pytest.param({}, {"DeviceRequests": [request("nvidia.com/gpu=mig1:0", driver="cdi")]}, ["1:0"], id="cdi type-index MIG"),
        pytest.param({}, {"DeviceRequests": [request("nvidia.com/gpu=gpu3", driver="cdi")]}, ["3"], id="cdi type-index"),
        pytest.param({}, {"DeviceRequests": [request("nvidia.com/gpu=all", driver="cdi")]}, ["all"], id="cdi all"),
        pytest.param({}, {"DeviceRequests": [request("amd.com/gpu=0", driver="cdi")]}, [], id="cdi of another vendor"),
        pytest.param({}, {"DeviceRequests": [request("nvidia.com/gpu=GPU-1")]}, ["GPU-1"], id="cdi name with the other driver"),
        pytest.param(ALL_IN_ENV, {"Runtime": "runc"}, [], id="environment that no runtime obeys"),
        pytest.param(ALL_IN_ENV, {"Runtime": "nvidia"}, ["all"], id="environment"),
        pytest.param(ALL_IN_ENV, {"Runtime": "nvidia", "DeviceRequests": [request("GPU-1")]}, ["GPU-1"], id="request over environment"),
        pytest.param({"Env": [VISIBLE + "GPU-1, 2,nvidia.com/gpu=MIG-3"]}, {"Runtime": "nvidia"}, ["GPU-1", "2", "MIG-3"], id="list"),
        pytest.param({"Env": [VISIBLE + "all", VISIBLE + "void"]}, {"Runtime": "nvidia"}, [], id="void, last"),
        pytest.param({"Env": ["NVIDIA_VISIBLE_DEVICES=none"]}, {"Runtime": "nvidia"}, [], id="none"),
        pytest.param({"Env": ["NVIDIA_VISIBLE_DEVICES="]}, {"Runtime": "nvidia"}, [], id="empty"),
        pytest.param({"Env": None}, {"Runtime": "nvidia"}, [], id="no environment"),
        pytest.param({}, {"Devices": [{"PathOnHost": "/dev/nvidia1"}, {"PathOnHost": "/dev/nvidiactl"}]}, ["/dev/nvidia1"], id="--device"),
        pytest.param({}, {"Privileged": True}, ["all"], id="privileged"),
        pytest.param({}, {"DeviceRequests": None, "Devices": None, "Runtime": None}, [], id="nothing"),
    ],
)
def test_what_a_container_names_is_read_from_each_place_that_counts(
    config: dict[str, t.Any], host: dict[str, t.Any], devices: list[str]
) -> None:
    assert engine.wanted_devices(config, host) == devices


@pytest.mark.parametrize(
    ("actual", "wanted", "ports"),
    [
        ({}, {"8080/tcp": [{"HostPort": "18080"}]}, [(18080, 8080, "tcp")]),
        ({"8080/tcp": None}, {"8080/tcp": [{"HostPort": "18080"}]}, [(18080, 8080, "tcp")]),
        ({"80/udp": [{"HostPort": "2"}], "80/tcp": [{"HostPort": "1"}]}, {}, [(1, 80, "tcp"), (2, 80, "udp")]),
        ({"80/tcp": [{"HostPort": "9"}]}, {"80/tcp": [{"HostPort": ""}]}, [(9, 80, "tcp")]),
        ({}, {"80/tcp": [{"HostPort": ""}]}, [(None, 80, "tcp")]),
        ({}, {"80/tcp": [{"HostPort": "8000-8010"}]}, [(None, 80, "tcp")]),
        ({}, {"80": [{"HostPort": "5"}], "81/tcp": None}, [(5, 80, "tcp")]),
        (None, None, []),
    ],
)
def test_published_ports_are_those_in_force_or_else_those_configured(
    actual: t.Any, wanted: t.Any, ports: list[tuple[int | None, int, str]]
) -> None:
    entries = engine.published_ports({"NetworkSettings": {"Ports": actual}, "HostConfig": {"PortBindings": wanted}})
    assert [(port["host"], port["container"], port["protocol"]) for port in entries] == ports


def test_a_container_that_says_little_is_described_all_the_same() -> None:
    described = engine.parse_container({"Id": "ab" * 32})
    assert described == {
        "id": "ab" * 6,
        "name": "",
        "image": None,
        "state": None,
        "project": None,
        "service": None,
        "devices": [],
        "ports": [],
        "cpus": None,
        "memory_mib": None,
        "shm_mib": None,
        "labels": {},
    }


GPUS: list[dict[str, t.Any]] = [
    {"uuid": "GPU-aa11", "index": 0, "minor": 3, "mig": None},
    {
        "uuid": "GPU-bb22",
        "index": 1,
        "minor": 4,
        "mig": {"instances": [{"ci": [{"uuid": "MIG-c1"}, {"uuid": "MIG-c2"}]}, {"ci": []}, {"ci": [{"uuid": "MIG-d1"}]}]},
    },
    {"uuid": "GPU-bb33", "index": 2, "minor": None, "mig": {"instances": None}},
    {"uuid": None, "index": 3, "minor": None, "mig": None},
]


@pytest.mark.parametrize(
    ("names", "uuids"),
    [
        (["GPU-aa11"], ["GPU-aa11"]),
        (["0", "GPU-aa11"], ["GPU-aa11"]),
        (["/dev/nvidia4"], ["GPU-bb22"]),
        (["/dev/nvidia0"], ["/dev/nvidia0"]),
        (["1:1"], ["MIG-index-1-1"]),
        (["1:7"], ["1:7"]),
        (["GPU-aa"], ["GPU-aa11"]),
        (["GPU-bb"], ["GPU-bb"]),
        (["MIG-d"], ["MIG-d1"]),
        (["MIG-gone"], ["MIG-gone"]),
        (["3"], ["3"]),
        (["9"], ["9"]),
        (["all"], ["GPU-aa11", "MIG-c1", "MIG-c2", "MIG-d1", "GPU-bb33"]),
        ([], []),
    ],
)
def test_names_become_uuids_and_unknown_ones_stay(names: list[str], uuids: list[str]) -> None:
    def mig_device(index: int, mig_index: int) -> str | None:
        return f"MIG-index-{index}-{mig_index}" if mig_index < 7 else None

    assert engine.resolve_devices(names, GPUS, mig_device) == uuids


def test_all_on_a_host_whose_gpus_are_unknown_stays_all() -> None:
    assert engine.resolve_devices(["all"], [], lambda _gpu, _mig: None) == ["all"]


COMPOSE = ("docker", "compose", "version", "--short")


def command(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `docker` command first in PATH."""
    program = directory / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "version"),
    [
        ('[ "$*" = "compose version --short" ] && echo 2.38.1', "2.38.1"),
        ("echo v2.26.1-4", "2.26.1-4"),
        ("echo 2.38.1; exit 1", None),
        ("echo \"docker: 'compose' is not a docker command.\" >&2; exit 1", None),
        ("echo unknown", None),
    ],
)
def test_the_compose_plugin_tells_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, version: str | None) -> None:
    command(tmp_path, script, monkeypatch)
    assert VersionProbe(*COMPOSE).version() == version


def test_without_a_docker_command_there_is_no_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert VersionProbe(*COMPOSE).version() is None


def test_a_docker_command_that_is_stuck_is_ended_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60", monkeypatch)
    probe = VersionProbe(*COMPOSE, deadline=0.5)
    with pytest.raises(FleetError, match=r"`docker compose version --short` gave no answer in 0.5 s"):
        probe.version()
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path("/proc", pid).exists()
