# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be taken away of the vGPUs that a host remembers and nobody wishes any more. Pure."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def with_undone(wished: Iterable[Mapping[str, t.Any]], record: t.Any) -> list[dict[str, t.Any]]:
    """Option ``gpus`` of module ``vgpu``: what is wished, and nothing for each GPU of the record (``vgpus.json``) that has vGPUs or virtual
    functions by us and is not wished any more. A GPU of the record that is in the wish is left to the wish.
    """
    wish = [dict(each) for each in wished]
    named = {str(each[key]).strip().lower() for each in wish for key in ("gpu", "parent") if each.get(key)}
    lines = record.get("gpus") if isinstance(record, Mapping) else None
    gone = []
    for name, line in sorted((lines if isinstance(lines, Mapping) else {}).items()):
        identity = line.get("identity") or {}
        names = {name.lower(), name[5:].lower() if _ADDRESS.fullmatch(name) else name.lower(), str(identity.get("uuid") or name).lower()}
        if named & names or not line.get("vgpus"):
            continue
        gone.append({"gpu": name, "vgpus": [], "vfs": "off"} if _ADDRESS.fullmatch(name) else {"parent": name, "vgpus": []})
    return [*gone, *wish]
