# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which release of the collection this code is. A host's agent and the modules that a play brings must be the same one."""

from __future__ import annotations

VERSION = "0.1.0"
