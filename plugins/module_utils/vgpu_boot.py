# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a host's vGPUs again after a boot: what the host agent's verb ``vgpus`` does.

Neither vGPUs nor virtual functions survive a boot, and mdevctl brings no vGPU back that is backed by a GPU instance. So the chain is
replayed: MIG mode and GPU instances by the agent's first unit, then functions, mixed-size mode, scheduler and types here.
"""

from __future__ import annotations

from collections.abc import Callable

from ansible_collections.gpuops.fleet.plugins.module_utils import commands, vgpu_run
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_state import VGPUS

HOLDER = "host agent"
# Guests wait for us, so a play that came first is not waited for longer than this.
_LEASE_SECONDS = 60


def restore(config: Config, say: Callable[[str], None] = commands.say) -> list[str]:
    """Make what is kept; it can be run at any time. Returns what failed, a line each. FleetError when the host's lease is not to be had."""
    if not any((config.state_dir / name).exists() for name in (VGPUS.name, vgpu_run.JOURNAL)):
        say("no vGPUs are kept for this host, so none are made")
        return []
    wait = min(config.lease_wait, _LEASE_SECONDS)
    with leases.held(config.state_dir, HOLDER, "make the vGPUs again", config.lease_seconds, wait) as token:
        leases.refuse_other_agent(config.state_dir)
        options = vgpu_run.Options(
            config.state_dir,
            config.sys_root,
            config.proc_root,
            sriov_manage=config.sriov_manage,
            nvidia_smi=config.nvidia_smi,
            token=token,
        )
        try:
            result = vgpu_run.replay(options, config.driver_wait)
        except leases.LeaseError:
            raise
        except FleetError as error:
            return [f"vGPUs: {error}"]
    for line in [*result.notes, *(result.steps or ["as they were kept, nothing to do"])]:
        say(f"vGPUs: {line}")
    return []
