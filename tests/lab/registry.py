# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A registry on this machine, Debian's docker-registry, so that images have real digests. Guests reach it as registry.example:5000."""

from __future__ import annotations

import json

from lab.places import BUILD
from lab.server import Server

DATA = BUILD / "registry"
CONFIGURATION = """version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {data}}}
  delete: {{enabled: true}}
http:
  addr: 127.0.0.1:{port}
"""


class Registry(Server):
    """A registry whose configuration is in ``home``; all of them keep their images in one place."""

    KIND, ASKED, OWN = "registry", "/v2/", "registry.yml"

    def _argv(self, port: int) -> list[str]:
        DATA.mkdir(parents=True, exist_ok=True)
        # JSON is YAML, and quotes what a path may have.
        self.own.write_text(CONFIGURATION.format(data=json.dumps(str(DATA)), port=port), encoding="utf-8")
        return ["docker-registry", "serve", str(self.own)]
