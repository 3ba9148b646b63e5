#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# An engine at work, a container on it, and a CDI device that is a node of this kernel under NVIDIA's name.
set -eu
/usr/local/sbin/systemctl start docker.service
mkdir -p /tmp/image/bin /etc/cdi
cp /bin/busybox /tmp/image/bin
tar -C /tmp/image -c . | docker import - image
docker run --detach --name before --network none image /bin/busybox sleep 100000
mknod /dev/nvidia0 c 1 3
cat > /etc/cdi/nvidia.yaml <<'END'
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: GPU-1
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
END
