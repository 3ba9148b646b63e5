# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's OCR service: what it answers over HTTP, when it says that it works, and what its image and its receipts are."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import typing as t
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
import simulator_world

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab import guest
from lab.errors import LabError
from lab.ocr import ask, build, receipt, service
from lab.packages import Mirror

MakeHost = t.Callable[..., t.Any]
PNG = b"\x89PNG\r\n\x1a\n"
NO_DEVICE = service.Settings(port=0, device="none")
# In place of tesseract: says what it was told, counts how many of it run, and does what the image's bytes say.
TESSERACT = """#!{python}
import os, pathlib, sys, time
home = pathlib.Path({home!r})
if sys.argv[1:] == ["--list-langs"]:
    print((home / "languages").read_text())
    sys.exit(0)
body = sys.stdin.buffer.read()
mine = home / f"running-{{os.getpid()}}"
mine.touch()
with open(home / "most", "a") as file:
    file.write(f"{{len(list(home.glob('running-*')))}}\\n")
if b"slow" in body:
    time.sleep(0.3)
if b"endless" in body:
    time.sleep(60)
mine.unlink()
if b"broken" in body:
    print("a first line\\nError in pixReadMemPng: damaged", file=sys.stderr)
    sys.exit(1)
print(" ".join(sys.argv[1:]), os.environ["OMP_THREAD_LIMIT"])
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose executable tesseract is the one that is found, with both models."""
    place = tmp_path / "stand-in"
    place.mkdir()
    (place / "tesseract").write_text(TESSERACT.format(python=sys.executable, home=str(place)), encoding="utf-8")
    (place / "tesseract").chmod(0o755)
    (place / "languages").write_text("List of available languages in somewhere (2):\neng\nchi_tra\n", encoding="utf-8")
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return place


Serve = t.Callable[..., service.Service]


@pytest.fixture
def serve() -> t.Iterator[Serve]:
    """Start the service: ``serve(settings)``."""
    started: list[tuple[service.Service, threading.Thread]] = []

    def start(settings: service.Settings = NO_DEVICE) -> service.Service:
        made = service.Service(settings, host="127.0.0.1")
        thread = threading.Thread(target=service.serve, args=(made,))
        thread.start()
        started.append((made, thread))
        return made

    yield start
    for made, thread in started:
        made.shutdown()
        thread.join(20)
        assert not thread.is_alive()


def call(
    served: service.Service, method: str, path: str, body: bytes | None = None, headers: t.Mapping[str, str] | None = None
) -> tuple[int, dict[str, t.Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=20)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def raw(served: service.Service, sent: bytes) -> tuple[str, dict[str, t.Any]]:
    """Status line and answer to bytes that no HTTP client would send."""
    with socket.create_connection(("127.0.0.1", served.server_port), timeout=20) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        got = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _blank, body = got.partition(b"\r\n\r\n")
    return head.decode().splitlines()[0], json.loads(body)


@pytest.mark.usefixtures("home")
def test_an_image_is_read_with_the_languages_that_were_asked_for(serve: Serve) -> None:
    served = serve()
    status, answer = call(served, "POST", "/ocr", PNG, {"Content-Type": "image/png"})
    assert (status, answer["text"]) == (200, "stdin stdout -l eng+chi_tra --psm 6 1")
    assert answer["device"] == {"kind": "none"}
    assert answer["seconds"] >= 0
    for query in ("lang=chi_tra+eng", "lang=chi_tra%2Beng"):
        status, answer = call(served, "POST", f"/ocr?{query}", PNG)
        assert (status, answer["languages"]) == (200, ["chi_tra", "eng"])
        assert "-l chi_tra+eng " in answer["text"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "words"),
    [
        ("POST", "/ocr", b"", {}, 400, "the body is empty"),
        ("POST", "/ocr", PNG + b"broken", {}, 400, "tesseract cannot read this image: Error in pixReadMemPng: damaged"),
        ("POST", "/ocr?lang=deu", PNG, {}, 400, "eng, chi_tra"),
        ("POST", "/ocr?lang=", PNG, {}, 400, "eng, chi_tra"),
        ("POST", "/ocr?lang=eng+eng", PNG, {}, 400, "each once"),
        ("POST", "/ocr?lang=../../etc/passwd", PNG, {}, 400, "eng, chi_tra"),
        ("POST", "/ocr?psm=3", PNG, {}, 400, "the only parameter is lang"),
        ("POST", "/ocr?lang=eng&lang=chi_tra", PNG, {}, 400, "the only parameter is lang"),
        ("POST", "/ocr", b"/etc/passwd\n", {}, 415, "neither PNG nor JPEG nor TIFF"),
        ("POST", "/ocr", PNG, {"Content-Type": "multipart/form-data; boundary=x"}, 415, "send the image itself"),
        ("POST", "/ocr", PNG + bytes(3000), {}, 413, "has 3008 bytes, and at most 1000"),
        ("POST", "/ocr", PNG, {"Content-Length": "eight"}, 400, "Content-Length is not a number"),
        ("POST", "/ocr", PNG, {"Content-Length": "-8"}, 400, "Content-Length is not a number"),
        ("POST", "/ocr", PNG, {"Transfer-Encoding": "chunked"}, 411, "in one piece"),
        ("POST", "/health", PNG, {}, 405, "/health takes GET only"),
        ("GET", "/ocr", None, {}, 405, "/ocr takes POST only"),
        ("GET", "/", None, {}, 404, "POST /ocr, GET /health, GET /device, GET /version"),
        ("DELETE", "/ocr", None, {}, 501, "DELETE"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_bad_request_is_refused_in_one_line(
    serve: Serve, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int, words: str
) -> None:
    got, answer = call(serve(replace(NO_DEVICE, max_bytes=1000)), method, path, body, headers)
    assert got == status
    assert words in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.usefixtures("home")
def test_requests_that_are_no_http_or_end_early_are_refused_as_well(serve: Serve) -> None:
    served = serve()
    line, answer = raw(served, b"POST /ocr HTTP/1.1\r\nContent-Length: 100\r\n\r\n" + PNG)
    assert "400" in line
    assert answer["error"] == "the image ended after 8 of 100 bytes"
    line, answer = raw(served, b"POST /ocr HTTP/1.1\r\n\r\n")
    assert ("411" in line, answer["error"]) == (True, "Content-Length is missing")
    line, answer = raw(served, b"what is this nonsense\r\n\r\n")
    assert ("400" in line, list(answer)) == (True, ["error"])


def test_no_more_processes_run_than_the_settings_allow(serve: Serve, home: Path) -> None:
    served = serve(replace(NO_DEVICE, workers=2))
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(call(served, "POST", "/ocr", PNG + b"slow")[0])) for _number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [200] * 6
    counts = [int(line) for line in (home / "most").read_text(encoding="utf-8").split()]
    assert len(counts) == 6
    assert max(counts) == 2


@pytest.mark.usefixtures("home")
def test_an_image_that_takes_too_long_gets_an_answer_and_leaves_no_process(serve: Serve) -> None:
    served = serve(replace(NO_DEVICE, seconds=1))
    status, answer = call(served, "POST", "/ocr", PNG + b"endless")
    assert (status, answer["error"]) == (503, "tesseract did not end within 1 s")
    assert call(served, "POST", "/ocr", PNG)[0] == 200


def test_health_says_what_is_missing(serve: Serve, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    assert call(served, "GET", "/health") == (200, {"languages": ["eng", "chi_tra"], "device": {"kind": "none"}})
    (home / "languages").write_text("List of available languages (1):\neng\n", encoding="utf-8")
    assert call(served, "GET", "/health") == (503, {"error": "tesseract has no model for chi_tra"})
    (home / "tesseract").unlink()
    monkeypatch.setenv("PATH", str(home))
    assert call(serve(), "GET", "/health") == (503, {"error": "tesseract does not start: No such file or directory"})


def test_health_may_believe_for_a_while_what_it_saw(serve: Serve, home: Path) -> None:
    patient, eager = serve(replace(NO_DEVICE, check_seconds=1)), serve()
    assert call(patient, "GET", "/health")[0] == call(eager, "GET", "/health")[0] == 200
    (home / "languages").write_text("List of available languages (1):\neng\n", encoding="utf-8")
    assert call(patient, "GET", "/health")[0] == 200
    assert call(eager, "GET", "/health")[0] == 503
    time.sleep(1.1)
    assert call(patient, "GET", "/health")[0] == 503


@pytest.mark.usefixtures("home")
def test_exactly_one_slice_is_wanted_and_named(serve: Serve, fleet_host: MakeHost) -> None:
    fleet_host("h100-80gb")
    served = serve(replace(NO_DEVICE, device="slice"))
    whole = serve(replace(NO_DEVICE, device="gpu"))
    assert call(served, "GET", "/health") == (503, {"error": "exactly one GPU slice must be visible, and there are 0"})
    status, answer = call(whole, "GET", "/health")
    assert (status, answer["device"]["kind"]) == (200, "gpu")
    made = slices_of(1)
    status, answer = call(served, "POST", "/ocr", PNG)
    assert status == 200
    assert answer["device"]["uuid"] == made[0]
    assert set(answer["device"]) == {"kind", "uuid", "gpu", "gpu_instance", "compute_instance", "memory_mib"}
    assert 4000 < answer["device"]["memory_mib"] < 10240
    assert call(whole, "GET", "/health")[0] == 503
    made += slices_of(1)
    for method, path, body in (("GET", "/health", None), ("POST", "/ocr", PNG)):
        status, answer = call(served, method, path, body)
        assert status == 503
        assert answer["error"] == f"exactly one GPU slice must be visible, and there are 2: {', '.join(made)}"


def slices_of(more: int) -> list[str]:
    """Makes slices of the smallest profile on the first GPU; the UUIDs of those that were made."""
    with simulator_world.nvml_open():
        gpu = simulator_world.gpu()
        if not pynvml.nvmlDeviceGetMigMode(gpu)[0]:
            simulator_world.enable_mig()
        smallest = simulator_world.profiles(gpu)["1g.10gb"].id
        made = [simulator_world.create(gpu, smallest) for _number in range(more)]
        for instance in made:
            simulator_world.compute(instance)
        return [simulator_world.uuid_of(simulator_world.compute_instances(instance, 0)[0]) for instance in made]


@pytest.mark.usefixtures("home")
def test_a_second_gpu_is_one_too_many(serve: Serve, fleet_host: MakeHost) -> None:
    fleet_host("h100-80gb:2")
    slices_of(1)
    status, answer = call(serve(replace(NO_DEVICE, device="slice")), "GET", "/health")
    assert status == 503
    assert answer["error"].startswith("exactly one GPU must be visible, and there are 2: GPU-")


@pytest.mark.usefixtures("home")
def test_a_broken_driver_is_said_in_nvmls_word(serve: Serve, fleet_host: MakeHost) -> None:
    fleet_host("h100-80gb").simctl("fail", "--call", "nvmlInit", "--nth", "1", "--error", "DRIVER_NOT_LOADED", "--always")
    status, answer = call(serve(replace(NO_DEVICE, device="slice")), "GET", "/health")
    assert (status, answer["error"]) == (503, "nvmlInit_v2: Driver Not Loaded")


@pytest.mark.usefixtures("home")
def test_the_device_answer_always_comes_with_nodes_and_problem(serve: Serve, fleet_host: MakeHost, tmp_path: Path) -> None:
    fleet_host("h100-80gb")
    nodes = tmp_path / "dev"
    (nodes / "nvidia-caps").mkdir(parents=True)
    links = {"nvidia0": "/dev/null", "nvidia-caps/nvidia-cap30": "/dev/zero", "nvidia-gone": "nowhere", "null": "/dev/null"}
    for name, target in links.items():
        (nodes / name).symlink_to(target)
    (nodes / "nvidia-file").touch()
    status, answer = call(serve(replace(NO_DEVICE, device="slice", dev=str(nodes))), "GET", "/device")
    assert status == 200
    assert [(node["path"], node["major"], node["minor"]) for node in answer["nodes"]] == [
        (str(nodes / "nvidia0"), 1, 3),
        (str(nodes / "nvidia-caps/nvidia-cap30"), 1, 5),
    ]
    assert answer["gpus"][0]["slices"] == []
    assert answer["problem"] == "exactly one GPU slice must be visible, and there are 0"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OCR_DEVICE", "some", "'some' is none of slice, gpu, none"),
        ("OCR_LANGUAGES", "eng+", "is not a list of tesseract's models"),
        ("OCR_LANGUAGES", "eng+../x", "is not a list of tesseract's models"),
        ("OCR_WORKERS", "0", "not a whole number from 1 to 64"),
        ("OCR_PORT", "70000", "not a whole number from 1 to 65535"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: ") as refused:
        service.Settings.read({name: value})
    assert words in str(refused.value)


@pytest.mark.parametrize(("body", "code", "within"), [(PNG + b"slow", 200, 15.0), (PNG + b"endless", 503, 15.0)])
def test_sigterm_ends_the_program_and_lets_work_in_progress_finish(home: Path, body: bytes, code: int, within: float) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "OCR_PORT": str(port), "OCR_DEVICE": "none", "OCR_GRACE_SECONDS": "2"}
    program = subprocess.Popen([sys.executable, service.__file__], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline().startswith(f"ocr: port {port}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/ocr", body)
        deadline = time.monotonic() + 10
        while not (home / "most").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        started = time.monotonic()
        program.send_signal(signal.SIGTERM)
        assert connection.getresponse().status == code
        connection.close()
        _out, err = program.communicate(timeout=20)
        assert program.returncode == 0
        assert time.monotonic() - started < within
        assert "Traceback" not in err
    finally:
        program.kill()
        program.communicate()


@pytest.fixture
def release2(home: Path) -> t.Iterator[t.Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Runs version 2 as its image does: the process and its address."""
    started: list[subprocess.Popen[str]] = []

    def start(**environment: str) -> tuple[subprocess.Popen[str], str]:
        port = str(guest.free_ports(1)[0])
        process = subprocess.Popen(
            [sys.executable, "-B", str(build.SECOND)],
            env={"PATH": f"{home}:{os.environ['PATH']}", "OCR_PORT": port, "OCR_DEVICE": "none", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"ocr: port {port}")
        return process, f"127.0.0.1:{port}"

    yield start
    for process in started:
        process.kill()
        process.communicate()


def get(address: str, path: str, body: bytes | None = None) -> tuple[int, str | None, dict[str, t.Any]]:
    """Status, version in the header, answer."""
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("POST" if body else "GET", path, body)
    answer = connection.getresponse()
    found = answer.status, answer.getheader("X-Ocr-Version"), json.loads(answer.read())
    connection.close()
    return found


Release2 = t.Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.mark.usefixtures("home")
def test_versions_tell_themselves_apart_in_header_version_and_text(serve: Serve, release2: Release2) -> None:
    one = f"127.0.0.1:{serve().server_port}"
    _process, two = release2()
    assert get(one, "/version") == (200, "1", {"version": 1, "device": None})
    assert get(two, "/version") == (200, "2", {"version": 2, "device": None})
    assert "text" in get(one, "/ocr", PNG)[2]
    status, header, answer = get(two, "/ocr", PNG)
    assert (status, header, answer["version"]) == (200, "2", 2)
    assert answer["lines"] == ["stdin stdout -l eng+chi_tra --psm 6 1"]
    assert "text" not in answer
    assert ask.ask(f"http://{two}", PNG)["text"] == ask.ask(f"http://{one}", PNG)["text"], "asking reads both"
    assert get(two, "/nothing")[:2] == (404, "2")


def test_a_version_that_never_gets_healthy_says_so_and_serves(release2: Release2) -> None:
    _process, address = release2(OCR_FAULT="never-healthy")
    assert get(address, "/health")[0] == 503
    assert get(address, "/version")[0] == 200


def test_a_version_that_crashes_was_healthy_before_and_has_last_words(release2: Release2) -> None:
    process, address = release2(OCR_FAULT="crash", OCR_FAULT_SECONDS="0.5")
    time.sleep(1)
    assert process.poll() is None, "it waits until it was healthy"
    assert get(address, "/health")[0] == 200
    _out, err = process.communicate(timeout=20)
    assert process.returncode == 3
    assert err.splitlines()[-1] == "ocr: version 2 was built so that it crashes after it was healthy"


@pytest.mark.usefixtures("home")
def test_the_version_says_which_slice_answers(serve: Serve, fleet_host: MakeHost) -> None:
    fleet_host("h100-80gb")
    served = serve(replace(NO_DEVICE, device="slice"))
    assert call(served, "GET", "/version")[0] == 503
    (made,) = slices_of(1)
    assert call(served, "GET", "/version") == (200, {"version": 1, "device": made})


def test_a_program_with_a_bad_setting_ends_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, service.__file__], env={**os.environ, "OCR_PORT": "x"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "ocr: OCR_PORT: 'x' is not a whole number from 1 to 65535\n")


# --- receipts --------------------------------------------------------------------------------------------------------

needs_font = pytest.mark.skipif(not receipt.FONT.exists(), reason=f"{receipt.FONT} is missing: apt-get install {receipt.PACKAGE}")
PAPER = receipt.Receipt(b"", (), ("PEACE CLINIC", "掛號費", "總計"), ("120", "2026-05-01", "120", "1200"))
READING = "PEACE  CLINIC\n２０２６-05-01\n掛 號 費 120\n總計 １２００\nTotal 120"


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (READING, []),
        (READING.replace("\n", "\r\n").upper(), []),
        (READING.replace("費", "费"), ["掛號費"]),
        (READING.replace("１２００", "1200.5"), ["1200"]),
        (READING.replace("１２００", "1 200"), ["1200"]),
        (READING.replace("Total 120", "Total 1Z0"), ["120"]),
        (READING.replace("-05-", "-06-"), ["2026-05-01"]),
        ("", ["PEACE CLINIC", "掛號費", "總計", "120", "2026-05-01", "1200"]),
    ],
)
def test_a_reading_may_differ_in_spaces_and_width_but_not_in_words_and_amounts(text: str, lost: list[str]) -> None:
    assert receipt.missing(text, PAPER) == lost


@needs_font
def test_a_receipt_is_the_same_for_a_seed_and_another_for_the_next() -> None:
    one, again, other = receipt.render(1), receipt.render(1), receipt.render(2)
    assert one == again
    assert one.png.startswith(PNG)
    assert set(one.amounts) != set(other.amounts)
    assert receipt.missing("\n".join(one.lines), one) == []
    assert receipt.missing("\n".join(other.lines), one)
    items = [int(line.rsplit(" ", 1)[1]) for line in one.lines[4:]]
    assert items[-1] == items[-2] == sum(items[:-2])


def test_a_missing_font_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="apt-get install fonts-wqy-zenhei"):
        receipt.render(1, font=tmp_path / "none.ttc")


@pytest.mark.usefixtures("home")
def test_asking_gives_the_text_or_the_services_own_reason(serve: Serve) -> None:
    address = f"http://127.0.0.1:{serve().server_port}"
    assert ask.ask(address, PNG)["text"].startswith("stdin stdout")
    with pytest.raises(LabError, match=r"answers 415: this is neither PNG nor JPEG nor TIFF$"):
        ask.ask(address, b"text")
    with pytest.raises(LabError, match="does not answer"):
        ask.ask("http://127.0.0.1:1", PNG)


# --- the image -------------------------------------------------------------------------------------------------------

# In place of mmdebstrap: a tar with one file, or the end that the environment asks for.
MMDEBSTRAP = """#!{python}
import io, os, sys, tarfile
if os.environ.get("ENDS"):
    sys.exit(os.environ["ENDS"])
assert os.environ["SOURCE_DATE_EPOCH"]
with tarfile.open(sys.argv[-2 if sys.argv[-1].startswith("deb ") else -1], "w") as tar:
    tar.addfile(tarfile.TarInfo("usr/bin/tesseract"), io.BytesIO(b""))
"""


@pytest.fixture
def mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "bin"
    place.mkdir()
    (place / "mmdebstrap").write_text(MMDEBSTRAP.format(python=sys.executable), encoding="utf-8")
    (place / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(build, "PATHS", os.environ["PATH"])
    return place / "mmdebstrap"


MIRROR = Mirror("http://mirror.example/debian")


@pytest.mark.usefixtures("mmdebstrap")
def test_the_archive_is_an_oci_layout_whose_digests_hold(tmp_path: Path) -> None:
    said: list[str] = []
    archive = build.build(tmp_path / "images", MIRROR, said.append)
    with tarfile.open(archive) as tar:
        blobs = {member.name: read(tar, member) for member in tar}
    for name, blob in blobs.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"
    found = {}
    for described in json.loads(blobs["index.json"])["manifests"]:
        manifest = json.loads(blobs[f"blobs/{described['digest'].replace(':', '/')}"])
        config = json.loads(blobs[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
        plain = [
            hashlib.sha256(gzip.decompress(blobs[f"blobs/{layer['digest'].replace(':', '/')}"])).hexdigest() for layer in manifest["layers"]
        ]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}" for digest in plain]
        assert config["config"]["User"] == "65534:65534"
        assert config["config"]["ExposedPorts"] == {"8080/tcp": {}}
        found[described["annotations"]["org.opencontainers.image.ref.name"]] = (plain, config["config"])
    assert list(found) == ["lab", "two", "never-healthy", "crashing"]
    assert found["lab"][1]["Entrypoint"][-1] == "/usr/lib/ocr/service.py"
    first, second = found["two"][0]
    assert (found["lab"][0], found["crashing"][0]) == ([first], [first, second]), "they share the layer that is large"
    assert all(found[tag][1]["Entrypoint"][-1] == "/usr/lib/ocr/release2.py" for tag in ("two", "never-healthy", "crashing"))
    assert "OCR_FAULT=crash" in found["crashing"][1]["Env"]
    assert said == ["building the OCR image (1 min)"]


def read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def test_the_same_recipe_is_built_once_and_gives_the_same_bytes(tmp_path: Path, mmdebstrap: Path) -> None:
    first = build.build(tmp_path / "one", MIRROR, print)
    second = build.build(tmp_path / "two", MIRROR, print)
    assert first.read_bytes() == second.read_bytes()
    mmdebstrap.write_text("#!/bin/false\n", encoding="utf-8")
    assert build.build(tmp_path / "one", MIRROR, print) == first


@pytest.mark.usefixtures("mmdebstrap")
@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ("I: starting\nE: Unable to locate package dash\nE: mmdebstrap failed to run", "E: Unable to locate package dash (log: "),
        ("tar: x: Cannot write: No space left on device\nE: mmdebstrap failed to run", "Cannot write: No space left on device (log: "),
        ("killed", "mmdebstrap ended with 1: killed (log: "),
    ],
)
def test_a_build_that_fails_says_why_and_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, words: str
) -> None:
    monkeypatch.setenv("ENDS", ends)
    with pytest.raises(LabError) as refused:
        build.build(tmp_path / "images", MIRROR, print)
    assert str(refused.value).startswith("building the OCR image: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["ocr-mmdebstrap.log"]


@pytest.mark.usefixtures("mmdebstrap")
def test_too_little_disk_is_said_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(10**9, 10**9, 5 * 2**20))
    with pytest.raises(LabError, match=r"needs 600 MiB of free disk .* and 5 MiB are free"):
        build.build(tmp_path / "images", MIRROR, print)


def test_a_registry_that_is_not_there_is_named(tmp_path: Path) -> None:
    if not shutil.which("skopeo"):
        pytest.skip("skopeo is missing: apt-get install skopeo")
    with pytest.raises(LabError, match=r"^pushing the OCR image to 127.0.0.1:1: skopeo ended with"):
        build.push(tmp_path / "none.tar", "127.0.0.1:1", "ocr", "lab")
