# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every tool needs and nothing heavy: it is imported at each start of simctl."""

from __future__ import annotations

import os

# The newest branch that still serves every board from Volta to Blackwell (hosts.md, section 1.1).
DRIVER, CUDA = "580.105.08", 13000
# The driver's table of MIG capabilities (mig-minors): 32 GPUs of 15 GPU instances of 8 compute instances, from 3 on.
TABLE_GPUS, FIRST_CAP, CAPS_OF_GPU, CAPS_OF_GI = 32, 3, 135, 9
# Which host is meant when nobody says: the library knows the same directory (sim.h).
DEFAULT_STATE = "/var/lib/nvmlsim"


class SimError(Exception):
    """A mistake of the person who types; ``str()`` is the one line to print."""


def state_path() -> str:
    """Directory of the simulated host: ``$NVML_SIM_STATE``, else the default."""
    return os.environ.get("NVML_SIM_STATE") or DEFAULT_STATE
