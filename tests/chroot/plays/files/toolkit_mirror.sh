#!/bin/sh
# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# A signed mirror in the layout of NVIDIA's, below /srv/mirror. Its packages have NVIDIA's names and a stand-in for nvidia-ctk, nothing else.
set -eu
there=/srv/mirror/stable/deb/amd64
mkdir -p "$there"
for version in 1.11.0 1.17.8 1.18.0; do
    for name in nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1; do
        root=$(mktemp -d)
        mkdir -p "$root/DEBIAN"
        printf 'Package: %s\nVersion: %s-1\nArchitecture: amd64\nMaintainer: nobody <nobody@example.com>\nDescription: stand-in\n' \
            "$name" "$version" > "$root/DEBIAN/control"
        if [ "$name" = nvidia-container-toolkit-base ]; then
            mkdir -p "$root/usr/bin"
            printf '#!/bin/sh\necho "NVIDIA Container Toolkit CLI version %s"\n' "$version" > "$root/usr/bin/nvidia-ctk"
            chmod 0755 "$root/usr/bin/nvidia-ctk"
        fi
        chmod 0755 "$root"
        dpkg-deb --root-owner-group --build "$root" "$there/${name}_${version}-1_amd64.deb" > /dev/null
        rm -r "$root"
    done
done
cd "$there"
apt-ftparchive packages . > Packages
apt-ftparchive release . > /tmp/Release
mv /tmp/Release Release
GNUPGHOME=$(mktemp -d)
export GNUPGHOME
gpg --batch --quiet --passphrase '' --quick-generate-key mirror@example.com rsa3072 sign never
gpg --batch --quiet --clearsign --output InRelease Release
gpg --batch --quiet --armor --export mirror@example.com > /srv/mirror/gpgkey
gpgconf --kill all
