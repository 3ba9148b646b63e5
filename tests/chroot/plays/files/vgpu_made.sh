#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# What role vgpu_host leaves when a host gives vGPUs away.
set -eu
[ "$(dpkg-query --show --showformat='${Version}' nvidia-vgpu-ubuntu-580)" = 580.95.02 ]
grep -qx 'options nvidia NVreg_RegistryDwords="RmPVMRL=0x01"' /etc/modprobe.d/gpuops-fleet-vgpu.conf
grep -qx 'RegistryDwords: "RmPVMRL=0x01"' /srv/world/proc/driver/nvidia/params
[ "$(cat /srv/world/sys/bus/pci/devices/*/nvidia/current_vgpu_type | grep -c '^700$')" = 2 ]
for name in nvidia-vgpud nvidia-vgpu-mgr; do
    [ "$(systemctl is-enabled "$name.service")" = enabled ]
done
grep -q A100D-10C /var/lib/gpuops-fleet/vgpus.json
