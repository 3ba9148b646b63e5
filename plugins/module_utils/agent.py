# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent's command line: what a host does with no controller near, by the same code that a play brings.

``gpuops-fleet-agent restore | passthrough | vgpus | services | watch | leases | status | version [--config FILE]``. What was done goes
to stdout, what is wrong to stderr, one line each. Exit status: 0 all is well, 1 something is missing or failed (named), 2 the command or
its configuration is of no use, 3 another holds the host.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import typing as t
from collections.abc import Callable, Sequence
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import agent_config
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from ansible_collections.gpuops.fleet.plugins.module_utils.commands import say
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.lease import LeaseError
from ansible_collections.gpuops.fleet.plugins.module_utils.version import VERSION

WELL, FAILED, USELESS, HELD = 0, 1, 2, 3


def _complain(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _module(name: str) -> t.Any:
    """Each verb brings its own part along when it is asked for: a boot waits for none that it does not need."""
    return importlib.import_module(f"ansible_collections.gpuops.fleet.plugins.module_utils.{name}")


def _restore(config: Config) -> int:
    return _told(_module("restore").restore(config, say))


def _passthrough(config: Config) -> int:
    return _told(_module("restore").passthrough(config, say))


def _vgpus(config: Config) -> int:
    return _told(_module("vgpu_boot").restore(config, say))


def _services(config: Config) -> int:
    return _told(_module("services").bring_up(config, say=say))


def _watch(config: Config) -> int:
    return int(_module("watch").run(config.plain()))


def _leases(config: Config) -> int:
    return _told(_module("lease_round").look(config, say=say))


def _status(config: Config) -> int:
    lines, well = _module("services").describe(config)
    say(f"gpuops.fleet {VERSION}")
    for line in lines:
        say(line)
    return WELL if well else FAILED


def _end(number: int, _frame: t.Any) -> t.NoReturn:
    """End as whoever is told to, but give the host's lease back: a restart of the engine ends this process and starts it again."""
    raise SystemExit(128 + number)


def _told(problems: Sequence[str]) -> int:
    for problem in problems:
        _complain(problem)
    return FAILED if problems else WELL


VERBS: dict[str, tuple[Callable[[Config], int], str]] = {
    "restore": (_restore, "bring devices of virtual machines, GPU settings, layout and the CDI specification back to what they were"),
    "passthrough": (_passthrough, "give devices to virtual machines again that they had; a part of restore"),
    "vgpus": (_vgpus, "make vGPUs again that virtual machines had, after restore brought GPU instances back"),
    "services": (_services, "start every service on its own slices, stop what runs on others"),
    "watch": (_watch, "start again what dies, and keep the ledger; does not end"),
    "leases": (_leases, "give notice of leases of services that end soon, and stop those that are over"),
    "status": (_status, "say which service runs where; changes nothing"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status."""
    parser = argparse.ArgumentParser(prog="gpuops-fleet-agent", description="gpuops.fleet's agent on a GPU host")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (_function, words) in VERBS.items():
        verb = verbs.add_parser(name, help=words, description=words)
        verb.add_argument("--config", type=Path, default=agent_config.DEFAULT_PATH, metavar="FILE", help="default: %(default)s")
    verbs.add_parser("version", help="say which release this is")
    verbs.add_parser("mps", help="what the units of MPS daemons call", add_help=False)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["mps"]:  # its paths are those of the unit, so it needs no configuration
        return int(_module("mps").main(given[1:]))
    asked = parser.parse_args(given)
    if asked.verb == "version":
        say(VERSION)
        return WELL
    try:
        config = agent_config.read(asked.config)
    except FleetError as error:
        _complain(str(error))
        return USELESS
    signal.signal(signal.SIGTERM, _end)  # the watch sets its own
    try:
        return VERBS[asked.verb][0](config)
    except LeaseError as error:
        _complain(str(error))
        return HELD
    except FleetError as error:
        _complain(str(error))
        return FAILED


if __name__ == "__main__":
    raise SystemExit(main())
