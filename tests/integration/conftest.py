# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the integration tests: sites with simulated hosts."""

from __future__ import annotations

import pytest
from fleet_site import SIMULATOR, MakeSite, Site


@pytest.fixture(scope="session", autouse=True)
def _simulator() -> None:
    if not (SIMULATOR / "libnvidia-ml.so.1").exists():
        pytest.fail(f"{SIMULATOR} is not built: run `make simulator`")


@pytest.fixture(scope="module")
def make_site(tmp_path_factory: pytest.TempPathFactory) -> MakeSite:
    """``make_site(a="a100-80gb:1")``: a site with these hosts."""

    def make(**hosts: str) -> Site:
        return Site(tmp_path_factory.mktemp("site"), {name.replace("_", "-"): board for name, board in hosts.items()})

    return make
