# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How speaches finds its model without a network, and a request that makes it load it. Pure.

Source: speaches 870e1e1, src/speaches/hf_utils.py: it looks for ``models--OWNER--NAME/snapshots/REVISION`` in the hub's cache, and calls
that model ``OWNER/NAME``.
"""

from __future__ import annotations

import struct
import typing as t

CACHE = "/home/ubuntu/.cache/huggingface/hub"
_PREFIX = "models--"
_BOUNDARY = "gpuops-fleet"
# A tenth of a second of silence, 16 bit. The numbers are such that the file is plain ASCII, since a request's body is text.
_RATE, _SAMPLES = 12800, 1280

Data = t.Mapping[str, t.Any]


def _folder(block: Data) -> str:
    """Last part of the model's directory in the store."""
    return str(block["model"]).rstrip("/").rpartition("/")[2]


def target_of(block: Data) -> str:
    """Where the model's directory is mounted: a copy of the hub's cache as it is, a plain directory as a snapshot of ``local/NAME``."""
    folder = _folder(block)
    return f"{CACHE}/{folder}" if folder.startswith(_PREFIX) else f"{CACHE}/{_PREFIX}local--{folder}/snapshots/local"


def name_of(block: Data) -> str:
    """The name by which requests ask for the model."""
    folder = _folder(block)
    return (folder.removeprefix(_PREFIX) if folder.startswith(_PREFIX) else f"local--{folder}").replace("--", "/")


def silence() -> str:
    """A WAV file without a sound, as text of which every character is one byte (RIFF, one channel, PCM)."""
    size = 2 * _SAMPLES
    head = b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, _RATE, 2 * _RATE, 2, 16)
    return (head + b"data" + struct.pack("<I", size) + bytes(size)).decode("ascii")


def request(block: Data) -> dict[str, str]:
    """Body and content type of a request that transcribes silence."""
    fields = {"model": name_of(block), **({"language": block["language"]} if block["language"] else {})}
    parts = [f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="silence.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    body = "".join(parts) + head + silence() + f"\r\n--{_BOUNDARY}--\r\n"
    return {"body": body, "content_type": f"multipart/form-data; boundary={_BOUNDARY}"}
