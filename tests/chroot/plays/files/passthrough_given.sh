#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# What role passthrough_host leaves on the disk when a device is given away.
set -eu
lines=$(grep -c '^[[:space:]]*linux[[:space:]]' /boot/grub/grub.cfg)
with=$(grep -c '^[[:space:]]*linux[[:space:]].* hugepagesz=2M hugepages=8\( \|$\)' /boot/grub/grub.cfg)
[ "$lines" -gt 0 ] && [ "$lines" = "$with" ]
[ "$(basename "$(readlink /srv/world/sys/bus/pci/devices/0000:3b:00.0/driver)")" = vfio-pci ]
lsinitramfs /boot/initrd.img-6.12.0 | grep -qx etc/udev/rules.d/70-gpuops-fleet-passthrough.rules
modprobe=/usr/sbin/modprobe
"$modprobe" --set-version 6.12.0 --showconfig | grep -qx 'softdep nouveau pre: vfio-pci'
grep -qx vfio-pci /etc/modules-load.d/gpuops-fleet-passthrough.conf
