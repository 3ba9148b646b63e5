#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# A kernel as files with one GPU that nobody drives, its headers, a modprobe for NVIDIA's modules, and a package with NVIDIA's names.
set -eu
mkdir -p /lib/modules/6.12.0/kernel /lib/modules/6.12.0/build
touch /lib/modules/6.12.0/build/Makefile
cat > /srv/modprobe <<'MODPROBE'
#!/bin/sh
# The driver shows what modprobe.d gives it.
there=/srv/world/proc/driver/nvidia
[ "$1" = nvidia ] || exit 0
mkdir -p "$there"
for name in RegistryDwords RegistryDwordsPerDevice; do
    printf '%s: "%s"\n' "$name" "$(sed -n "s/^options nvidia NVreg_$name=\"\(.*\)\"$/\1/p" /etc/modprobe.d/*.conf)"
done > "$there/params"
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.02  Tue Sep 23 10:11:08 UTC 2025' > "$there/version"
python3 -c '
import sys
from pathlib import Path
sys.path.insert(0, "/srv")
from kernel import tree
tree.load(Path("/srv/world"), "nvidia")
'
MODPROBE
chmod 0755 /srv/modprobe
root=$(mktemp -d)
mkdir -p "$root/DEBIAN" "$root/usr/bin" "$root/usr/lib/nvidia" "$root/usr/lib/x86_64-linux-gnu" "$root/usr/lib/systemd/system" \
    "$root/usr/lib/modules/6.12.0/updates"
printf 'Package: nvidia-vgpu-ubuntu-580\nVersion: 580.95.02\nArchitecture: amd64\nMaintainer: nobody <nobody@example.com>\nDescription: stand-in\n' \
    > "$root/DEBIAN/control"
touch "$root/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.02" "$root/usr/lib/modules/6.12.0/updates/nvidia.ko"
for name in nvidia-vgpud nvidia-vgpu-mgr; do
    printf '#!/bin/sh\n' > "$root/usr/bin/$name"
    printf '[Service]\nExecStart=/usr/bin/%s\n[Install]\nWantedBy=multi-user.target\n' "$name" > "$root/usr/lib/systemd/system/$name.service"
done
printf '#!/bin/sh\nexec /srv/kernel/vgpu_bin/sriov-manage "$@"\n' > "$root/usr/lib/nvidia/sriov-manage"
chmod 0755 "$root" "$root"/usr/bin/* "$root/usr/lib/nvidia/sriov-manage"
dpkg-deb --root-owner-group --build "$root" /srv/nvidia-vgpu-ubuntu-580_580.95.02_amd64.deb > /dev/null
rm -r "$root"
python3 -c '
import sys
from pathlib import Path
sys.path.insert(0, "/srv")
from kernel.tree import Tree, put
tree = Tree(Path("/srv/world"))
vgpu = {"framework": "vendor", "types": {"700": {"name": "NVIDIA A100D-10C", "cost": 10}}, "room": 80}
tree.gpu(driver=None, vfs=12, vf_device="20b5", stride=(4, 1), vgpu=vgpu)
put(tree.proc / "sys/kernel/osrelease", "6.12.0\n")
'
