# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that a story lays into a guest to break something on purpose. They run with the guest's own Python."""

from __future__ import annotations

import textwrap

# Destroys GPU instance ARGV[1] of the first GPU with its compute instance, and makes both again unless a second word forbids it.
# What becomes of the UUID is a setting of the simulated driver.
REMAKE = textwrap.dedent("""\
    import ctypes
    import sys
    import pynvml as n
    n.nvmlInit()
    gpu = n.nvmlDeviceGetHandleByIndex(0)
    instance = n.nvmlDeviceGetGpuInstanceById(gpu, int(sys.argv[1]))
    profile, placement = (lambda info: (info.profileId, info.placement))(n.nvmlGpuInstanceGetInfo(instance))
    compute = n.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    kind = n.nvmlComputeInstanceGetInfo(compute).profileId
    n.nvmlComputeInstanceDestroy(compute)
    n.nvmlGpuInstanceDestroy(instance)
    if sys.argv[2:] != ["only-destroy"]:
        again = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, ctypes.byref(placement))
        n.nvmlGpuInstanceCreateComputeInstance(again, kind)
    """)

# Stands before nvidia-ctk: what it does to the slice that is in no plan (ARGV[2:] has the first memory slices of the planned ones).
# `vanish`: the slice is made again under another UUID, so that the engine knows none of its name. `swap`: in the specification, its name
# stands for another slice's nodes, so that a container gets what is another's.
MEDDLE = textwrap.dedent("""\
    import json, subprocess, sys
    import yaml
    how, output, planned = sys.argv[1], sys.argv[2], {int(word) for word in sys.argv[3:]}
    gpu = json.loads(subprocess.run(["simctl", "show", "--json"], capture_output=True, check=True).stdout)["gpus"][0]
    extra = [instance for instance in gpu["mig"]["instances"] if instance["start"] not in planned]
    other = [instance for instance in gpu["mig"]["instances"] if instance["start"] in planned]
    if extra and how == "vanish":
        subprocess.run([sys.executable, "/root/remake.py", str(extra[0]["gi"])], check=True)
    if extra and how == "swap":
        pair = {extra[0]["ci"][0]["uuid"]: other[0]["ci"][0]["uuid"]}
        pair.update({value: key for key, value in pair.items()})
        text = open(output).read()
        spec = yaml.safe_load(text)
        for device in spec["devices"]:
            device["name"] = pair.get(device["name"], device["name"])
        open(output, "w").write(json.dumps(spec) if output.endswith(".json") else yaml.safe_dump(spec))
    """)
