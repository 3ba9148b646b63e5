#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# In place of systemd, which does not run in this root: does to the engine what Debian's docker.service would.
start() {
    pidof containerd > /dev/null || setsid containerd > /var/log/containerd.log 2>&1 < /dev/null &
    setsid dockerd --iptables=false --ip6tables=false --bridge=none --cgroup-parent=/gpuops-chroot --storage-driver=vfs \
        --containerd=/run/containerd/containerd.sock > /var/log/dockerd.log 2>&1 < /dev/null &
    for _ in $(seq 120); do
        docker info > /dev/null 2>&1 && return 0
        sleep 0.5
    done
    tail -n 1 /var/log/dockerd.log >&2
    return 1
}
case "$1" in
    show) echo process ;;
    start) pidof dockerd > /dev/null || start ;;
    reload) kill -HUP "$(cat /run/docker.pid)" ;;
    restart)
        kill "$(cat /run/docker.pid)"
        # It takes its file away when it ends; nobody waits for the process here, so that it would be there for ever.
        while [ -e /run/docker.pid ]; do sleep 0.2; done
        start
        ;;
    *) echo "Running in chroot, ignoring command '$1'" >&2 ;;
esac
