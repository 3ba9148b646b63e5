# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the integration tests: sites with simulated hosts."""

from __future__ import annotations

import os
import time
import typing as t

import pytest
from fleet_site import SIMULATOR, MakeSite, Site

# Seconds since the epoch: whoever has only so much time says from when on no test of these is begun. All are, where nothing is said.
UNTIL = "GPUOPS_INTEGRATION_UNTIL"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that count for coverage, the broadest ones, come first, so that they are begun in time."""
    items.sort(key=lambda item: item.get_closest_marker("measured") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before any site is made for the test."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip(f"not begun: {UNTIL} was over; run it by hand: make test")


@pytest.fixture(scope="session", autouse=True)
def _simulator() -> None:
    if not (SIMULATOR / "libnvidia-ml.so.1").exists():
        pytest.fail(f"{SIMULATOR} is not built: run `make simulator`")


@pytest.fixture(scope="module", autouse=True)
def _measured(request: pytest.FixtureRequest) -> t.Iterator[None]:
    """Playbooks of files marked ``measured`` count for coverage. It makes each half as slow again."""
    with pytest.MonkeyPatch.context() as patched:
        if request.node.get_closest_marker("measured") is None:
            for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
                patched.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def make_site(tmp_path_factory: pytest.TempPathFactory) -> MakeSite:
    """``make_site(a="a100-80gb:1")``: a site with these hosts."""

    def make(**hosts: str) -> Site:
        return Site(tmp_path_factory.mktemp("site"), {name.replace("_", "-"): board for name, board in hosts.items()})

    return make
