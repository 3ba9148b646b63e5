#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Nothing of role passthrough_host is left once its variables are gone.
set -eu
diff /srv/grub.cfg.before /boot/grub/grub.cfg
[ "$(basename "$(readlink /srv/world/sys/bus/pci/devices/0000:3b:00.0/driver)")" = nvme ]
[ "$(lsinitramfs /boot/initrd.img-6.12.0 | grep -c gpuops)" = 0 ]
[ -z "$(find /etc -name '*gpuops-fleet-passthrough*')" ]
