# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for nvidia-ctk, which no Debian package has: `cdi generate`, `cdi list`, `--version`.

What it does follows the sources of NVIDIA's container toolkit (pkg/nvcdi, cmd/nvidia-ctk) and what users showed of its output:
result on stdout or in a file, log on stderr, exit 1 with one line for every failure.
"""

from __future__ import annotations

import argparse
import sys
import time
import typing as t

from nvmlsim import cdi
from nvmlsim.common import SimError, state_path
from nvmlsim.library import ControlError, State
from nvmlsim.nvidia_smi import Nvml, SmiError

VERSION = "1.18.1"
SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
# Options of the real program that say where it finds things; the stand-in has found them.
IGNORED = (
    "--config-search-path",
    "--csv.file",
    "--csv.ignore-pattern",
    "--dev-root",
    "--disable-hook",
    "--driver-root",
    "--enable-hook",
    "--feature-flag",
    "--ldcache-path",
    "--ldconfig-path",
    "--library-search-path",
    "--nvidia-cdi-hook-path",
    "--nvidia-ctk-path",
)


def _log(level: str, message: str) -> None:
    """One line in the form that the real program writes where nobody watches."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = message.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    sys.stderr.write(f'time="{now}" level={level} msg="{text}"\n')


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> t.NoReturn:
        raise SimError(message)


def _parser() -> argparse.ArgumentParser:
    top = _Parser(prog="nvidia-ctk", description=__doc__, allow_abbrev=False)
    top.add_argument("--debug", "-d", action="store_true", help="no more is logged than without")
    top.add_argument("--quiet", action="store_true", help="log only errors")
    top.add_argument("--version", "-v", action="store_true")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    verbs = commands.add_parser("cdi", allow_abbrev=False).add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    made = verbs.add_parser("generate", help="write the CDI specification of this host", allow_abbrev=False)
    made.add_argument("--output", default="", metavar="FILE", help="default: stdout")
    made.add_argument("--format", choices=("yaml", "json"), type=str.lower, help="default: as the file is called, else yaml")
    made.add_argument("--device-name-strategy", action="append", metavar="|".join(cdi.STRATEGIES), help="default: index and uuid")
    made.add_argument("--mode", "--discovery-mode", default="auto", choices=("auto", "nvml"), type=str.lower)
    made.add_argument("--vendor", "--cdi-vendor", default="nvidia.com")
    made.add_argument("--class", "--cdi-class", dest="class_name", default="gpu")
    for option in IGNORED:
        made.add_argument(option, action="append", help="ignored")
    listed = verbs.add_parser("list", help="print the names of the devices in the specifications", allow_abbrev=False)
    listed.add_argument("--spec-dir", action="append", metavar="DIR", help=f"default: {', '.join(SPEC_DIRS)}")
    return top


def _state(nvml: Nvml) -> dict[str, t.Any]:
    """Where the host keeps its nodes and its state. Raises SimError as the real program fails without a driver."""
    code = nvml.call("nvmlInit_v2")
    if code:
        reason = f"failed to construct device spec generators: failed to initialize NVML: {nvml.text_of(code)}"
        raise SimError(f"failed to generate CDI spec: failed to create device CDI specs: {reason}")
    nvml.close()  # the side door must not be used while NVML is open in this process
    return State(state_path(), "nvidia-ctk").dump()


def _generate(args: argparse.Namespace, log: t.Callable[[str, str], None]) -> None:
    strategies = cdi.strategies(args.device_name_strategy)
    output = cdi.output_name(args.output, args.format)
    try:
        nvml = Nvml()
    except SmiError as error:
        raise SimError("failed to generate CDI spec: failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND") from error
    nodes = _state(nvml)["device_nodes"]
    if nodes is None:
        log("warning", "Device nodes are off (simctl set device-nodes on): no engine will find what this specification names")
    directory = nodes["directory"] if nodes else "/dev"
    nvml.open()
    try:
        devices = cdi.devices(nvml, directory, strategies)
    finally:
        nvml.close()
    spec = cdi.specification(f"{args.vendor}/{args.class_name}", devices, cdi.common_edits(directory, cdi.loaded_library(), state_path()))
    text = cdi.as_text(spec, output.format)
    if output.file is None:
        sys.stdout.write(text)
    else:
        cdi.save(output.file, text)
    log("info", f"Generated CDI spec with version {spec['cdiVersion']}")


def _list(args: argparse.Namespace, log: t.Callable[[str, str], None]) -> None:
    names, complaints = cdi.names_in(args.spec_dir or list(SPEC_DIRS))
    for complaint in complaints:
        log("warning", complaint)
    log("info", f"Found {len(names)} CDI devices")
    for name in names:
        print(name)


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code is 0, or 1 with one line on stderr."""
    try:
        args = _parser().parse_args(argv)
        if args.version:
            print(f"NVIDIA Container Toolkit CLI version {VERSION}\ncommit: simulated")
            return 0

        def log(level: str, message: str) -> None:
            if not args.quiet:
                _log(level, message)

        if args.command is None:
            raise SimError("which command? this stand-in knows `cdi generate`, `cdi list` and --version")
        (_generate if args.verb == "generate" else _list)(args, log)
    except (SimError, SmiError, ControlError) as error:
        _log("error", str(error))
        return 1
    return 0
