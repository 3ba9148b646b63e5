# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vGPUs that a host remembers and nobody wishes any more are taken away; those of the wish are left to it."""

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.filter.guests import vgpu_wish

UUID = "GPU-5c1f8f7e-6b0a-4a57-8c88-1f0f0f3b6f0e"
ONE = [{"type": "A100D-10C", "params": None, "placement": None, "place": "0000:3b:00.4", "uuid": None}]


KNOWN = json.dumps(
    {
        "format": 1,
        "gpus": {
            "0000:3b:00.0": {"vgpus": ONE, "identity": {"uuid": UUID}},
            "0000:5e:00.0": {"vgpus": ONE, "identity": {"uuid": None}},
            "0000:65:00.0": {"vgpus": [], "identity": None},
            "mtty": {"vgpus": ONE},
        },
    }
)


def test_what_nobody_wishes_any_more_goes_first() -> None:
    wish = [{"gpu": "0000:65:00.0", "vgpus": [{"type": "A100D-10C"}]}]
    assert vgpu_wish(wish, KNOWN) == [
        {"gpu": "0000:3b:00.0", "vgpus": [], "vfs": "off"},
        {"gpu": "0000:5e:00.0", "vgpus": [], "vfs": "off"},
        {"parent": "mtty", "vgpus": []},
        *wish,
    ]


@pytest.mark.parametrize("name", [UUID, UUID.upper(), "0000:3b:00.0", "3B:00.0"])
def test_a_gpu_of_the_wish_is_known_by_each_of_its_names(name: str) -> None:
    wish = [{"gpu": name, "mixed": True}, {"gpu": "0000:5e:00.0"}, {"parent": "mtty", "vgpus": []}]
    assert vgpu_wish(wish, KNOWN) == wish


def test_a_host_that_remembers_nothing_gets_the_wish_alone() -> None:
    wish = [{"gpu": "0000:3b:00.0"}]
    assert vgpu_wish(wish, "") == wish
    assert vgpu_wish([], json.dumps({"format": 1, "gpus": None})) == []
    with pytest.raises(AnsibleFilterError, match="is not JSON"):
        vgpu_wish([], "{")
