# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vGPUs that a host remembers, because neither they nor virtual functions survive a boot.

``vgpus.json``: ``{format: 1, gpus: {PCI address: {vfs, mixed, scheduler, vgpus: [...], identity, boot}}}``, lines as of
``vgpu_wish.line_of``. ``identity``: UUID, vendor and device of the card, for an address may have another one after a change of hardware.
``boot``: in which the scheduler was set.
"""

from __future__ import annotations

from ansible_collections.gpuops.fleet.plugins.module_utils.gpu_lines import GpuLines

VGPUS = GpuLines("vgpus.json", "what was remembered of the vGPUs", "run module vgpu again: that writes the file anew")
