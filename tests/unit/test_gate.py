# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A version passes the gate only when its container runs on its own devices, is well, answers, sees its GPU, and stays so."""

from __future__ import annotations

import base64
import json
import threading
import time
import typing as t
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import engine_world
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import words
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.gate import Gate, Own, Request, Wish
from ansible_collections.gpuops.fleet.plugins.module_utils.holders import MIG_MINORS

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

SLICE, GPU, OTHER = "MIG-11111111-2222-3333-4444-555555555555", "GPU-aaaaaaaa-0000-0000-0000-000000000000", "MIG-99999999-0000-0000-0000-0"
PROJECT = "com.docker.compose.project"
NO_PROGRAM = (
    'OCI runtime exec failed: exec failed: unable to start container process: exec: "nvidia-smi": executable file not found in $PATH'
)


def listing(*uuids: str) -> str:
    return f"GPU 0: NVIDIA H100 (UUID: {GPU})\n" + "".join(f"  MIG 1g.10gb Device 0: (UUID: {uuid})\n" for uuid in uuids)


@dataclass
class Box:
    """A container: what the engine says of it at each question, the last for ever."""

    states: list[dict[str, t.Any]]
    devices: tuple[str, ...] = (SLICE,)
    says: bytes = b""
    lists: tuple[int, str] = (0, listing(SLICE))
    labels: dict[str, str] = field(default_factory=dict)

    def detail(self, identifier: str) -> dict[str, t.Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        requests = [{"Driver": "nvidia", "DeviceIDs": list(self.devices), "Capabilities": [["gpu"]]}] if self.devices else []
        plain = {"Id": identifier, "Name": "/ocr-1", "Config": {"Labels": {PROJECT: "ocr-1"}}, "HostConfig": {"DeviceRequests": requests}}
        return {**plain, "State": {"StartedAt": "t0", **state}, "RestartCount": state.get("RestartCount", 0)}


def running(health: str | None = None, **more: t.Any) -> dict[str, t.Any]:
    return {"Status": "running", "Pid": 4711, **({"Health": {"Status": health}} if health else {}), **more}


def ended(status: int, **more: t.Any) -> dict[str, t.Any]:
    return {"Status": "exited", "ExitCode": status, **more}


class Engine(engine_world.Engine):
    """The engine with the containers of one project."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.RequestHandlerClass = _Handler
        self.boxes: dict[str, Box] = {}


class _Handler(engine_world._Handler):
    server: Engine

    def _raw(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if data:  # whoever reads nothing has hung up by then
            self.wfile.write(data)

    def do_GET(self) -> None:  # noqa: N802
        parts = self.path.split("?")[0].split("/")
        if parts[1:3] == ["containers", "json"]:
            return self._answer(200, [{"Id": name, "Labels": {PROJECT: "ocr-1", **box.labels}} for name, box in self.server.boxes.items()])
        if parts[1] == "exec":
            return self._answer(200, {"ExitCode": self.server.boxes[parts[2]].lists[0]})
        if parts[2] not in self.server.boxes:
            return self._answer(404, {"message": "No such container"})
        if parts[3] == "logs":
            return self._raw(self.server.boxes[parts[2]].says)
        return self._answer(200, self.server.boxes[parts[2]].detail(parts[2]))

    def do_POST(self) -> None:  # noqa: N802
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = self.path.split("/")
        if parts[1] == "containers":
            return self._answer(201, {"Id": parts[2]})
        return self._raw(framed(self.server.boxes[parts[2]].lists[1]))


def framed(text: str, pipe: int = 1) -> bytes:
    data = text.encode()
    return bytes([pipe]) + b"\0\0\0" + len(data).to_bytes(4, "big") + data


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with Engine(tmp_path) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


WISH = Wish("ocr-1", Own(frozenset({SLICE}), frozenset({SLICE, GPU}), frozenset({0})), timeout=3, settle=0)


def passage(engine: Engine, wish: Wish = WISH, **more: t.Any) -> dict[str, float | None]:
    return Gate(wish, engine.path, **more).passage()


def refusal(engine: Engine, wish: Wish = WISH) -> str:
    with pytest.raises(FleetError) as caught:
        passage(engine, wish)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@contextmanager
def server(*statuses: int) -> Iterator[tuple[str, list[tuple[str, str, str | None, bytes]]]]:
    """A server that answers with these, the last for ever; its address and what it was asked."""
    asked: list[tuple[str, str, str | None, bytes]] = []
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.command, self.path, self.headers.get("Content-Type"), body))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.send_header("Content-Length", "0")
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 -- the names that http.server calls

        def log_message(self, *_: t.Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_address[1]}", asked
        finally:
            made.shutdown()
            thread.join()


def test_each_step_is_waited_for_and_its_seconds_are_told(engine: Engine) -> None:
    engine.boxes["a"] = Box([{"Status": "created"}, running("starting"), running("starting"), running("healthy")])
    with server(200) as (address, _asked):
        seconds = passage(engine, replace(WISH, probe=Request(f"{address}/ready"), settle=0.2))
    assert [name for name, value in seconds.items() if value is None] == ["warm_up"]
    assert seconds["running"] is not None
    assert seconds["running"] >= 0.5
    assert seconds["settle"] is not None
    assert 0.2 <= seconds["settle"] < 2


def test_a_container_without_a_check_is_well_when_it_runs(engine: Engine) -> None:
    engine.boxes["a"] = Box([running("none")])
    assert passage(engine)["healthy"] is not None


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        pytest.param(ended(3), "container ended with status 3 after 0 s; its last words: no CUDA", id="ended"),
        pytest.param(ended(0), "container ended with status 0 after 0 s; its last words: no CUDA", id="ended well"),
        pytest.param(
            ended(137, OOMKilled=True),
            "container ended with status 137 (the kernel ended it for lack of memory) after 0 s; its last words: no CUDA",
            id="out of memory",
        ),
        pytest.param(
            {"Status": "restarting", "ExitCode": 1}, "container ended with status 1 after 0 s; its last words: no CUDA", id="restarting"
        ),
        pytest.param(running("unhealthy"), "container is unhealthy after 0 s; its last words: no CUDA", id="unhealthy"),
        pytest.param(
            {**running("unhealthy"), "Health": {"Status": "unhealthy", "Log": [{"Output": "a"}, {"Output": "curl: (7)\n"}]}},
            "container is unhealthy after 0 s; its last check said: curl: (7)",
            id="unhealthy with words",
        ),
    ],
)
def test_what_ends_or_is_ill_is_told_at_once_with_its_last_words(engine: Engine, state: dict[str, t.Any], complaint: str) -> None:
    engine.boxes["a"] = Box([state], says=framed("loading\n") + framed("\x1b[31mno  CUDA\x1b[0m\r\n\n", 2))
    begun = time.monotonic()
    assert refusal(engine, replace(WISH, timeout=60)) == f"ocr-1: {complaint}"
    assert time.monotonic() - begun < 5


def test_what_says_nothing_left_no_words(engine: Engine) -> None:
    engine.boxes["a"] = Box([ended(1)])
    assert refusal(engine).endswith("; it left no words")


def test_a_job_may_end_well_and_not_badly(engine: Engine) -> None:
    engine.boxes["a"] = Box([ended(0)])
    seconds = passage(engine, replace(WISH, may_end=True))
    assert [name for name, value in seconds.items() if value is not None] == ["running"]
    engine.boxes["a"] = Box([ended(2)])
    assert "ended with status 2" in refusal(engine, replace(WISH, may_end=True))


def test_a_helper_without_a_device_may_end_well(engine: Engine) -> None:
    engine.boxes.update(a=Box([running("healthy")]), b=Box([ended(0)], devices=()))
    assert passage(engine)["gpu"] is not None


@pytest.mark.parametrize(
    ("boxes", "complaint"),
    [
        pytest.param({}, "it does not run after 1 s; the engine has no container of it", id="none"),
        pytest.param({"a": Box([running()], devices=())}, "it does not run after 1 s", id="none with a device"),
        pytest.param(
            {"a": Box([running("starting")], says=framed("at 12 %"))}, "it is not healthy after 1 s; its last words: at 12 %", id="slow"
        ),
    ],
)
def test_what_takes_too_long_has_failed(engine: Engine, boxes: dict[str, Box], complaint: str) -> None:
    engine.boxes.update(boxes)
    assert refusal(engine, replace(WISH, timeout=1)) == f"ocr-1: {complaint}"


@pytest.mark.parametrize(
    ("devices", "has"),
    [((OTHER,), f"has {OTHER} and lacks {SLICE}"), ((SLICE, OTHER), f"has {OTHER}"), (("all",), f"has all and lacks {SLICE}")],
)
def test_a_container_with_other_devices_than_its_own_fails_at_once(engine: Engine, devices: tuple[str, ...], has: str) -> None:
    engine.boxes["a"] = Box([running("starting")], devices=devices)
    assert refusal(engine, replace(WISH, timeout=60)) == f"ocr-1: container {has}: its own is {SLICE}"


INVISIBLE = "the GPU is not visible inside the container: nvidia-smi lists no"
UNUSABLE = "the GPU is not usable inside the container: nvidia-smi says:"


@pytest.mark.parametrize(
    ("lists", "complaint"),
    [
        ((0, listing()), f"{INVISIBLE} {SLICE}; it says: GPU 0: NVIDIA H100 (UUID: {GPU})"),
        ((0, "No devices found.\n"), f"{INVISIBLE} {SLICE}; it says: No devices found."),
        ((0, listing(SLICE, "MIG-9")), f"container sees MIG-9, which is not its own: its own is {SLICE}"),
        ((9, "Failed to initialize NVML: Unknown Error\n"), f"{UNUSABLE} Failed to initialize NVML: Unknown Error"),
    ],
)
def test_the_gpu_has_to_be_visible_inside_and_no_other(engine: Engine, lists: tuple[int, str], complaint: str) -> None:
    engine.boxes["a"] = Box([running("healthy")], lists=lists)
    assert refusal(engine) == f"ocr-1: {complaint}"


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        (["nvidia0", "nvidiactl"], None),
        (["nvidiactl"], "the GPU is not visible inside the container: it has no /dev/nvidia0"),
        (["nvidia0", "nvidia1"], f"container has /dev/nvidia1, which is not its own: its own is {SLICE}"),
        (None, "cannot see whether the GPU is visible inside the container: "),
    ],
)
def test_where_the_image_has_no_nvidia_smi_its_nodes_are_looked_at(
    engine: Engine, tmp_path: Path, nodes: list[str] | None, complaint: str | None
) -> None:
    engine.boxes["a"] = Box([running("healthy")], lists=(127, NO_PROGRAM))
    if nodes is not None:
        folder = tmp_path / "proc" / "4711" / "root" / "dev"
        folder.mkdir(parents=True)
        for name in nodes:
            (folder / name).touch()
    wish = replace(WISH, proc_root=tmp_path / "proc")
    if complaint is None:
        assert passage(engine, wish)["gpu"] is not None
    else:
        assert refusal(engine, wish).startswith(f"ocr-1: {complaint}")


MINORS = (
    "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1/ci1/access 14\ngpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\n"
)
NODES = "/dev/nvidia-caps/nvidia-cap"
OWN_NODES = f"{SLICE} ({NODES}12, {NODES}13)"


@pytest.mark.parametrize(
    ("caps", "minors", "complaint"),
    [
        pytest.param([12, 13], MINORS, None, id="own"),
        pytest.param([1, 2, 12, 13], MINORS, None, id="own, and those of no slice"),
        pytest.param(
            [21, 22],
            MINORS,
            f"container has {OTHER} ({NODES}21, {NODES}22), which is not its own: its own is {OWN_NODES}",
            id="another slice of the same GPU",
        ),
        pytest.param(
            [12, 13, 21, 22],
            MINORS,
            f"container has {OTHER} ({NODES}21, {NODES}22), which is not its own: its own is {OWN_NODES}",
            id="another beside its own",
        ),
        pytest.param(
            [12, 14], MINORS, f"container has MIG-ci1 ({NODES}14), which is not its own: its own is {OWN_NODES}", id="compute instance"
        ),
        pytest.param(
            [12, 13, 99], MINORS, f"container has another slice ({NODES}99), which is not its own: its own is {OWN_NODES}", id="unknown"
        ),
        pytest.param(
            [12],
            MINORS,
            f"the slice is not visible inside the container: it has no {NODES}13; its own is {OWN_NODES}",
            id="half of its own",
        ),
        pytest.param(None, MINORS, "the slice is not visible inside the container: it has no ", id="none"),
        pytest.param([12, 13], None, "cannot see which slice the container has: ", id="a host that cannot tell"),
    ],
)
def test_a_slice_is_told_from_another_of_its_gpu_by_the_nodes_of_capabilities(
    engine: Engine, tmp_path: Path, caps: list[int] | None, minors: str | None, complaint: str | None
) -> None:
    engine.boxes["a"] = Box([running("healthy")], lists=(127, NO_PROGRAM))
    folder = tmp_path / "proc" / "4711" / "root" / "dev"
    folder.mkdir(parents=True)
    (folder / "nvidia0").touch()
    if caps is not None:
        (folder / "nvidia-caps").mkdir()
        for number in caps:
            (folder / "nvidia-caps" / f"nvidia-cap{number}").touch()
    if minors is not None:
        table = tmp_path / "proc" / MIG_MINORS
        table.parent.mkdir(parents=True)
        table.write_text(minors)
    slices = {(0, 1, 0): SLICE, (0, 1, 1): "MIG-ci1", (0, 2, 0): OTHER}
    wish = replace(WISH, own=replace(WISH.own, slices=slices), proc_root=tmp_path / "proc")
    if complaint is None:
        assert passage(engine, wish)["gpu"] is not None
    else:
        assert refusal(engine, wish).startswith(f"ocr-1: {complaint}")


def test_the_probe_and_the_warm_up_are_asked_until_the_model_is_loaded(engine: Engine) -> None:
    engine.boxes["a"] = Box([running("healthy")])
    with server(503, 404, 204, 503, 201) as (address, asked):
        warm_up = Request(f"{address}/ocr", "POST", '{"image": ""}', "application/json", 201, 5)
        seconds = passage(engine, replace(WISH, probe=Request(f"{address}/ready"), warm_up=warm_up))
    assert [path for _method, path, _type, _body in asked] == ["/ready"] * 3 + ["/ocr"] * 2
    assert asked[-1] == ("POST", "/ocr", "application/json", b'{"image": ""}')
    assert seconds["warm_up"] is not None


def test_an_answer_that_streams_for_ever_is_an_answer(engine: Engine) -> None:
    engine.boxes["a"] = Box([running("healthy")])

    class Stream(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # whoever reads hangs up at some time
                while True:
                    self.wfile.write(b"data: alive\n\n")
                    time.sleep(0.02)

        def log_message(self, *_: t.Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Stream) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        warm_up = Request(f"http://127.0.0.1:{made.server_address[1]}/events", timeout=0.3)
        seconds = passage(engine, replace(WISH, timeout=60, warm_up=warm_up))
        made.shutdown()
        thread.join()
    assert seconds["warm_up"] is not None
    assert seconds["warm_up"] < 30


@pytest.mark.parametrize(("status", "found"), [(500, "answered 500"), (302, "answered 302")])
def test_a_warm_up_that_is_answered_wrongly_has_failed_at_once(engine: Engine, status: int, found: str) -> None:
    engine.boxes["a"] = Box([running("healthy")], says=framed("KeyError: 'image'"))
    with server(status) as (address, asked):
        words_of_it = refusal(engine, replace(WISH, timeout=60, warm_up=Request(f"{address}/ocr", status=200)))
    assert words_of_it == (
        f"ocr-1: the warm-up request (GET {address}/ocr) was not answered with 200: {found}; its last words: KeyError: 'image'"
    )
    assert len(asked) == 1


def test_a_service_that_nobody_can_reach_has_failed_when_the_time_is_over(engine: Engine) -> None:
    engine.boxes["a"] = Box([running("healthy")])
    with server(200) as (address, _asked):
        pass
    assert refusal(engine, replace(WISH, timeout=1, probe=Request(f"{address}/ready"))).startswith(
        f"ocr-1: the probe (GET {address}/ready) was not answered with 200 to 399: Connection refused; "
    )


def test_a_container_that_ends_while_it_is_asked_is_told(engine: Engine) -> None:
    engine.boxes["a"] = Box([*[running("healthy")] * 3, ended(139)], says=framed("Segmentation fault"))
    with server(503) as (address, _asked):
        found = refusal(engine, replace(WISH, timeout=60, probe=Request(f"{address}/ready")))
    assert "container ended with status 139" in found


@pytest.mark.parametrize(
    ("later", "complaint"),
    [
        pytest.param(ended(3), "container ended with status 3", id="ended"),
        pytest.param(running("healthy", StartedAt="t1"), "container was started again within 20 s; its last words: bye", id="again"),
        pytest.param(
            running("healthy", RestartCount=1), "container was started again within 20 s; its last words: bye", id="by the engine"
        ),
        pytest.param(running("unhealthy"), "container is unhealthy", id="ill"),
        pytest.param(running("starting"), "it did not stay healthy for 20 s; its last words: bye", id="starting again"),
    ],
)
def test_a_version_has_to_stay_well(engine: Engine, later: dict[str, t.Any], complaint: str) -> None:
    engine.boxes["a"] = Box([*[running("healthy")] * 4, later], says=framed("bye"))
    assert f"ocr-1: {complaint}" in refusal(engine, replace(WISH, settle=20))


def test_whoever_lost_the_host_waits_no_longer(engine: Engine) -> None:
    engine.boxes["a"] = Box([running("starting")])

    def lost() -> None:
        raise FleetError("the lease on this host was lost")

    with pytest.raises(FleetError, match="lease on this host was lost"):
        passage(engine, alive=lost)


# --- words


SECRET = 'hunter2 "quoted"\nsecond line of it'


@pytest.mark.parametrize(
    "form",
    [
        SECRET.splitlines()[0],
        SECRET.splitlines()[1],
        json.dumps(SECRET.splitlines()[0]),
        "hunter2%20%22quoted%22",
        base64.b64encode(SECRET.splitlines()[0].encode()).decode(),
    ],
)
def test_no_form_of_a_secret_is_among_the_last_words(form: str) -> None:
    found = words.last_words(f"login with {form} failed", [SECRET])
    assert words.MASK in found
    assert "hunter2" not in found
    assert "second" not in found
    assert found.startswith("login with ")


def test_last_words_are_one_short_line_without_control_characters() -> None:
    text = "first\n\x1b[1;31mValue\x00Error:\x1b[0m\tbad\x07 value \x1b]0;title\x07\n\n"
    assert words.last_words(text) == "Value Error: bad value"
    long = words.last_words("x" * 5000 + " end")
    assert len(long) == words.MOST + 3
    assert long.endswith(" end")


def test_a_stream_of_a_terminal_has_no_headers() -> None:
    assert words.demultiplexed(b"plain text, longer than a header\n") == "plain text, longer than a header\n"
    assert words.demultiplexed(framed("a") + framed("b", 2)) == "ab"
    assert words.demultiplexed(b"") == ""


def test_secrets_that_cannot_be_read_hide_nothing(tmp_path: Path) -> None:
    assert words.secrets_in(tmp_path / "none") == []
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    assert words.secrets_in(tmp_path) == ["x"]


# --- the module


def test_the_module_looks_up_the_slice_hides_secrets_and_names_the_service(
    fleet_host: MakeHost, run_module: RunModule, engine: Engine, tmp_path: Path
) -> None:
    host = fleet_host("h100-80gb")
    gpu = host.simctl("show", "--json")["gpus"][0]["uuid"]
    layout = [{"gpu": gpu, "instances": [{"profile": "1g.10gb", "start": start} for start in (4, 5)]}]
    assert not run_module("mig", {"layout": layout, "state_dir": str(tmp_path / "state")})["failed"]
    own, neighbour = host.simctl("show", "--json")["gpus"][0]["mig"]["instances"]
    uuid = own["ci"][0]["uuid"]
    (tmp_path / "secrets" / "ocr-1").mkdir(parents=True)
    (tmp_path / "secrets" / "ocr-1" / "token").write_text("t0psecret\n")
    args = {
        "project": "ocr-1",
        "entries": [{"name": "GPU_0", "gpu": gpu, "profile": "1g.10gb", "start": 4}],
        "docker_socket": engine.path,
        "state_dir": str(tmp_path / "state"),
        "secrets_dir": str(tmp_path / "secrets"),
        "settle": 0,
        "timeout": 2,
    }
    seen = f"GPU 0: NVIDIA H100 (UUID: {gpu})\n  MIG 1g.10gb Device 0: (UUID: {uuid})\n"
    engine.boxes["a"] = Box([running("healthy")], devices=(uuid,), lists=(0, seen))
    passed = run_module("service_gate", args)
    assert (passed["failed"], passed["changed"], passed["seconds"]["warm_up"]) == (False, False, None)
    table = tmp_path / "proc" / MIG_MINORS
    table.parent.mkdir(parents=True)
    rows = [(one, 10 * number) for number, one in enumerate((own, neighbour), 1)]
    table.write_text("".join(f"gpu0/gi{one['gi']}/access {at}\ngpu0/gi{one['gi']}/ci0/access {at + 1}\n" for one, at in rows))
    nodes = tmp_path / "proc" / "4711" / "root" / "dev"
    (nodes / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia-caps/nvidia-cap20", "nvidia-caps/nvidia-cap21"):
        (nodes / name).touch()
    engine.boxes["a"] = Box([running("healthy")], devices=(uuid,), lists=(127, NO_PROGRAM))
    assert run_module("service_gate", {**args, "proc_root": str(tmp_path / "proc")})["msg"] == (
        f"ocr-1: container has {neighbour['ci'][0]['uuid']} ({NODES}20, {NODES}21), which is not its own: "
        f"its own is {uuid} ({NODES}10, {NODES}11)"
    )
    engine.boxes["a"] = Box([ended(1)], devices=(uuid,), says=framed("bad token t0psecret"))
    assert run_module("service_gate", args)["msg"] == "ocr-1: container ended with status 1 after 0 s; its last words: bad token ***"
    missing = run_module("service_gate", {**args, "entries": [{"name": "GPU_0", "gpu": gpu, "profile": "1g.10gb", "start": 0}]})
    assert missing["msg"].startswith("ocr-1: GPU_0: there is no slice 1g.10gb@0 of ")
    assert "lease on this host" in run_module("service_gate", {**args, "lease": "lost"})["msg"]
