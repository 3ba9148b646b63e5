#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Makes /proc and /sys of a machine as trees below $WORLD, and puts into the root what a case is about; what the case before brought goes.
set -eu
rm -rf "$WORLD" "/lib/modules/$KERNEL" "/usr/src/linux-headers-$KERNEL"
rm -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.*
mkdir -p "$WORLD/proc/sys/kernel" "$WORLD/sys/bus/pci/devices" "$WORLD/sys/module" "/lib/modules/$KERNEL/kernel"
echo "$KERNEL" > "$WORLD/proc/sys/kernel/osrelease"
number=1
for device in $DEVICES; do
  place="$WORLD/sys/bus/pci/devices/0000:0$number:00.0"
  mkdir -p "$place"
  echo 0x10de > "$place/vendor"
  echo "0x$device" > "$place/device"
  echo 0x030200 > "$place/class"
  number=$((number + 1))
done
if [ -n "$HEADERS" ]; then
  mkdir -p "/usr/src/linux-headers-$KERNEL"
  touch "/usr/src/linux-headers-$KERNEL/Makefile"
  ln -s "/usr/src/linux-headers-$KERNEL" "/lib/modules/$KERNEL/build"
fi
if [ -n "$SECURE_BOOT" ]; then
  mkdir -p "$WORLD/sys/firmware/efi/efivars"
  printf '\006\000\000\000\001' > "$WORLD/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
fi
# A package that is not installed has to be known to dpkg before it can be held.
printf 'Package: gcc\nStatus: %s ok not-installed\nPriority: optional\nSection: devel\n\n' "$([ -n "$HELD" ] && echo hold || echo unknown)" > "$WORLD/gcc"
python3 - "$WORLD/gcc" <<'END'
import pathlib, sys
path = pathlib.Path("/var/lib/dpkg/status")
parts = [part for part in path.read_text().split("\n\n") if part.strip() and not part.startswith("Package: gcc\n")]
new = pathlib.Path(sys.argv[1]).read_text().strip()
path.write_text("\n\n".join([*(part.strip("\n") for part in parts), *([new] if "hold" in new else [])]) + "\n\n")
END
if [ -n "$LIBRARY" ]; then
  touch "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.$LIBRARY"
fi
