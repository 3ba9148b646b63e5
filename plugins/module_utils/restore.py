# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's GPUs back to what they were before a boot: whom virtual machines had, settings, layout, what the engine knows of slices.

GPU and compute instances survive a boot on no generation, MIG mode itself only on Ampere, and clocks, power limits and compute mode on
none. The host agent's first unit runs this before Docker starts. One part that fails keeps no other from being tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ansible_collections.gpuops.fleet.plugins.module_utils import (
    cdi,
    commands,
    gpu_settings,
    host,
    mig_run,
    passthrough_boot,
    passthrough_papers,
    pci,
)
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import NvmlError, NvmlLibraryMissing, PynvmlMissing
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_look import Options as DeviceOptions
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Sysfs

HOLDER = "host agent"
# What a boot has to bring back, each kept by the code that wrote it.
_KEPT = ("layout.json", "gpu-settings.json", "mig-journal.json")
_POLL_SECONDS = 1.0
# After a boot nobody holds the host; Docker waits for us, so a play that came first is not waited for longer than this.
_LEASE_SECONDS = 60

Say = Callable[[str], None]


def restore(config: Config, say: Say = commands.say) -> list[str]:
    """Restore and verify everything that is kept; it can be run at any time. Returns what failed, a line each.

    FleetError when nothing could be tried: the driver does not answer, or the host's lease is not to be had.
    """
    kept = [name for name in _KEPT if (config.state_dir / name).exists()]
    tells_engine = config.gpu_access == "cdi"
    given_away = any((config.state_dir / name).exists() for name in passthrough_boot.KEPT)
    if not kept and not tells_engine and not given_away:
        say("nothing is kept for the GPUs of this host, so nothing is restored")
        return []
    if not given_away:
        _wait_for_driver(config.driver_wait, say)
    with leases.held(config.state_dir, HOLDER, "restore the GPUs", config.lease_seconds, min(config.lease_wait, _LEASE_SECONDS)) as token:
        leases.refuse_other_agent(config.state_dir)
        problems = _passthrough(config, token, say) if given_away else []
        if given_away:  # only now is it known which GPUs are left to the driver
            if not (kept or tells_engine) or _all_given_away(config):
                return problems
            _wait_for_driver(config.driver_wait, say)
        parts: list[tuple[str, Callable[[], list[str]]]] = [
            ("settings", lambda: gpu_settings.replay(config.state_dir, config.nvidia_smi, config.proc_root)),
            ("layout", lambda: _layout(config, token)),
        ]
        if tells_engine:
            parts.append(("CDI", lambda: _cdi(config, token)))
        return [*problems, *(problem for name, part in parts for problem in _tried(name, part, say))]


def passthrough(config: Config, say: Say = commands.say) -> list[str]:
    """Give devices to virtual machines again that they had; it can be run at any time and needs no driver. What failed, a line each."""
    with leases.held(config.state_dir, HOLDER, "restore devices of virtual machines", config.lease_seconds, config.lease_wait) as token:
        leases.refuse_other_agent(config.state_dir)
        return _passthrough(config, token, say)


def _passthrough(config: Config, token: str, say: Say) -> list[str]:
    options = DeviceOptions(
        config.state_dir,
        config.sys_root,
        config.proc_root,
        passthrough_papers.rules_path(config.state_dir),
        docker_socket=str(config.docker_socket),
        driver_services=config.driver_services,
        token=token,
    )
    restored = passthrough_boot.restore(options)
    for line in restored.done or ([] if restored.problems else ["as it was kept, nothing to do"]):
        say(f"passthrough: {line}")
    return [f"passthrough: {problem}" for problem in restored.problems]


def _all_given_away(config: Config) -> bool:
    """Whether no GPU is left that NVIDIA's driver could have: then nobody waits for it."""
    sysfs = Sysfs(str(config.sys_root))
    gpus = [one for one in (pci.glance(sysfs, address, str(config.proc_root), config=False) for address in pci.addresses(sysfs)) if one.gpu]
    return bool(gpus) and all(one.with_vfio for one in gpus) and not host.kernel_gpus(str(config.proc_root))


def _tried(name: str, part: Callable[[], list[str]], say: Say) -> list[str]:
    try:
        for line in part():
            say(f"{name}: {line}")
    except FleetError as error:
        return [f"{name}: {error}"]
    return []


def _wait_for_driver(seconds: float, say: Say) -> None:
    """Until NVML answers: after a boot the kernel may still be loading the module. FleetError with NVML's word when it never does."""
    begun = time.monotonic()
    while True:
        try:
            with Nvml():
                break
        except (PynvmlMissing, NvmlLibraryMissing) as error:
            raise FleetError(str(error)) from error  # no time brings these
        except NvmlError as error:
            if time.monotonic() - begun >= seconds:
                raise FleetError(
                    f"the driver did not answer within {seconds:g} s: {error}", hint="see whether nvidia-smi answers"
                ) from error
        time.sleep(_POLL_SECONDS)
    waited = time.monotonic() - begun
    if waited >= _POLL_SECONDS:
        say(f"driver: answers after {waited:.0f} s")


def _layout(config: Config, token: str) -> list[str]:
    """What was done to the layout. FleetError when it is not as kept afterwards."""
    options = mig_run.Options(
        config.state_dir,
        config.proc_root,
        config.nvidia_smi,
        reset=config.allow_reset,
        token=token,
        sys_root=config.sys_root,
        driver_services=config.driver_services,
    )
    result = mig_run.restore(options)
    if result.pending:
        waiting = "; ".join(f"{one['gpu']}: {one['reason']}" for one in result.pending)
        raise FleetError("; ".join([*result.notes, *result.steps, f"not as kept yet, {waiting}"]))
    return [*result.notes, *(result.steps or ["as it was kept, nothing to do"])]


def _cdi(config: Config, token: str) -> list[str]:
    result = cdi.refresh(cdi.Options(config.cdi_spec, config.state_dir, config.nvidia_ctk, token))
    what = "written anew" if result.changed else "as it should be"
    return [f"{config.cdi_spec} is {what}, {len(result.devices)} devices"]
