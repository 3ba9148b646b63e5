#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# A kernel as files, one disk with its driver, and what GRUB and initramfs-tools need to do their work without a disk.
set -eu
cat > /usr/sbin/grub-probe <<'PROBE'
#!/bin/sh
case "$*" in
*fs_uuid*) echo 0f3c2b1a-0000-4000-8000-000000000001 ;;
*partuuid*) echo 0f3c2b1a-01 ;;
*target=device*) echo /dev/vda1 ;;
*target=fs*) echo ext2 ;;
*target=partmap*) echo gpt ;;
esac
PROBE
mkdir -p /boot/grub /lib/modules/6.12.0
echo 'not a kernel' > /boot/vmlinuz-6.12.0
echo 'CONFIG_RD_ZSTD=y
CONFIG_BLK_DEV_INITRD=y
CONFIG_INTEL_IOMMU_DEFAULT_ON_INTGPU_OFF=y' > /boot/config-6.12.0
depmod 6.12.0
printf 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n' > /etc/default/grub
update-initramfs -c -k 6.12.0
update-grub
cp /boot/grub/grub.cfg /srv/grub.cfg.before
python3 -c '
import sys
from pathlib import Path
sys.path.insert(0, "/srv")
from kernel.tree import NVME, Tree
tree = Tree(Path("/srv/world"))
tree.add("0000:3b:00.0", ("144d", "a808", "144d", "a801"), NVME, group=20, driver="nvme")
(tree.proc / "cpuinfo").write_text("vendor_id\t: GenuineIntel\n")
(tree.proc / "cmdline").write_text("BOOT_IMAGE=/vmlinuz root=/dev/vda1 ro hugepagesz=2M hugepages=8 quiet\n")
'
