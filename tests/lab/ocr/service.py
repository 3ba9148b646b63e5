# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads text out of images over HTTP, beside exactly one GPU slice. It needs the standard library and tesseract, nothing else.

``POST /ocr[?lang=eng+chi_tra]`` takes a PNG, JPEG or TIFF and answers ``{"text", "seconds", "languages", "device"}``;
``GET /health`` is 200 only when it could do that; ``GET /device`` says what NVML and /dev show of GPUs; ``GET /version``, which costs next
to nothing, says which version answers from which device. Each answer names the version in a header as well.
A refusal is ``{"error": one line}``.
The environment sets everything, see :class:`Settings`; it needs no file system to write to.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socketserver
import stat
import subprocess
import sys
import threading
import time
import typing as t
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Data = dict[str, t.Any]

LIBRARY = "libnvidia-ml.so.1"
# nvml.h: what a call returns, and the room that NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE ask for.
NOT_SUPPORTED, NOT_FOUND = 3, 6
UUID_ROOM = NAME_ROOM = 96
MIB = 2**20
# Anything else tesseract would take for a list of files to read.
IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\x00", b"MM\x00*")
PATHS = {"/ocr": "POST", "/health": "GET", "/device": "GET", "/version": "GET"}
# What is asked all the time and went well is no line of the log.
QUIET = ("/health", "/version")
VERSION_HEADER = "X-Ocr-Version"
QUESTION_SECONDS = 30  # for tesseract's list of languages: long, because an emulated processor is slow


class Refusal(Exception):
    """An answer other than 200: HTTP status and one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Settings:
    """What the environment sets.

    ``OCR_PORT``; ``OCR_LANGUAGES``: tesseract's models, joined by ``+``; ``OCR_DEVICE``: ``slice`` (exactly one MIG device, no GPU beside
    its own), ``gpu`` (exactly one, without slices) or ``none``; ``OCR_WORKERS``: tesseract processes at a time; ``OCR_MAX_BYTES``:
    largest image; ``OCR_SECONDS``: for waiting and for one image; ``OCR_GRACE_SECONDS``: for work in progress at SIGTERM;
    ``OCR_DEV``: where nodes are; ``OCR_CHECK_SECONDS``: for how long ``/health`` believes that tesseract still has its models, which costs
    a process to ask.
    """

    port: int = 8080
    languages: tuple[str, ...] = ("eng", "chi_tra")
    device: str = "slice"
    workers: int = 1
    max_bytes: int = 10 * MIB
    seconds: int = 240
    grace_seconds: int = 8  # docker stop waits 10 s before it kills
    dev: str = "/dev"
    check_seconds: int = 0

    @classmethod
    def read(cls, environment: t.Mapping[str, str]) -> Settings:
        """ValueError in one line, with the variable, when a value cannot be meant."""
        kept = cls()
        languages = tuple(environment.get("OCR_LANGUAGES", "+".join(kept.languages)).split("+"))
        if not all(re.fullmatch(r"[A-Za-z0-9_]+", language) for language in languages) or len(set(languages)) != len(languages):
            raise ValueError(f"OCR_LANGUAGES: {'+'.join(languages)!r} is not a list of tesseract's models such as eng+chi_tra")
        device = environment.get("OCR_DEVICE", kept.device)
        if device not in ("slice", "gpu", "none"):
            raise ValueError(f"OCR_DEVICE: {device!r} is none of slice, gpu, none")

        def number(name: str, default: int, most: int = 2**40, least: int = 1) -> int:
            text = environment.get(name, str(default))
            if not re.fullmatch(r"[0-9]{1,13}", text) or not least <= int(text) <= most:
                raise ValueError(f"{name}: {text!r} is not a whole number from {least} to {most}")
            return int(text)

        return cls(
            port=number("OCR_PORT", kept.port, 65535),
            languages=languages,
            device=device,
            workers=number("OCR_WORKERS", kept.workers, 64),
            max_bytes=number("OCR_MAX_BYTES", kept.max_bytes),
            seconds=number("OCR_SECONDS", kept.seconds),
            grace_seconds=number("OCR_GRACE_SECONDS", kept.grace_seconds),
            dev=environment.get("OCR_DEV", kept.dev),
            check_seconds=number("OCR_CHECK_SECONDS", kept.check_seconds, 3600, least=0),
        )


# --- the GPU ---------------------------------------------------------------------------------------------------------


class _Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_: t.ClassVar = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


_ONE_AT_A_TIME = threading.Lock()


def read_gpus() -> list[Data]:
    """What NVML shows of GPUs, each with its ``slices``; asked anew each time, as they come and go. Refusal 503 when NVML does not work."""
    with _ONE_AT_A_TIME:
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise Refusal(503, f"no GPU can be seen: {error}") from error
        _call(library, "nvmlInit_v2")
        try:
            count = ctypes.c_uint()
            _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
            return [_gpu(library, index) for index in range(count.value)]
        finally:
            library.nvmlShutdown()


def _call(library: ctypes.CDLL, name: str, *arguments: t.Any, accepted: tuple[int, ...] = ()) -> bool:
    """True when NVML did it; False when it answered one of ``accepted``; else Refusal 503 with NVML's word."""
    try:
        code = int(getattr(library, name)(*arguments))
        if code == 0 or code in accepted:
            return code == 0
        library.nvmlErrorString.restype = ctypes.c_char_p
        word = library.nvmlErrorString(code).decode(errors="replace")
    except AttributeError as error:
        raise Refusal(503, f"{LIBRARY} is no NVML: {error}") from error
    raise Refusal(503, f"{name}: {word}")


def _text(library: ctypes.CDLL, name: str, device: ctypes.c_void_p, room: int) -> str:
    found = ctypes.create_string_buffer(room)
    _call(library, name, device, found, ctypes.c_uint(room))
    return found.value.decode(errors="replace")


def _number(library: ctypes.CDLL, name: str, device: ctypes.c_void_p, accepted: tuple[int, ...] = ()) -> int:
    found = ctypes.c_uint()
    return found.value if _call(library, name, device, ctypes.byref(found), accepted=accepted) else 0


def _memory(library: ctypes.CDLL, device: ctypes.c_void_p) -> int | None:
    """MiB; None where NVML does not say."""
    found = _Memory()
    return (
        int(found.total) // MIB
        if _call(library, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(found), accepted=(NOT_SUPPORTED,))
        else None
    )


def _gpu(library: ctypes.CDLL, index: int) -> Data:
    gpu = ctypes.c_void_p()
    _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(gpu))
    slices = []
    for number in range(_number(library, "nvmlDeviceGetMaxMigDeviceCount", gpu, accepted=(NOT_SUPPORTED,))):
        device = ctypes.c_void_p()
        # The numbers have gaps, where no slice is.
        if _call(library, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, ctypes.c_uint(number), ctypes.byref(device), accepted=(NOT_FOUND,)):
            slices.append(
                {
                    "uuid": _text(library, "nvmlDeviceGetUUID", device, UUID_ROOM),
                    "gpu_instance": _number(library, "nvmlDeviceGetGpuInstanceId", device),
                    "compute_instance": _number(library, "nvmlDeviceGetComputeInstanceId", device),
                    "memory_mib": _memory(library, device),
                }
            )
    return {
        "uuid": _text(library, "nvmlDeviceGetUUID", gpu, UUID_ROOM),
        "name": _text(library, "nvmlDeviceGetName", gpu, NAME_ROOM),
        "memory_mib": _memory(library, gpu),
        "slices": slices,
    }


def chosen_device(rule: str, gpus: list[Data]) -> Data:
    """The one device that ``rule`` (``slice``, ``gpu``) allows. Refusal 503 that says how many there are instead."""
    slices = [{"kind": "slice", **one, "gpu": gpu["uuid"]} for gpu in gpus for one in gpu["slices"]]
    if len(gpus) != 1:
        raise Refusal(503, f"exactly one GPU must be visible, and there are {len(gpus)}{_named(gpus)}")
    if rule == "slice":
        if len(slices) != 1:
            raise Refusal(503, f"exactly one GPU slice must be visible, and there are {len(slices)}{_named(slices)}")
        return slices[0]
    if slices:
        raise Refusal(503, f"a GPU without slices must be visible, and this one has {len(slices)}{_named(slices)}")
    return {"kind": "gpu", **{key: value for key, value in gpus[0].items() if key != "slices"}}


def _named(devices: list[Data]) -> str:
    return f": {', '.join(one['uuid'] for one in devices)}" if devices else ""


def read_nodes(dev: str) -> list[Data]:
    """The character devices ``nvidia*`` below ``dev``, also in folders of that name, with major and minor number."""
    found = []
    for path in sorted(Path(dev).glob("nvidia*")) + sorted(Path(dev).glob("nvidia*/*")):
        try:
            status = path.stat()
        except OSError:
            continue  # a link to nowhere is no device
        if stat.S_ISCHR(status.st_mode):
            found.append({"path": str(path), "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)})
    return found


# --- the text --------------------------------------------------------------------------------------------------------


class Reader:
    """Runs tesseract, no more processes at a time than the settings allow."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._places = threading.BoundedSemaphore(settings.workers)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._checked: float | None = None
        # One thread a process: several fight over the same processors. Bytes out are UTF-8 whatever the image's locale is.
        self._environment = {**os.environ, "OMP_THREAD_LIMIT": "1", "LC_ALL": "C.UTF-8"}

    def installed(self) -> set[str]:
        """The models that tesseract has. Refusal 503 when it does not run."""
        status, out, err = self._run(["--list-langs"], b"", QUESTION_SECONDS)
        if status != 0:
            raise Refusal(503, f"tesseract does not run: {_last_line(err)}")
        # The first line is a title; releases differ in where they write the list.
        return set((out + b"\n" + err).decode(errors="replace").split())

    def check(self) -> None:
        """Refusal 503 when a model that the settings name is not there."""
        if self._checked is not None and time.monotonic() - self._checked < self._settings.check_seconds:
            return
        if missing := sorted(set(self._settings.languages) - self.installed()):
            raise Refusal(503, f"tesseract has no model for {', '.join(missing)}")
        self._checked = time.monotonic()

    def read(self, image: bytes, languages: t.Sequence[str]) -> str:
        """The text of an image. Refusal when it is none, when it takes too long, or when no place gets free in time."""
        if not self._places.acquire(timeout=self._settings.seconds):
            raise Refusal(503, f"busy: no place among {self._settings.workers} got free within {self._settings.seconds} s")
        try:
            # A receipt is one block of lines (--psm 6); columns are not to be torn apart.
            argv = ["stdin", "stdout", "-l", "+".join(languages), "--psm", "6"]
            status, out, err = self._run(argv, image, self._settings.seconds)
        finally:
            self._places.release()
        if status < 0:
            raise Refusal(503, f"tesseract was ended by signal {-status}")
        if status != 0:
            raise Refusal(400, f"tesseract cannot read this image: {_last_line(err)}")
        return out.decode(errors="replace").strip("\f\n ")

    def _run(self, argv: list[str], given: bytes, seconds: float) -> tuple[int, bytes, bytes]:
        try:
            process = subprocess.Popen(
                ["tesseract", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment
            )
        except OSError as error:
            raise Refusal(503, f"tesseract does not start: {error.strerror}") from error
        self._running.add(process)
        try:
            out, err = process.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise Refusal(503, f"tesseract did not end within {seconds:.0f} s") from error
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
            self._running.discard(process)
        return process.returncode, out, err

    def kill(self) -> None:
        """Ends every tesseract at once."""
        for process in list(self._running):
            process.kill()


def _last_line(said: bytes) -> str:
    lines = [" ".join(line.split()) for line in said.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it does not say why"


# --- HTTP ------------------------------------------------------------------------------------------------------------


class Service(ThreadingHTTPServer):
    """The HTTP server; ``idle()`` waits for work in progress."""

    daemon_threads = True  # connections that clients keep open must not hold up the end
    request_queue_size = 64

    def __init__(self, settings: Settings, host: str = "0.0.0.0", handler: type[Handler] | None = None) -> None:
        self.settings = settings
        self.own: Data | None = None
        self.reader = Reader(settings)
        self.busy = 0
        self.changed = threading.Condition()
        super().__init__((host, settings.port), handler or Handler)

    def server_bind(self) -> None:
        """Binds without asking a name server who we are: the library's own way hangs where there is none."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "ocr", int(self.server_address[1])

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:  # noqa: ARG002 - the library's signature
        """A client that went away is no event; anything else is one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(f"{client_address[0]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def device(self) -> Data:
        """The device that this service may use; Refusal 503 when that is not as set."""
        rule = self.settings.device
        return {"kind": "none"} if rule == "none" else chosen_device(rule, read_gpus())

    def known_device(self) -> Data:
        """The same, read once: which nodes a container has does not change while it runs."""
        if self.own is None:
            self.own = self.device()
        return self.own

    def idle(self, seconds: float) -> bool:
        """Waits until no request is in work; False when that took longer than ``seconds``."""
        with self.changed:
            return self.changed.wait_for(lambda: self.busy == 0, timeout=seconds)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Service
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # a line that is no request gets an answer with a status all the same
    server_version = "ocr"
    sys_version = ""
    timeout = 30  # seconds that a client may say nothing
    version = 1

    def do_GET(self) -> None:
        """``/health``, ``/device`` and ``/version``."""
        self._work()

    def do_POST(self) -> None:
        """``/ocr``."""
        self._work()

    def _work(self) -> None:
        with self.server.changed:
            self.server.busy += 1
        try:
            self._reply(200, self._answer())
        except Refusal as refusal:
            self._reply(refusal.status, {"error": refusal.reason})
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            self.log_error("%s: %s", type(error).__name__, error)
            self._reply(500, {"error": "internal error, see the service's log"})
        finally:
            with self.server.changed:
                self.server.busy -= 1
                self.server.changed.notify_all()

    def _answer(self) -> Data:
        url = urllib.parse.urlsplit(self.path)
        method = PATHS.get(url.path)
        if self.command == "POST" and url.path != "/ocr":
            self.close_connection = True  # the body stays unread
        if method is None:
            raise Refusal(404, f"there is nothing here: {', '.join(f'{verb} {path}' for path, verb in PATHS.items())}")
        if method != self.command:
            raise Refusal(405, f"{url.path} takes {method} only")
        if url.path == "/health":
            self.server.reader.check()
            return {"languages": list(self.server.settings.languages), "device": self.server.device()}
        if url.path == "/device":
            return self._device()
        if url.path == "/version":
            return {"version": self.version, "device": self.server.known_device().get("uuid")}
        image = self._image()
        languages = self._languages(url.query)
        device = self.server.device()
        started = time.monotonic()
        text = self.server.reader.read(image, languages)
        return {"text": text, "seconds": round(time.monotonic() - started, 3), "languages": languages, "device": device}

    def _device(self) -> Data:
        """Always an answer: it is asked when something is wrong."""
        seen: Data = {"rule": self.server.settings.device, "gpus": [], "problem": None}
        try:
            seen["gpus"] = read_gpus()
            if seen["rule"] != "none":
                chosen_device(seen["rule"], seen["gpus"])
        except Refusal as refusal:
            seen["problem"] = None if seen["rule"] == "none" else refusal.reason
        return {**seen, "nodes": read_nodes(self.server.settings.dev)}

    def _languages(self, query: str) -> list[str]:
        known = self.server.settings.languages
        asked = urllib.parse.parse_qs(query, keep_blank_values=True)
        if not set(asked) <= {"lang"} or len(asked.get("lang", [])) > 1:
            raise Refusal(400, "the only parameter is lang, once, as in /ocr?lang=eng+chi_tra")
        # A plus in a query means a space.
        languages = asked["lang"][0].replace("+", " ").split(" ") if asked else list(known)
        if not set(languages) <= set(known) or len(set(languages)) != len(languages):
            raise Refusal(400, f"lang: what is not one or more of {', '.join(known)}, each once, cannot be read")
        return languages

    def _image(self) -> bytes:
        """The body. A refusal before it is read closes the connection, as what follows would be taken for a request."""
        self.close_connection = True
        if self.headers.get("Transfer-Encoding"):
            raise Refusal(411, "send the image in one piece, with Content-Length")
        text = self.headers.get("Content-Length")
        if text is None:
            raise Refusal(411, "Content-Length is missing")
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
            raise Refusal(400, "Content-Length is not a number of bytes")
        length, most = int(text), self.server.settings.max_bytes
        if length > most:
            self._discard(min(length, 4 * most))
            raise Refusal(413, f"the image has {length} bytes, and at most {most} are read")
        body = self.rfile.read(length)
        if len(body) < length:
            raise Refusal(400, f"the image ended after {len(body)} of {length} bytes")
        self.close_connection = False
        if not body:
            raise Refusal(400, "the body is empty: send an image")
        kind = self.headers.get_content_type() if self.headers.get("Content-Type") else "application/octet-stream"
        if kind != "application/octet-stream" and not kind.startswith("image/"):
            raise Refusal(415, "send the image itself as the body, with Content-Type image/png, image/jpeg or image/tiff")
        if not body.startswith(IMAGES):
            raise Refusal(415, "this is neither PNG nor JPEG nor TIFF")
        return body

    def _discard(self, length: int) -> None:
        """Reads what a client is still sending: it would not read the answer before."""
        while length > 0 and (part := self.rfile.read(min(length, MIB))):
            length -= len(part)

    def _reply(self, status: int, answer: Data) -> None:
        body = json.dumps(answer, ensure_ascii=False).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header(VERSION_HEADER, str(self.version))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses by itself (a bad request line, a method that nothing has) in the same form as our own refusals."""
        self.close_connection = True
        self._reply(code, {"error": message or explain or self.responses[code][0]})

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """One line a request; a health check that went well is none."""
        # A request whose first line was refused has no path.
        if code != 200 or getattr(self, "path", "") not in QUIET:
            super().log_request(code, size)


def serve(service: Service) -> None:
    """Serves until ``shutdown()``, then gives work in progress its time and ends what is left."""
    try:
        service.serve_forever()
    finally:
        service.server_close()
        if not service.idle(service.settings.grace_seconds):
            service.reader.kill()
            service.idle(1)


def main(environment: t.Mapping[str, str], handler: type[Handler] = Handler) -> int:
    """The program; exit status 2 with one line for a setting that cannot be meant."""
    try:
        service = Service(Settings.read(environment), handler=handler)
    except (ValueError, OSError) as error:
        print(f"ocr: {error}", file=sys.stderr)
        return 2

    def stop(_number: int, _frame: object) -> None:
        # Process number 1 gets no default action for a signal: without this, docker stop waits and kills. shutdown() blocks its caller.
        threading.Thread(target=service.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(f"ocr: port {service.server_port}, {'+'.join(service.settings.languages)}, device {service.settings.device}", flush=True)
    serve(service)
    print("ocr: stopped", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
