# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `simctl set` can set, and how each value is written."""

from __future__ import annotations

import dataclasses
import os
import re

from nvmlsim.common import SimError

ON_OFF = {"on": 1, "off": 0, "yes": 1, "no": 0, "true": 1, "false": 0, "1": 1, "0": 0}


MAX_PATH = 256


@dataclasses.dataclass(frozen=True)
class Field:
    """Exactly one of the ways to write a value: words, a number in a range (times ``scale``), a text, a directory (``on``: this one)."""

    help: str
    words: dict[str, int] | None = None
    low: int = 0
    high: int = 0
    scale: int = 1
    pattern: str | None = None
    directory: str | None = None

    def parse(self, name: str, text: str) -> str:
        """The value as the library wants it. Raises SimError that says what is possible."""
        if self.words is not None:
            if text.lower() in self.words:
                return str(self.words[text.lower()])
            raise SimError(f"{name}: {text!r} is not possible; give one of {', '.join(self.words)}")
        if self.directory is not None:
            place = {"on": self.directory, "off": ""}.get(text.lower(), text)
            # It becomes part of the state, which has room for so many bytes.
            if text.lower() != "off" and not (os.path.isabs(place) and os.path.isdir(place) and len(os.fsencode(place)) < MAX_PATH):
                raise SimError(f"{name}: {text!r} is not possible; give on, off, or the absolute path of a directory")
            return place
        if self.pattern is not None:
            if re.fullmatch(self.pattern, text):
                return text
            raise SimError(f"{name}: {text!r} is not possible; give {self.help}")
        if re.fullmatch(r"-?\d+(\.\d+)?", text) and self.low <= float(text) <= self.high:
            number = float(text) * self.scale
            if number == int(number):
                return str(int(number))
        raise SimError(f"{name}: {text!r} is not possible; give a number from {self.low} to {self.high}")


def _switch(text: str) -> Field:
    return Field(text, words=ON_OFF)


def _percent(text: str) -> Field:
    return Field(text, low=0, high=100)


HOST = {
    "driver": Field("absent unloads it, with all that lives in it", words={"present": 1, "absent": 0}),
    "driver-version": Field("a driver version such as 580.105.08", pattern=r"\d{3}(\.\d{1,3}){1,2}"),
    "nvml-version": Field("an NVML version such as 13.580.105.08", pattern=r"[0-9.]{3,40}"),
    "cuda-version": Field("CUDA version as NVML says it, 13000 = 13.0", low=1000, high=99999),
    "permission": Field("who may write: everybody, nobody, or only root", words={"granted": 0, "denied": 1, "root": 2}),
    "mig-uuid": Field("of a slice that is made again", words={"same": 0, "new": 1, "swap": 2}),
    "placement-order": Field("of a create without placement", words={"board": 0, "ascending": 1, "descending": 2}),
    "device-nodes": Field("/dev/nvidia* as driver and nvidia-modprobe make them, or in a directory other than /dev", directory="/dev"),
    "log": _switch("log every call"),
}

GPU = {
    "temperature": Field("degrees C; NVML has no sign for it", low=0, high=200),
    "memory-temperature": Field("degrees C", low=-40, high=200),
    "power-usage": Field("W", low=0, high=100000, scale=1000),
    "power-limit": Field("W, not checked against the board's limits", low=0, high=100000, scale=1000),
    "energy": Field("J since the driver was loaded", low=0, high=2**43, scale=1000),
    "persistence": _switch("persistence mode"),
    "compute-mode": Field("compute mode", words={"default": 0, "prohibited": 2, "exclusive_process": 3, "exclusive-process": 3}),
    "mig": _switch("MIG mode, at once; off removes the instances"),
    "ecc": _switch("ECC, current and pending"),
    "ecc-corrected": Field("error count", low=0, high=2**53),
    "ecc-uncorrected": Field("error count", low=0, high=2**53),
    "remapped-corrected": Field("rows", low=0, high=100000),
    "remapped-uncorrected": Field("rows", low=0, high=100000),
    "remap-pending": _switch("a row waits for a reset to be remapped"),
    "remap-failure": _switch("a row could not be remapped"),
    "retired-single-bit": Field("pages", low=0, high=100000),
    "retired-double-bit": Field("pages", low=0, high=100000),
    "utilization": _percent("GPU, percent"),
    "memory-utilization": _percent("memory, percent"),
    "encoder-utilization": _percent("percent"),
    "decoder-utilization": _percent("percent"),
    "fan-speed": _percent("percent; boards with a fan"),
    "nvlink": Field("GPUs of one number are joined with each other; 0: with none", low=0, high=100000),
    "clock-sm": Field("MHz; -1 follows the load", low=-1, high=100000),
    "clock-memory": Field("MHz; -1 follows the load", low=-1, high=100000),
    "clock-reasons": Field("a bit mask of clock event reasons, such as 0x40", pattern=r"0x[0-9a-fA-F]{1,16}|\d{1,19}"),
    "virtualization": Field("mode of the GPU", words={"none": 0, "passthrough": 1, "vgpu": 2, "host-vgpu": 3}),
    "vgpus": Field("a comma-separated list of vGPU types that are in use, or '' for none", pattern=r"[A-Za-z0-9,-]*"),
    "timeslice": Field("as compute-policy says it", words={"default": 0, "short": 1, "medium": 2, "long": 3}),
    "reset": _switch("whether the platform lets the GPU be reset"),
    "minor": Field("of /dev/nvidia<minor>", low=0, high=255),
}


def help_text() -> str:
    """All fields, for ``simctl set --help``."""
    lines = []
    for title, group in (("fields of the host:", HOST), ("fields of a GPU:", GPU)):
        lines.append(title)
        for name, field in group.items():
            words = f"{' | '.join(field.words)}: " if field.words and field.words is not ON_OFF else ""
            words = "on | off: " if field.words is ON_OFF else words
            words = "on | off | DIRECTORY: " if field.directory else words
            lines.append(f"  {name:<22}{words}{field.help}".replace("%", "%%"))
    return "\n".join(lines)
