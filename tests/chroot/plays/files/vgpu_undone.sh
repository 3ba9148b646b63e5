#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# No vGPU of role vgpu_host is left once its variables are gone; the driver stays.
set -eu
[ ! -e /etc/modprobe.d/gpuops-fleet-vgpu.conf ]
[ -z "$(find /srv/world/sys/devices -name current_vgpu_type)" ]
[ -e /usr/bin/nvidia-vgpu-mgr ]
