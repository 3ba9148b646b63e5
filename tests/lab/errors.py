# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong in the lab, said in one line."""

from __future__ import annotations


class LabError(Exception):
    """What went wrong and what would be right, in one line; the lab ends with it."""
