# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds a board by a name as people write it, or by the path of a file; describes a new host."""

from __future__ import annotations

import pathlib
import re
import socket
import uuid

from nvmlsim.boardfile import Board, read_board, spec_lines
from nvmlsim.common import CUDA, DRIVER, SimError

BOARDS = pathlib.Path(__file__).resolve().parent.parent / "boards"
MAX_GPUS = 32
# Bus numbers of an eight-GPU A100 server first (they are known from public listings), then any free ones.
BUSES = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)


def load(path: pathlib.Path) -> Board:
    """One board file. Raises SimError when it cannot be read or is wrong."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise SimError(f"{path}: cannot be read: {error.strerror}; give the path of a board file") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SimError(f"{path}:{line}: file: is not UTF-8; give a YAML mapping") from error
    return read_board(str(path), text)


def known() -> list[Board]:
    """The boards that come with the simulator, by file name."""
    return [load(path) for path in sorted(BOARDS.glob("*.yml"))]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("nvidia"))


def find(wanted: str) -> Board:
    """A file when the text looks like one, else a board whose key, alias or NVML name it is or uniquely begins.

    Case, `_`, `-`, blanks and a leading `NVIDIA` do not matter: `A100_80GB` is `a100-80gb`.
    """
    if wanted.endswith((".yml", ".yaml")) or "/" in wanted:
        return load(pathlib.Path(wanted))
    file = BOARDS / f"{wanted}.yml"
    if re.fullmatch(r"[a-z0-9-]+", wanted) and file.exists():
        return load(file)  # the exact name needs no look at the other files
    boards = known()
    text = _plain(wanted)
    names = {board.key: {_plain(name) for name in (board.key, board.name, *board.aliases)} for board in boards}
    exact = [board for board in boards if text in names[board.key]]
    found = exact or [board for board in boards if text and any(name.startswith(text) for name in names[board.key])]
    if len(found) == 1:
        return found[0]
    keys = ", ".join(board.key for board in (found or boards))
    if found:
        raise SimError(f"board {wanted!r} could be several: {keys}; name one of them")
    raise SimError(f"board {wanted!r} is not known; give the path of a board file or one of {keys}")


def parse_request(text: str) -> tuple[Board, int]:
    """``NAME`` or ``NAME:COUNT``."""
    name, colon, number = text.rpartition(":")
    if not colon:
        name, number = text, "1"
    if not number.isdigit() or not 1 <= int(number) <= MAX_GPUS or not name:
        raise SimError(f"--board {text!r} is not NAME or NAME:COUNT; give a count from 1 to {MAX_GPUS}")
    return find(name), int(number)


def default_seed(path: str) -> str:
    """Stable for a state directory on one machine, different for each: two simulated hosts must not share UUIDs."""
    return f"{socket.gethostname()}:{pathlib.Path(path).resolve()}"


def host_lines(requests: list[tuple[Board, int]], seed: str, driver: str | None, cuda: int | None) -> list[str]:
    """The text that the library makes a state from. ``driver`` None: no driver is loaded."""
    boards: list[Board] = []
    for board, _count in requests:
        if not any(other.key == board.key and other.file == board.file for other in boards):
            boards.append(board)
    if len({board.key for board in boards}) != len(boards):
        raise SimError("two board files call their board the same; give each its own `board:`")
    if sum(count for _board, count in requests) > MAX_GPUS:
        raise SimError(f"more than {MAX_GPUS} GPUs; ask for fewer")
    version = driver or DRIVER
    lines = [f"seed {seed}", f"driver-version {version}", f"nvml-version {cuda_major(cuda)}.{version}"]
    lines += [f"cuda-version {cuda or CUDA}", f"driver-present {int(driver is not None)}"]
    ids: dict[str, int] = {}  # NVML asks about a vGPU type by number alone, so one name has one number on the host
    for board in boards:
        for line in spec_lines(board):
            lines.append(line)
            if line.startswith("vgpu "):
                lines.append(f"vgpu-id {ids.setdefault(line, 1001 + len(ids))}")
    index = 0
    for board, count in requests:
        place = next(number for number, other in enumerate(boards) if other.key == board.key)
        for _ignored in range(count):
            lines.append(gpu_line(place, index, seed))
            index += 1
    return lines


def cuda_major(cuda: int | None) -> int:
    """Major CUDA version of a number such as 13000; NVML versions begin with it."""
    return (cuda or CUDA) // 1000


def gpu_line(board: int, index: int, seed: str) -> str:
    """The line that adds a GPU: board number, PCI address, UUID and serial, the last two by name from the seed."""
    bus = BUSES[index] if index < len(BUSES) else 0xC0 + index
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"gpu:{seed}:{index}")
    serial = 1320000000000 + uuid.uuid5(uuid.NAMESPACE_URL, f"serial:{seed}:{index}").int % 10**9
    return f"gpu {board} 0:{bus:x}:0 GPU-{name} {serial}"
