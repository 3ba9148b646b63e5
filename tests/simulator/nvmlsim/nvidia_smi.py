# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for nvidia-smi: what has no public NVML call (-r, compute-policy), -L and basic --query-gpu.

Words and exit codes follow the real program as far as hosts.md (section 1.3) knows them: 9 without a driver, 12 without the
library, and from its manual 2 invalid argument, 3 not supported, 4 no permission, 6 not found, 15 GPU lost, 255 others.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import typing as t

from nvmlsim import simctl, smi_query
from nvmlsim.common import SimError, state_path
from nvmlsim.library import LIBRARY, ControlError, State

NO_DRIVER_TEXT = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
EXIT = {2: 2, 3: 3, 4: 4, 6: 6, 9: 9, 10: 10, 12: 12, 13: 13, 14: 14, 15: 15}
INVALID_ARGUMENT, NOT_FOUND, DRIVER_NOT_LOADED, GPU_IS_LOST, IN_USE = 2, 6, 9, 15, 19
TIMESLICES = ("Default", "Short", "Medium", "Long")


class SmiError(Exception):
    """What to print and the code to leave with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> t.NoReturn:
        raise SmiError(2, f"nvidia-smi (simulated): {message}; this stand-in knows -L, -r, -i, --query-gpu, --format and compute-policy")


class Nvml:
    """The library by plain ctypes: this program must run where pynvml is not installed."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise SmiError(12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.") from error
        self.library.nvmlErrorString.restype = ctypes.c_char_p

    def text_of(self, code: int) -> str:
        """NVML's words for a code."""
        return t.cast("bytes", self.library.nvmlErrorString(code)).decode()

    def call(self, name: str, *args: t.Any) -> int:
        """Calls a C function; its code."""
        return int(getattr(self.library, name)(*args))

    def open(self) -> None:
        """nvmlInit, or the message and exit code of the real program."""
        code = self.call("nvmlInit_v2")
        if code == DRIVER_NOT_LOADED:
            raise SmiError(9, NO_DRIVER_TEXT)
        if code:
            raise SmiError(EXIT.get(code, 255), f"Failed to initialize NVML: {self.text_of(code)}")

    def close(self) -> None:
        """nvmlShutdown."""
        self.call("nvmlShutdown")

    def string(self, name: str, *args: t.Any) -> str | None:
        """A text that a function writes; None when it refuses."""
        buffer = ctypes.create_string_buffer(256)
        return None if self.call(name, *args, buffer, 256) else buffer.value.decode()

    def number(self, name: str, *args: t.Any) -> int | None:
        """An unsigned int that a function writes; None when it refuses."""
        out = ctypes.c_uint()
        return None if self.call(name, *args, ctypes.byref(out)) else out.value

    def handle(self, index: int) -> ctypes.c_void_p:
        """Handle of the GPU with an NVML index."""
        out = ctypes.c_void_p()
        code = self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(out))
        if code == GPU_IS_LOST:
            raise SmiError(15, f"Unable to determine the device handle for GPU{index}: GPU is lost.  Reboot the system to recover this GPU")
        if code:
            raise SmiError(EXIT.get(code, 255), f"Unable to determine the device handle for GPU {index}: {self.text_of(code)}")
        return out


# ---- which GPUs ----


def _positions(dump: dict[str, t.Any], wanted: str | None) -> list[int]:
    """Positions in the state of the GPUs of ``-i`` (index, UUID or PCI address, comma-separated); all without it."""
    if wanted is None:
        return [position for position, gpu in enumerate(dump["gpus"]) if gpu["index"] >= 0]
    try:
        return [simctl.find_gpu(dump, name) for name in wanted.split(",")]
    except SimError as error:
        raise SmiError(6, "No devices were found") from error


def _bus_id(gpu: dict[str, t.Any]) -> str:
    return f"0000{gpu['pci']}".upper()


# ---- -r ----


def reset(state: State, wanted: str | None) -> int:
    """``-r``: resets the GPUs that were named, or all; the exit code."""
    dump = state.dump()
    worst = 0
    for position in _positions(dump, wanted):
        bus = _bus_id(dump["gpus"][position])
        try:
            state.call("reset", position)
        except ControlError as error:
            worst = EXIT.get(error.code, 255)
            if error.code == IN_USE:
                print(f"GPU {bus} is currently in use by another process.")
                print("1 device is currently being used by one or more other processes. Please first kill all processes using this device.")
            else:
                print(f"Unable to reset GPU {bus}: {state.error_text(error.code)}")
        else:
            print(f"GPU {bus} was successfully reset.")
    if not worst:
        print("All done.")
    return worst


# ---- compute-policy ----


def compute_policy(state: State, argv: list[str]) -> int:
    """``compute-policy``: reads or sets the time slice of whole GPUs; the exit code."""
    parser = _Parser(prog="nvidia-smi compute-policy", description="time slice of whole GPUs")
    parser.add_argument("-i", "--id", metavar="ID")
    parser.add_argument("-l", "--list", action="store_true")
    parser.add_argument("--set-timeslice", metavar="N", help="0 default, 1 short, 2 medium, 3 long")
    args = parser.parse_args(argv)
    dump = state.dump()
    positions = _positions(dump, args.id)
    if args.set_timeslice is not None:
        value = args.set_timeslice
        if value not in ("0", "1", "2", "3"):
            raise SmiError(2, f"Invalid timeslice {value!r}; valid are 0 (default), 1 (short), 2 (medium), 3 (long)")
        for position in positions:
            bus = _bus_id(dump["gpus"][position])
            try:
                state.call("timeslice", position, value)
            except ControlError as error:
                raise SmiError(
                    EXIT.get(error.code, 255), f"Failed to set timeslice of GPU {bus}: {state.error_text(error.code)}"
                ) from error
            print(f"Successfully set timeslice of GPU {bus} to {TIMESLICES[int(value)]}.")
        return 0
    if not args.list:
        raise SmiError(2, "nvidia-smi compute-policy (simulated): give -l or --set-timeslice N")
    print("+--------------------------------------+")
    print("| GPU compute policies:                |")
    print("| GPU     Name               Value     |")
    print("|======================================|")
    for position in positions:
        gpu = dump["gpus"][position]
        print(f"| {gpu['index']:>3}    {'timeslice':<20}{TIMESLICES[gpu['timeslice']]:<10}|")
    print("+--------------------------------------+")
    return 0


# ---- -L and the table ----


def list_gpus(nvml: Nvml, indices: list[int]) -> int:
    """``-L``: GPUs and their MIG devices."""
    for index in indices:
        device = nvml.handle(index)
        print(f"GPU {index}: {nvml.string('nvmlDeviceGetName', device)} (UUID: {nvml.string('nvmlDeviceGetUUID', device)})")
        for slot in range(nvml.number("nvmlDeviceGetMaxMigDeviceCount", device) or 0):
            part = ctypes.c_void_p()
            if nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", device, slot, ctypes.byref(part)):
                continue
            profile = (nvml.string("nvmlDeviceGetName", part) or "").rpartition(" ")[2]
            print(f"  MIG {profile:<11} Device {slot:>2}: (UUID: {nvml.string('nvmlDeviceGetUUID', part)})")
    return 0


def overview(nvml: Nvml, indices: list[int]) -> int:
    """Without an option: the driver and a line for each GPU."""
    cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2") or 0
    driver = nvml.string("nvmlSystemGetDriverVersion")
    print(f"NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda // 1000}.{cuda % 1000 // 10}   (simulated)")
    fields = smi_query.parse_fields("index,name,pci.bus_id,temperature.gpu,power.draw,memory.used,memory.total,mig.mode.current")
    for index in indices:
        print("  ".join(smi_query.values(nvml, nvml.handle(index), fields, units=True)))
    return 0


def query(nvml: Nvml, indices: list[int], fields_text: str, format_text: str | None) -> int:
    """``--query-gpu``: CSV."""
    options = (format_text or "").split(",")
    if "csv" not in options or any(option not in ("csv", "noheader", "nounits") for option in options):
        raise SmiError(2, "--format= must be csv, with noheader and nounits if wanted; such as --format=csv,noheader,nounits")
    try:
        fields = smi_query.parse_fields(fields_text)
    except KeyError as error:
        raise SmiError(2, f'Field "{error.args[0]}" is not a valid field to query.') from error
    units = "nounits" not in options
    if "noheader" not in options:
        print(", ".join(field.header() for field in fields))
    for index in indices:
        print(", ".join(smi_query.values(nvml, nvml.handle(index), fields, units=units)))
    return 0


# ---- command line ----


def _indices(state: State, nvml: Nvml, wanted: str | None) -> list[int]:
    count = nvml.number("nvmlDeviceGetCount_v2") or 0
    if wanted is None:
        if count == 0:
            raise SmiError(6, "No devices were found")
        return list(range(count))
    nvml.close()  # the side door must not be used while NVML is open in this process
    dump = state.dump()
    nvml.open()
    return [dump["gpus"][position]["index"] for position in _positions(dump, wanted)]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="nvidia-smi", description=__doc__)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-r", "--gpu-reset", action="store_true", help="reset the GPU of -i, or all")
    parser.add_argument("-i", "--id", metavar="ID", help="index, UUID or PCI address; several with commas")
    parser.add_argument("--query-gpu", metavar="FIELDS")
    parser.add_argument("--format", metavar="csv[,noheader][,nounits]")
    return parser


def run(argv: list[str]) -> int:
    """One command line; the exit code."""
    nvml = Nvml()
    if argv[:1] in (["-h"], ["--help"]):
        _parser().print_help()
        return 0
    args = None if argv[:1] == ["compute-policy"] else _parser().parse_args(argv)
    nvml.open()
    state = State(state_path(), "nvidia-smi")
    if args is None or args.gpu_reset:
        nvml.close()
        return compute_policy(state, argv[1:]) if args is None else reset(state, args.id)
    try:
        indices = _indices(state, nvml, args.id)
        if args.query_gpu:
            return query(nvml, indices, args.query_gpu, args.format)
        return list_gpus(nvml, indices) if args.list_gpus else overview(nvml, indices)
    finally:
        nvml.close()


def main() -> int:
    """Entry point; the exit code."""
    try:
        return run(sys.argv[1:])
    except SmiError as error:
        print(error)
        return error.code
    except SimError as error:
        print(f"nvidia-smi (simulated): {error}")
        return 255
    except ControlError as error:
        print(f"nvidia-smi (simulated): {error}")
        return EXIT.get(error.code, 255)
