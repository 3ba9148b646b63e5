# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the JSON Schema of the manifests, for editors, to build/schema/manifest.schema.json."""

from __future__ import annotations

import json
import sys

import tree

# The collection is found under its name, as Ansible finds it.
sys.path.insert(0, str(tree.ROOT / "collections"))

from ansible_collections.gpuops.fleet.plugins.plugin_utils import manifest


def main() -> None:
    """Write the schema and say where."""
    path = tree.ROOT / "build" / "schema" / "manifest.schema.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest.json_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path.relative_to(tree.ROOT))


if __name__ == "__main__":
    main()
