# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The OCR service as container images, out of Debian packages: one layer that mmdebstrap makes, in an OCI archive that skopeo pushes.

Version 2 and its broken ones (:data:`RELEASES`) have a second layer of a few hundred bytes over the same first one.

Packages are extracted, not installed: no package manager, no shell utilities, and no file that only an installation needs. What the
service runs is tried in the finished root before it becomes a layer. All times are fixed: same packages, same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import typing as t
import zlib
from pathlib import Path

from lab.commands import run
from lab.errors import LabError
from lab.packages import PATHS, Mirror

Say = t.Callable[[str], None]
Data = dict[str, t.Any]

SERVICE, SECOND = (Path(__file__).with_name(name) for name in ("service.py", "release2.py"))
SUITE = "trixie"
# dash: a health check of Compose is a line for /bin/sh. libpython3-stdlib: http.server, json and ctypes are not in python3-minimal.
PACKAGES = (
    "base-files", "dash", "python3-minimal", "libpython3-stdlib", "tesseract-ocr", "tesseract-ocr-eng", "tesseract-ocr-chi-tra",
)  # fmt: skip
LANGUAGES = "eng+chi_tra"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# What these packages or their dependencies bring and the service never opens. ICU, Pango and X11 are there for tesseract's training tools.
UNUSED = (
    "usr/share/{doc,man,locale,info,fonts,fontconfig,X11,zoneinfo,perl5,gcc,lintian,libthai,bash-completion,python3,gdb,common-licenses}",
    "usr/share/tesseract-ocr/5/tessdata/osd.traineddata",
    "usr/sbin/* usr/lib/{dpkg,mime,systemd,tmpfiles.d,apt} var/{lib,cache}/* tmp/*",
    "etc/{apt,dpkg,hostname,resolv.conf,fstab,cron.daily}",
    f"{LIBRARIES}/{{gconv,glib-2.0,engines-3,ossl-modules,krb5,gio,sasl2,perl-base}}",
    f"{LIBRARIES}/lib{{icu,gio,glib,gobject,gmodule,gthread,cairo,pango,harfbuzz,graphite2,pixman,X11,Xext,Xrender,Xau,Xdmcp,xcb}}*",
    f"{LIBRARIES}/lib{{db-5,sqlite3,mvec,freetype,fontconfig,brotlienc,thai,datrie,fribidi,mount,blkid}}*",
    "usr/lib/python3.*/{test,idlelib,ensurepip,pydoc_data,unittest,asyncio,multiprocessing,_pyrepl,xmlrpc,wsgiref,venv,curses,sqlite3}",
)
PROGRAMS = ("tesseract", "dash", "sh", "python3", "python3.*")
PROGRAM_FOLDER = "/usr/lib/ocr"
# Compiled once here: an emulated processor would take seconds at each start. Never compared with its source, whose time was changed.
COMPILE = """
import importlib.util, py_compile, sys
sys.path.insert(0, sys.argv[1])
import service, urllib.request
for module in list(sys.modules.values()):
    source = getattr(module, "__file__", None) or ""
    if source.endswith(".py"):
        py_compile.compile(source, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""
CREATED, EPOCH = "2026-01-01T00:00:00Z", "1767225600"
USER = "65534:65534"
PORT = "8080/tcp"
# Unpacking in an emulated guest costs more than the bytes on a local wire: little compression.
LEVEL = 1
CHUNK = 2**20
FREE_MIB = 600
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
TAG = "lab"
BUILD_SECONDS, PUSH_SECONDS = 900, 300


class Release(t.NamedTuple):
    """An image of the archive: the program that it runs, and what else its environment says."""

    program: Path
    environment: tuple[str, ...] = ()


# By tag.
RELEASES = {
    TAG: Release(SERVICE),
    "two": Release(SECOND),
    "never-healthy": Release(SECOND, ("OCR_FAULT=never-healthy",)),
    "crashing": Release(SECOND, ("OCR_FAULT=crash", "OCR_FAULT_SECONDS=10")),
}


def recipe_hash() -> str:
    """What the images are kept under: changes with this module, which names the packages, and with the service."""
    digest = hashlib.sha256()
    for path in (Path(__file__), SERVICE, SECOND):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def build(destination: Path, mirror: Mirror, say: Say) -> Path:
    """The images as one OCI archive below ``destination``; built when this recipe was not built there before.

    LabError in one line when it cannot be built; then nothing half done is left.
    """
    archive = destination / f"ocr-{recipe_hash()}.tar"
    if archive.exists():
        return archive
    part = destination / f".{archive.stem}.{os.getpid()}"
    try:
        part.mkdir(parents=True)
        free = shutil.disk_usage(part).free // 2**20
        if free < FREE_MIB:
            raise LabError(f"the OCR image needs {FREE_MIB} MiB of free disk below {destination}, and {free} MiB are free")
        say("building the OCR image (1 min)")
        root = part / "root.tar"
        _root(root, mirror, destination / "ocr-mmdebstrap.log")
        _archive(root, part)
        (part / "image.tar").rename(archive)
    except OSError as error:
        raise LabError(f"building the OCR image below {destination}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return archive


def _root(root: Path, mirror: Mirror, log: Path) -> None:
    """The image's files as a tar."""
    environment = {**os.environ, "PATH": PATHS, "SOURCE_DATE_EPOCH": EPOCH, "TMPDIR": str(root.parent.resolve())}
    try:
        run(_mmdebstrap(root, mirror), "building the OCR image", log=log, deadline=BUILD_SECONDS, env=environment)
    except LabError as error:
        reason = _reason(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else ""
        raise LabError(f"building the OCR image: {reason} (log: {log})" if reason else str(error)) from error


def _reason(said: str) -> str:
    """Why mmdebstrap ended, out of what it said: its last line never tells. "" when no line does."""
    lines = [" ".join(line.split()) for line in said.splitlines()]
    full = [line for line in lines if "No space left on device" in line]
    errors = [line for line in lines if line.startswith("E: ")]
    return (full or errors or [""])[0]


def _mmdebstrap(root: Path, mirror: Mirror) -> list[str]:
    keep = " ".join(f"! -name '{name}'" for name in PROGRAMS)
    # Variant extract runs no later hook than --extract-hook, and with --skip=cleanup nothing of apt is used after it.
    # No braces in dash, so bash. A pattern that finds nothing is fine: releases differ.
    clean = f"cd \"$1\" && bash -O nullglob -c 'rm -rf {' '.join(UNUSED)}' && find usr/bin ! -type d {keep} -delete"
    inside = 'env -i PATH=/usr/sbin:/usr/bin PYTHONHASHSEED=0 chroot "$1"'
    return [
        "mmdebstrap", "--variant=extract", "--format=tar",
        "--skip=output/dev,output/mknod,cleanup", f"--include={','.join(PACKAGES)}",
        f"--extract-hook={clean}",
        f"--extract-hook=mkdir -p \"$1{PROGRAM_FOLDER}\"",
        f"--extract-hook=upload {SERVICE} {PROGRAM_FOLDER}/service.py",
        f"--extract-hook={inside} python3 -B -c '{COMPILE}' {PROGRAM_FOLDER}",
        # Both models load, or the image is none.
        f"--extract-hook={inside} tesseract --print-parameters -l {LANGUAGES} > /dev/null",
        f"--extract-hook={inside} sh -c 'command -v python3' > /dev/null",
        SUITE, str(root), f"deb [signed-by={mirror.keyring}] {mirror.uri} {SUITE} main",
    ]  # fmt: skip


def image_config(release: Release, layers: t.Sequence[str]) -> Data:
    """An image's configuration; ``layers``: digests of the uncompressed layers."""
    settings: Data = {
        "User": USER,
        "ExposedPorts": {PORT: {}},
        "Env": ["PATH=/usr/bin:/bin", f"OCR_LANGUAGES={LANGUAGES}", "PYTHONUNBUFFERED=1", "LC_ALL=C.UTF-8", *release.environment],
        "Entrypoint": ["/usr/bin/python3", "-B", f"{PROGRAM_FOLDER}/{release.program.name}"],
        "WorkingDir": "/",
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": "ocr",
            "org.opencontainers.image.description": "Reads text out of images, beside one GPU slice",
            "org.opencontainers.image.licenses": "GPL-3.0-or-later",
            "org.opencontainers.image.revision": recipe_hash(),
        },
    }
    made = (f"mmdebstrap {SUITE} {' '.join(PACKAGES)}", f"{SECOND.name} beside it")
    return {
        "created": CREATED,
        "architecture": "amd64",
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": list(layers)},
        "history": [{"created": CREATED, "created_by": how} for how in made[: len(layers)]],
    }


def _archive(root: Path, part: Path) -> None:
    """An OCI image layout (image-spec v1, image-layout.md) of the images of RELEASES, as ``image.tar``."""
    second = part / "second.tar"
    with tarfile.open(second, "w") as tar:
        _add(tar, f"{PROGRAM_FOLDER.lstrip('/')}/{SECOND.name}", SECOND.read_bytes())
    layers = [_Layer(*_compress(plain, packed), packed) for plain, packed in ((root, part / "first.gz"), (second, part / "second.gz"))]
    root.unlink()
    blobs, described = [], []
    for tag, release in RELEASES.items():
        used = layers if release.program == SECOND else layers[:1]
        config = _json(image_config(release, [layer.plain for layer in used]))
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, **_described(config)},
                "layers": [{"mediaType": LAYER, "digest": layer.packed, "size": layer.file.stat().st_size} for layer in used],
            }
        )
        blobs += [manifest, config]
        described.append({"mediaType": MANIFEST, **_described(manifest), "annotations": {"org.opencontainers.image.ref.name": tag}})
    with tarfile.open(part / "image.tar", "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": described}))
        for blob in blobs:
            _add(tar, _blob(_digest(blob)), blob)
        for layer in layers:
            with layer.file.open("rb") as file:
                tar.addfile(_member(_blob(layer.packed), layer.file.stat().st_size), file)


class _Layer(t.NamedTuple):
    """Digests of a layer's tar and of its gzip, and where the gzip is."""

    plain: str
    packed: str
    file: Path


def _compress(source: Path, target: Path) -> tuple[str, str]:
    """Digests of the tar and of its gzip; the gzip has no name and no time in it."""
    plain, packed = hashlib.sha256(), hashlib.sha256()
    gzip = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    with source.open("rb") as file, target.open("wb") as out:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            plain.update(chunk)
            piece = gzip.compress(chunk)
            packed.update(piece)
            out.write(piece)
        piece = gzip.flush()
        packed.update(piece)
        out.write(piece)
    return f"sha256:{plain.hexdigest()}", f"sha256:{packed.hexdigest()}"


def _json(data: Data) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _described(blob: bytes) -> Data:
    return {"digest": _digest(blob), "size": len(blob)}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, int(EPOCH)
    return member


def _add(tar: tarfile.TarFile, name: str, blob: bytes) -> None:
    tar.addfile(_member(name, len(blob)), io.BytesIO(blob))


def push(archive: Path, registry: str, name: str, tag: str) -> str:
    """Pushes the image ``tag`` to ``registry`` (``host:port``, plain HTTP); the digest (``sha256:...``) under which it is there then."""
    target = f"docker://{registry}/{name}:{tag}"
    copy = ["skopeo", "--insecure-policy", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false"]
    run([*copy, f"oci-archive:{archive}:{tag}", target], f"pushing the OCR image to {registry}", deadline=PUSH_SECONDS)
    inspect = ["skopeo", "inspect", "--tls-verify=false", "--no-tags", target]
    answer = run(inspect, f"asking {registry} for {name}:{tag}", deadline=PUSH_SECONDS)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        digest = str(json.loads(answer)["Digest"])
        if re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            return digest
    raise LabError(f"{registry} has {name}:{tag} and tells no digest of it")
