# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the lab keeps what it makes: everything below build/lab of this checkout."""

from __future__ import annotations

from pathlib import Path

LAB = Path(__file__).resolve().parent
REPOSITORY = LAB.parents[1]
SCENARIOS = REPOSITORY / "extensions" / "molecule"
BUILD = REPOSITORY / "build" / "lab"
IMAGES = BUILD / "images"
SITES = BUILD / "sites"
LOGS = BUILD / "logs"
