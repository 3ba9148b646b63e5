# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's word when it refuses a write, as strerror(3) has it."""

from __future__ import annotations

BUSY = "Device or resource busy"
INVALID = "Invalid argument"
NO_DEVICE = "No such device"
EXISTS = "File exists"
NO_SPACE = "No space left on device"
DENIED = "Operation not permitted"


class Refusal(Exception):
    """The write fails with this word."""
