# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""simctl: makes a simulated GPU host, shows it, and does to it what hardware and other people would do."""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import pathlib
import re
import sys
import typing as t

from nvmlsim import fields, show
from nvmlsim.common import CAPS_OF_GI, CAPS_OF_GPU, CUDA, DEFAULT_STATE, DRIVER, FIRST_CAP, TABLE_GPUS, SimError, state_path
from nvmlsim.library import DRIVER_NOT_LOADED, LIBRARY, ControlError, State, missing_state

KINDS = {"compute": 0, "graphics": 1, "mps": 2, "leak": 3}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> t.NoReturn:
        sys.stderr.write(f"simctl: {message}; see `{self.prog} --help`\n")
        raise SystemExit(2)


def find_gpu(dump: dict[str, t.Any], name: str) -> int:
    """Position in the state of a GPU given by index, UUID or PCI address."""
    gpus = dump["gpus"]
    for position, gpu in enumerate(gpus):
        if name == str(gpu["index"]) or name.lower() == gpu["uuid"].lower():
            return position
    text = name.lower()
    match = re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text)
    if match:
        pci = f"{int(match[1] or '0', 16):04x}:{match[2]}"
        for position, gpu in enumerate(gpus):
            if gpu["pci"] == pci:
                return position
    known = ", ".join(f"{gpu['index']} {gpu['uuid']} {gpu['pci']}" for gpu in gpus)
    raise SimError(f"no GPU {name!r}; there are: {known or 'none'}")


def _gpus(state: State, name: str | None) -> list[int]:
    dump = state.dump()
    if name is None:
        return list(range(len(dump["gpus"])))
    return [find_gpu(dump, name)]


# ---- verbs ----


def create(state: State, args: argparse.Namespace) -> None:
    """Make a host."""
    from nvmlsim import catalogue  # YAML is slow to import, and only this verb reads any

    requests = [catalogue.parse_request(text) for text in args.board or []]
    path = pathlib.Path(state.path)
    if (path / "state.bin").exists() and not args.force:
        raise SimError(f"{path} holds a simulated host already; add --force to make it anew")
    if args.no_driver and args.driver:
        raise SimError("--no-driver and --driver exclude each other; give one of them")
    if args.driver and not re.fullmatch(r"\d{3}(\.\d{1,3}){1,2}", args.driver):
        raise SimError(f"--driver {args.driver!r} is no driver version; give one such as 580.105.08")
    seed = args.seed or catalogue.default_seed(state.path)
    if not seed.isprintable():
        raise SimError("--seed must be printable text on one line")
    driver = None if args.no_driver else args.driver or DRIVER
    lines = [f"boot-id {boot_id()}", *catalogue.host_lines(requests, seed, driver, args.cuda)]
    nodes = fields.HOST["device-nodes"].parse("--device-nodes", args.device_nodes) if args.device_nodes else ""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SimError(f"cannot make {path}: {error.strerror}") from error
    _take_old_nodes_away(state)
    state.call("create", "\n".join(lines) + "\n")
    notes = {
        board.key: {"file": pathlib.Path(board.file).name, "estimated": board.estimated, "evidence": board.evidence}
        for board, _ignored in requests
    }
    (path / "boards.json").write_text(json.dumps(notes, indent=1), encoding="utf-8")
    if nodes:
        state.call("set-host", "device-nodes", nodes)
    print(show.summary(state.dump()))


def boot_id() -> str:
    """What the kernel calls this boot of the machine; empty where it says nothing."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _take_old_nodes_away(state: State) -> None:
    """The nodes of the host that a new one replaces; a state that cannot be opened says nothing of any."""
    try:
        state.call("set-host", "device-nodes", "")
    except ControlError:
        return


def show_host(state: State, args: argparse.Namespace) -> None:
    """Print the host."""
    dump = state.dump()
    notes_file = pathlib.Path(state.path) / "boards.json"
    notes = json.loads(notes_file.read_text(encoding="utf-8")) if notes_file.exists() else {}
    for key, board in dump["boards"].items():
        board.update(notes.get(key, {}))
    print(json.dumps(dump, indent=2) if args.json else show.text(dump))


def minors(_state: State, _args: argparse.Namespace) -> None:
    """Print the driver's table of MIG capabilities as /proc/driver/nvidia-caps/mig-minors has it, for every GPU that may ever exist."""
    print("config 1\nmonitor 2")
    for gpu, gi in itertools.product(range(TABLE_GPUS), range(CAPS_OF_GPU // CAPS_OF_GI)):
        access = FIRST_CAP + CAPS_OF_GPU * gpu + CAPS_OF_GI * gi
        print(f"gpu{gpu}/gi{gi}/access {access}")
        for ci in range(CAPS_OF_GI - 1):
            print(f"gpu{gpu}/gi{gi}/ci{ci}/access {access + 1 + ci}")


def _instance(dump: dict[str, t.Any], gpu: int, gi: int | None, ci: int | None) -> None:
    mig = dump["gpus"][gpu]["mig"]
    instances = {one["gi"]: [part["id"] for part in one["ci"]] for one in (mig or {}).get("instances", [])}
    if gi is not None and gi not in instances:
        raise SimError(f"no GPU instance {gi} on this GPU; there are: {sorted(instances) or 'none'}")
    if ci is not None and gi is None:
        raise SimError("--ci needs --gi; a compute instance lies in a GPU instance")
    if gi is not None and ci is not None and ci not in instances[gi]:
        raise SimError(f"no compute instance {ci} in GPU instance {gi}; there are: {instances[gi] or 'none'}")


def hold(state: State, args: argparse.Namespace) -> None:
    """Add a holder."""
    dump = state.dump()
    gpu = find_gpu(dump, args.gpu)
    _instance(dump, gpu, args.gi, args.ci)
    kind = KINDS["leak" if args.leak else args.kind]
    gi = -1 if args.gi is None else args.gi
    ci = -1 if args.ci is None else args.ci
    memory = 0 if args.leak else args.memory
    state.call("hold", gpu, kind, gi, ci, 0 if args.leak else args.pid, memory, args.name)


def release(state: State, args: argparse.Namespace) -> None:
    """End holders."""
    gpu = -1 if args.gpu is None else find_gpu(state.dump(), args.gpu)
    numbers = [-1 if value is None else value for value in (args.pid, args.gi, args.ci)]
    if state.call("release", gpu, *numbers) == "0":
        raise SimError("nobody like that holds anything; see `simctl show`")


def set_field(state: State, args: argparse.Namespace) -> None:
    """Set one field."""
    if args.field in fields.HOST:
        if args.gpu is not None:
            raise SimError(f"{args.field} belongs to the host; leave --gpu out")
        state.call("set-host", args.field, fields.HOST[args.field].parse(args.field, args.value))
        return
    field = fields.GPU.get(args.field)
    if field is None:
        names = ", ".join([*fields.HOST, *fields.GPU])
        raise SimError(f"no field {args.field!r}; fields are {names}")
    value = field.parse(args.field, args.value)
    for gpu in _gpus(state, args.gpu):
        state.call("set-gpu", gpu, args.field, value)


def lose(state: State, args: argparse.Namespace) -> None:
    """Let a GPU fall off the bus, or bring it back."""
    for gpu in _gpus(state, args.gpu):
        state.call("lose", gpu, int(not args.recover))


def xid(state: State, args: argparse.Namespace) -> None:
    """Raise an XID event."""
    dump = state.dump()
    gpu = find_gpu(dump, args.gpu)
    _instance(dump, gpu, args.gi, args.ci)
    gi = -1 if args.gi is None else args.gi
    ci = -1 if args.ci is None else args.ci
    state.call("xid", gpu, args.xid, gi, ci)


def reboot(state: State, args: argparse.Namespace) -> None:
    """Reboot the host."""
    if args.boot_id is not None and not re.fullmatch(r"[0-9a-f-]{1,36}", args.boot_id):
        raise SimError(f"--boot-id {args.boot_id!r} is not possible; give up to 36 of 0-9, a-f and -")
    if not args.with_machine:
        if args.boot_id is not None:
            raise SimError("--boot-id goes with --with-machine; add it")
        state.call("reboot")
        return
    name = args.boot_id or boot_id()
    if not name:
        raise SimError("the kernel does not say which boot this is; give --boot-id ID")
    if state.call("reboot", name) == "0":
        print("these GPUs have gone through this boot of the machine already")


def reset(state: State, args: argparse.Namespace) -> None:
    """Reset one GPU."""
    for gpu in _gpus(state, args.gpu):
        state.call("reset", gpu)


def log(state: State, args: argparse.Namespace) -> None:
    """Print or empty the call log."""
    if args.clear:
        state.call("log-clear")
        return
    state.dump()  # appends the record of a process that died between its change and its log line
    path = pathlib.Path(state.path) / "calls.log"
    records = sorted(_records(path), key=lambda record: int(record["seq"]))
    if args.mutations:
        records = [record for record in records if record["mutation"] is not None]
    if args.json:
        print(json.dumps(records, indent=1))
        return
    for record in records:
        print(show.log_line(record))


def _records(path: pathlib.Path) -> t.Iterator[dict[str, t.Any]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            sys.stderr.write(f"simctl: a line of {path} is cut off (a process died while it wrote it): {line[:60]}\n")


def fail(state: State, args: argparse.Namespace) -> None:
    """Add or clear faults."""
    if args.clear:
        state.call("clear-faults", args.call or "")
        return
    if not args.call or not args.error:
        raise SimError("a fault needs --call NAME and --error NAME; add --nth, --times or --always")
    if args.times is not None and args.always:
        raise SimError("--times and --always exclude each other; give one of them")
    if not _is_exported(args.call):
        raise SimError(f"--call {args.call!r} is no NVML function of this library; give one such as nvmlDeviceCreateGpuInstance")
    state.call("fault", args.call, args.nth, 0 if args.always else args.times or 1, args.error.upper(), int(args.after))


def _is_exported(name: str) -> bool:
    library = ctypes.CDLL(LIBRARY)
    return name.startswith("nvml") and any(hasattr(library, name + suffix) for suffix in ("", "_v2", "_v3"))


def kill(state: State, args: argparse.Namespace) -> None:
    """Arm or disarm the killing of a caller."""
    if not args.clear and args.mutation is None:
        raise SimError("give --mutation N, or --clear")
    state.call("kill", 0 if args.clear else args.mutation, int(args.before))


# ---- command line ----


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not possible; give a whole number from 1 on")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdigit() or int(text) > 2**31 - 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not possible; give a whole number from 0 on")
    return int(text)


def _verb(verbs: t.Any, name: str, function: t.Callable[[State, argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(function=function)
    return t.cast("argparse.ArgumentParser", parser)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(prog="simctl", description=__doc__)
    top.add_argument("--state", metavar="DIR", help=f"the simulated host; default: $NVML_SIM_STATE, else {DEFAULT_STATE}")
    verbs = top.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    made = _verb(verbs, "create", create, "make a host; without --board it has a driver and no GPU")
    made.add_argument("--board", action="append", metavar="NAME[:COUNT]", help="a known board or a board file; may be given several times")
    made.add_argument("--seed", metavar="TEXT", help="GPU UUIDs and serials follow from it; default: host name and directory")
    made.add_argument("--driver", metavar="VERSION", help=f"driver version; default {DRIVER}")
    made.add_argument("--cuda", type=_positive, metavar="N", help=f"CUDA version as NVML says it; default {CUDA}")
    made.add_argument("--no-driver", action="store_true", help="no driver is loaded: nvmlInit answers DRIVER_NOT_LOADED")
    made.add_argument("--device-nodes", metavar="WHERE", help="as `set device-nodes`: on (/dev) or a directory; default: off")
    made.add_argument("--force", action="store_true", help="replace the host that is there")
    shown = _verb(verbs, "show", show_host, "print the host, its GPUs, instances and holders")
    shown.add_argument("--json", action="store_true")
    _verb(verbs, "minors", minors, "print the driver's table of MIG capabilities, which is the same for every host")
    held = _verb(verbs, "hold", hold, "let a process use a GPU or an instance")
    held.add_argument("--gpu", required=True, metavar="GPU", help="index, UUID or PCI address")
    held.add_argument("--gi", type=_natural)
    held.add_argument("--ci", type=_natural)
    held.add_argument("--pid", type=_natural, default=4242)
    held.add_argument("--name", default="python3")
    held.add_argument("--memory", type=_natural, default=512, metavar="MIB")
    held.add_argument("--kind", choices=("compute", "graphics", "mps"), default="compute")
    held.add_argument("--leak", action="store_true", help="a handle that a client leaked: busy, but no process is to be seen")
    freed = _verb(verbs, "release", release, "end holders; every option narrows which")
    freed.add_argument("--gpu", metavar="GPU")
    for name in ("--gi", "--ci", "--pid"):
        freed.add_argument(name, type=_natural)
    put = _verb(verbs, "set", set_field, "set a field of the host, or of one GPU (--gpu) or all\n\n" + fields.help_text())
    put.add_argument("field", metavar="FIELD")
    put.add_argument("value", metavar="VALUE")
    put.add_argument("--gpu", metavar="GPU")
    lost = _verb(verbs, "lose", lose, "let a GPU fall off the bus; a reboot or --recover brings it back")
    lost.add_argument("--gpu", required=True, metavar="GPU")
    lost.add_argument("--recover", action="store_true")
    event = _verb(verbs, "xid", xid, "raise an XID event")
    event.add_argument("--gpu", required=True, metavar="GPU")
    event.add_argument("--xid", required=True, type=_positive)
    event.add_argument("--gi", type=_natural)
    event.add_argument("--ci", type=_natural)
    booted = _verb(verbs, "reboot", reboot, "reboot the host: instances vanish, what is pending takes effect")
    booted.add_argument(
        "--with-machine", action="store_true", help="only when the machine has booted since the last time (or since create)"
    )
    booted.add_argument("--boot-id", metavar="ID", help="the machine's boot, with --with-machine; default: what the kernel says")
    again = _verb(verbs, "reset", reset, "reset one GPU, as `nvidia-smi -r -i` does")
    again.add_argument("--gpu", required=True, metavar="GPU")
    logged = _verb(verbs, "log", log, "print the calls, in order")
    logged.add_argument("--mutations", action="store_true", help="only the calls that changed something")
    logged.add_argument("--json", action="store_true")
    logged.add_argument("--clear", action="store_true", help="empty the log")
    fault = _verb(verbs, "fail", fail, "let the n-th call of a function fail, counted from now on")
    fault.add_argument("--call", metavar="NAME", help="a C symbol; without _vN it stands for every version")
    fault.add_argument("--nth", type=_positive, default=1, metavar="N")
    fault.add_argument("--error", metavar="NAME", help="such as IN_USE or NVML_ERROR_IN_USE")
    fault.add_argument("--times", type=_positive, metavar="K", help="and so many calls in all; default 1")
    fault.add_argument("--always", action="store_true", help="and every call after it")
    fault.add_argument("--after", action="store_true", help="the call does its work, and answers the error then")
    fault.add_argument("--clear", action="store_true", help="forget the faults (of --call, or all)")
    dead = _verb(verbs, "kill", kill, "kill the calling process by SIGKILL at a state change, counted from now on")
    dead.add_argument("--mutation", type=_positive, metavar="N", help="right after the N-th change")
    dead.add_argument("--before", action="store_true", help="right before it instead")
    dead.add_argument("--clear", action="store_true")
    return top


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code is 0, or 2 with one line on stderr."""
    args = parser().parse_args(argv)
    path = args.state or state_path()
    try:
        args.function(State(path), args)
    except SimError as error:
        sys.stderr.write(f"simctl: {error}\n")
        return 2
    except ControlError as error:
        missing = error.code == DRIVER_NOT_LOADED
        sys.stderr.write(f"simctl: {missing_state(path, error) if missing else error}\n")
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
