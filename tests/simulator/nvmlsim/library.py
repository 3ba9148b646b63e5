# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library's side door: one call that the tools use beside NVML."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import typing as t

from nvmlsim.common import SimError

SONAME = "libnvidia-ml.so.1"
# Where system libraries lie in Debian on this architecture; the Makefile installs there.
SYSTEM_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
SUCCESS, NO_PERMISSION, DRIVER_NOT_LOADED, VERSION_MISMATCH = 0, 4, 9, 18


def _library() -> str:
    """The library beside the tools, as built or as installed, else whatever the dynamic loader finds under its name."""
    top = pathlib.Path(__file__).resolve().parent.parent.parent
    for place in (top / SONAME, top / pathlib.Path(SYSTEM_LIBRARIES).name / SONAME):
        if place.exists():
            return str(place)
    return SONAME


LIBRARY = _library()


class ControlError(Exception):
    """The library refused; ``code`` is NVML's number, ``str()`` its words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class State:
    """A simulated host in the directory ``path``."""

    def __init__(self, path: str, caller: str = "simctl") -> None:
        self.path = path
        self.caller = caller
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise SimError(f"cannot load {LIBRARY}: {error}; run `make simulator`") from error
        self._library.simControl.restype = ctypes.c_int
        self._library.simFree.restype = None
        self._library.nvmlErrorString.restype = ctypes.c_char_p

    def error_text(self, code: int) -> str:
        """NVML's words for a code."""
        return t.cast("bytes", self._library.nvmlErrorString(code)).decode()

    def call(self, *words: object) -> str:
        """Runs one verb. Raises ControlError with NVML's code when the library refuses it."""
        argv = (ctypes.c_char_p * len(words))(*(str(word).encode() for word in words))
        out = ctypes.c_void_p()
        code = self._library.simControl(self.path.encode(), self.caller.encode(), len(words), argv, ctypes.byref(out))
        text = ctypes.string_at(out).decode() if out else ""
        self._library.simFree(out)
        if code != SUCCESS:
            raise ControlError(code, text or self.error_text(code))
        return text

    def dump(self) -> dict[str, t.Any]:
        """Everything that `simctl show --json` prints, as a mapping."""
        try:
            return t.cast("dict[str, t.Any]", json.loads(self.call("dump")))
        except ControlError as error:
            raise SimError(missing_state(self.path, error)) from error


def missing_state(path: str, error: ControlError) -> str:
    """One line that says why a state could not be opened, and what to do."""
    if error.code == VERSION_MISMATCH:
        return f"the state in {path} was made by another version of the simulator; make it again with `simctl create --force`"
    if error.code == NO_PERMISSION:
        return f"no permission to open the state in {path}"
    if not os.path.exists(os.path.join(path, "state.bin")):
        return f"no simulated host in {path}; make one with `simctl create --board NAME`"
    return str(error)
