# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pictures of a local HTML page, taken by a headless Chromium: light, dark, narrow, print; and what the page asked the network for.

    python tests/tools/screenshot.py build/demo/reports/report.html build/screenshots

The browser is driven through its debugging pipe (file descriptors 3 and 4), so nothing but the standard library is needed, the
window can be narrower than a desktop allows, and ``prefers-color-scheme`` is what the page really sees.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import typing as t
import zlib
from dataclasses import dataclass
from pathlib import Path

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--font-render-hinting=none",
    "--remote-debugging-pipe",
)


@dataclass(frozen=True)
class View:
    """How the page is looked at. ``width`` in CSS pixels; ``scheme`` light or dark; ``media`` screen or print."""

    name: str
    width: int
    scheme: str = "light"
    media: str = "screen"


VIEWS = (
    View("light", 1360),
    View("dark", 1360, "dark"),
    View("narrow", 390),
    View("narrow-dark", 390, "dark"),
    View("print", 794, media="print"),
)


class Browser:
    """One headless Chromium with one page, for the length of a ``with`` block."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="gpuops-chromium-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def connect() -> None:
            # the browser's fixed descriptors; copies first, as 3 and 4 may be the very ones that are moved
            source, sink = os.dup(to_browser), os.dup(from_browser)
            os.dup2(source, 3)
            os.dup2(sink, 4)

        command = [program, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=connect, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, t.Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._session = None
            self.call("Browser.close")
        except ConnectionError:
            pass
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def _message(self) -> dict[str, t.Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 20)
            if not data:
                raise ConnectionError("the browser has ended")
            self._buffer += data
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, t.Any] = json.loads(text)
        return message

    def call(self, method: str, **params: t.Any) -> dict[str, t.Any]:
        """One command of the DevTools protocol; its result. :raises RuntimeError: the browser refuses it."""
        self._number += 1
        command: dict[str, t.Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                result: dict[str, t.Any] = message["result"]
                return result
            self.events.append(message)

    def wait(self, event: str) -> None:
        """Until an event of this name comes; at once when it has come since the last wait."""
        while not any(message.get("method") == event for message in self.events):
            self.events.append(self._message())
        self.events = [message for message in self.events if message.get("method") != event]

    def evaluate(self, expression: str) -> t.Any:
        """Value of a JavaScript expression on the page, run by the debugger: a page that forbids scripts still answers."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def show(self, page: Path, view: View) -> list[str]:
        """Load a page as a view; the addresses it asked for, its own left out."""
        self.call("Page.enable")
        self.call("Network.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=view.width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media=view.media, features=[{"name": "prefers-color-scheme", "value": view.scheme}])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        asked: list[str] = []
        while not any(message.get("method") == "Page.loadEventFired" for message in self.events):
            self.events.append(self._message())
        for message in self.events:
            if message.get("method") == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        self.events.clear()
        return [address for address in asked if address != page.resolve().as_uri()]

    def picture(self, path: Path, *, top: int = 0, height: int | None = None) -> None:
        """PNG of the page from ``top`` on, in its whole length or of ``height`` pixels."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        length = min(size["height"] - top, height or 12000)
        clip = {"x": 0, "y": top, "width": size["width"], "height": length, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(squeezed(base64.b64decode(data)))


def squeezed(png: bytes) -> bytes:
    """The same picture in fewer bytes: Chromium packs for speed."""
    head, chunks, at = png[:8], [], 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        chunks.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += length + 12
    pixels = zlib.compress(zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT")), 9)
    header, end = chunks[0], (b"IEND", b"")
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (header, (b"IDAT", pixels), end)
    ]
    return head + b"".join(packed)


def find_browser() -> str | None:
    """The Chromium of this machine, or None."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def main(arguments: t.Sequence[str] | None = None) -> int:
    """Take the pictures; 1 when the page scrolls sideways or asks the network for anything, 2 when there is no browser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("page", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--top", type=int, default=0, help="pixels of the page to leave out above")
    parser.add_argument("--height", type=int, help="pixels of the page to show")
    parser.add_argument("--only", action="append", choices=[view.name for view in VIEWS], help="only this view; may be given again")
    options = parser.parse_args(arguments)
    program = find_browser()
    if program is None:
        print("no Chromium was found on this machine", file=sys.stderr)
        return 2
    options.directory.mkdir(parents=True, exist_ok=True)
    wrong = 0
    with Browser(program) as browser:
        for view in VIEWS:
            if options.only and view.name not in options.only:
                continue
            asked = browser.show(options.page, view)
            width = int(browser.evaluate("document.documentElement.scrollWidth"))
            dark = bool(browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"))
            path = options.directory / f"{options.page.stem}-{view.name}.png"
            browser.picture(path, top=options.top, height=options.height)
            sideways = view.media == "screen" and width > view.width
            wrong += bool(asked) + sideways
            print(f"{path}: {width} of {view.width} px wide, {'dark' if dark else 'light'}, asked for {asked or 'nothing'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
