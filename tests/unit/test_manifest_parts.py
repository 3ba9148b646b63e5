# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of a manifest that contradict each other, and sizes that an engine would take for no limit."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.fleet.tests.unit.decide_world import manifest_text
from ansible_collections.gpuops.fleet.tests.unit.test_manifest import problem

WRONG = {
    "no memory at all": (
        {"host": "{memory: 0 MiB}"},
        "m/a.yml:9: host.memory: it is nothing; write more than 0 MiB",
    ),
    "next to no CPU": (
        {"host": "{cpus: 0.001}"},
        "m/a.yml:9: host.cpus: 0.001 is not right; it must be at least 0.01",
    ),
    "more shared memory than memory": (
        {"host": "{memory: 2 GiB, shm: 64 GiB}"},
        "m/a.yml:9: host.shm: 64 GiB are more than the 2 GiB of 'memory', of which they are a part; ask for more memory, or less",
    ),
    "a volume over everything": (
        {"volumes": "[{source: /a, target: /m/..}]"},
        "m/a.yml:9: volumes[0].target: nothing can be mounted over the whole container; name a directory in it",
    ),
    "one place in two ways": (
        {"volumes": "[{source: /a, target: /m}, {source: /b, target: //m/}]"},
        "m/a.yml:9: volumes[1].target: '//m/' is already that of volumes[0]; give each volume its own",
    ),
    "one file with two checksums": (
        {"weights": f"[{{path: a.bin, sha256: {'a' * 64}}}, {{path: a.bin, sha256: {'b' * 64}}}]"},
        "m/a.yml:9: weights[1].sha256: 'a.bin' has another checksum in weights[0]; keep the right one",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_is_said_in_one_line_with_file_line_and_field(case: str) -> None:
    fields, expected = WRONG[case]
    assert problem(manifest_text(**fields)) == expected
