# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the unit tests share: a host with simulated GPUs below the real pynvml, and a way to run a module in this process.

``fleet_host(*boards)`` gives a :class:`FleetHost`; ``run_module(name, args)`` gives what the module printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import typing as t
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

if t.TYPE_CHECKING:
    from gateway_world import MakeGateway, MakeService

REPOSITORY = Path(__file__).resolve().parents[2]
SIMULATOR = REPOSITORY / "build" / "simulator"
DOOR = "NVML_SIM_STATE"


@pytest.fixture(autouse=True)
def handlers() -> t.Iterator[None]:
    """A program under test that runs in this process sets its handlers of signals here: the next test must not inherit them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def simulator() -> Path:
    """The built simulator (``make simulator``), loaded once: pynvml then finds the library under its usual name."""
    library = SIMULATOR / "libnvidia-ml.so.1"
    if not library.exists():
        pytest.fail(f"{library} is missing: run `make simulator`")
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    sys.path.append(str(SIMULATOR / "lib"))
    return SIMULATOR


@dataclass(frozen=True)
class FleetHost:
    """A host with simulated GPUs: ``state`` is its directory, ``env`` what another process needs to see the same GPUs."""

    state: Path
    env: dict[str, str]

    def simctl(self, *args: str, check: bool = True) -> t.Any:
        """Run ``simctl``; JSON is returned as data, other output as text. A failure ends the test with its words."""
        run = self._run_outside if _session_is_open() else self._run_here
        code, printed, complaint = run(args)
        if check and code != 0:
            pytest.fail(f"simctl {' '.join(args)}: exit {code}: {complaint or printed}")
        try:
            return json.loads(printed)
        except ValueError:
            return printed

    def _run_here(self, args: t.Sequence[str]) -> tuple[int, str, str]:
        """In this process, which saves starting one."""
        printed, complaint = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
            try:
                code = importlib.import_module("nvmlsim.simctl").main(["--state", str(self.state), *args])
            except SystemExit as ended:  # argparse refuses
                code = ended.code
        return int(code or 0), printed.getvalue(), complaint.getvalue()

    def _run_outside(self, args: t.Sequence[str]) -> tuple[int, str, str]:
        """As another process would, while this one has a session with the library open."""
        env = {key: value for key, value in self.env.items() if not key.startswith("COVERAGE")}
        done = subprocess.run([str(SIMULATOR / "bin" / "simctl"), *args], env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def calls(self, *, mutations: bool = False) -> list[dict[str, t.Any]]:
        """The NVML calls so far, in order: ``{"call": ..., "result": ..., ...}``."""
        entries = self.simctl("log", "--json", *(["--mutations"] if mutations else []))
        return list(entries)


def _session_is_open() -> bool:
    """Whether this process has NVML initialised; the library then refuses simctl's side door here."""
    return bool(pynvml._nvmlLib_refcount)


MakeHost = t.Callable[..., FleetHost]


@pytest.fixture
def fleet_host(simulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeHost:
    """Make a host: ``fleet_host("a100-sxm4-80gb:2", "l40s")``; without boards, a host that has a driver and no GPU.

    This process sees the host that was made last.
    """
    made: list[FleetHost] = []

    def make(*boards: str) -> FleetHost:
        state = tmp_path / f"gpus{len(made)}"
        env = dict(
            os.environ,
            LD_LIBRARY_PATH=str(simulator),
            PATH=os.pathsep.join([str(simulator / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        )
        env[DOOR] = str(state)
        host = FleetHost(state, env)
        wanted = [part for board in boards for part in ("--board", board)]
        host.simctl("create", *wanted)
        monkeypatch.setenv(DOOR, str(state))
        made.append(host)
        return host

    return make


def _module_args(args: dict[str, t.Any], check: bool, diff: bool, where: Path) -> bytes:
    internal = {
        "_ansible_check_mode": check,
        "_ansible_diff": diff,
        "_ansible_remote_tmp": str(where),
        "_ansible_keep_remote_files": False,
        "_ansible_no_log": False,
    }
    return json.dumps({"ANSIBLE_MODULE_ARGS": {**args, **internal}}).encode()


RunModule = t.Callable[..., dict[str, t.Any]]


@pytest.fixture
def run_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunModule:
    """Run a module's ``main()`` in this process: ``run_module("mig", {...}, check=True)`` gives its JSON, with ``failed`` always there."""

    def run(name: str, args: dict[str, t.Any], check: bool = False, diff: bool = False) -> dict[str, t.Any]:
        from ansible.module_utils import basic

        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", _module_args(args, check, diff, tmp_path))
        # ansible-core 2.19 also wants to know how the arguments are written; 2.16 has no such name.
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        # Other tests here load the controller's display; 2.19 would then print a module's warnings instead of returning them.
        with contextlib.suppress(ImportError):
            monkeypatch.setattr(importlib.import_module("ansible.module_utils._internal"), "is_controller", False)
        module = importlib.import_module(f"ansible_collections.gpuops.fleet.plugins.modules.{name}")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
            module.main()
        lines = [line for line in printed.getvalue().splitlines() if line.startswith("{")]
        result: dict[str, t.Any] = json.loads(lines[-1])
        result.setdefault("failed", False)
        assert bool(ended.value.code) == result["failed"], "exit status and result disagree"
        return result

    return run


@pytest.fixture(scope="session")
def haproxy_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """HAProxy of this machine, or out of Debian's package, kept below build/."""
    from gateway_world import haproxy_here

    return haproxy_here(tmp_path_factory)


@pytest.fixture
def gateway(haproxy_program: str, run_module: RunModule, tmp_path: Path) -> t.Iterator[MakeGateway]:
    """``gateway(rate=0)``: a gateway with these settings that is gone when the test is."""
    from gateway_world import Gateway

    with contextlib.ExitStack() as ends:
        yield lambda **more: ends.enter_context(contextlib.closing(Gateway(tmp_path, run_module, haproxy_program, more=more)))


@pytest.fixture
def service() -> t.Iterator[MakeService]:
    """``service("one")``: a service that answers with this word."""
    from gateway_world import Service

    with contextlib.ExitStack() as ends:
        yield lambda *words: ends.enter_context(contextlib.closing(Service(*words)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much the proofs of MIG tried: what a proof recorded with ``record_property`` is added up and printed, passed or not."""
    told = [prop for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, []) for prop in report.user_properties]
    found = {name: [value for key, value in told if key == name] for name in ("pairs", "points", "twice")}
    if found["pairs"]:
        pairs, boards = sum(one["pairs"] for one in found["pairs"]), len(found["pairs"])
        terminalreporter.write_line(f"random pairs of layouts tried: {pairs} on {boards} boards{_seconds(found['pairs'])}")
    if found["points"]:
        kinds: dict[str, int] = {}
        for one in found["points"]:
            for kind, count in one["points"].items():
                kinds[kind] = kinds.get(kind, 0) + count
        changes = sum(one["changes"] for one in found["points"])
        boards = ", ".join(sorted(one["board"] for one in found["points"]))
        parts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        terminalreporter.write_line(
            f"crash points tried: {sum(kinds.values())} in {changes} layout changes on {boards}: {parts}{_seconds(found['points'])}"
        )
        for left_out in sorted({one["left_out"] for one in found["points"]} - {""}):
            terminalreporter.write_line(f"crash points left out: {left_out}; all: MIG_PROOF=complete")
    if found["twice"]:
        terminalreporter.write_line(f"two runs at once: {sum(one['times'] for one in found['twice'])} times{_seconds(found['twice'])}")


def _seconds(found: list[dict[str, t.Any]]) -> str:
    return f" ({round(sum(one['seconds'] for one in found))} s)"
