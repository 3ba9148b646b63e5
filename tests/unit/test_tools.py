# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks that `make lint` makes by our own hand find what they are there for, and the set-up refuses what it must."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import check_tree
import fetch_collections
import tree

DEFAULTS = "web_port: 80\nweb_names: []\n"
SPECS = """
argument_specs:
  main:
    options:
      web_port: {type: int, default: 80}
      web_names: {type: list, elements: str, default: []}
      web_owner: {type: str, required: true}
"""


def findings(monkeypatch: pytest.MonkeyPatch, root: Path, defaults: str, specs: str) -> list[str]:
    role = root / "roles" / "web"
    for part, text in (("defaults/main.yml", defaults), ("meta/argument_specs.yml", specs)):
        (role / part).parent.mkdir(parents=True, exist_ok=True)
        (role / part).write_text(text, encoding="utf-8")
    monkeypatch.setattr(tree, "ROOT", root)
    return list(check_tree.role_findings(role))


def test_a_role_whose_defaults_and_specification_agree_has_no_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(monkeypatch, tmp_path, DEFAULTS, SPECS) == []


def test_the_pipelines_files_name_one_release_that_is_not_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ci").mkdir()
    (tmp_path / "docs").mkdir()
    files = {"ci/base.yml": "FLEET_IMAGE: r.example/gpuops-fleet:0.2.0\n", "docs/gitlab.md": "- {ref: v0.2.0, file: ci/service.yml}\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    monkeypatch.setattr(tree, "project_files", lambda under: [Path(name) for name in files if name.startswith(under)])

    assert list(check_tree.pipeline_findings("0.1.0")) == list(check_tree.pipeline_findings("0.2.0")) == []
    assert "release 0.2.0 is older than galaxy.yml's 0.10.0" in " ".join(check_tree.pipeline_findings("0.10.0"))
    (tmp_path / "ci/base.yml").write_text("FLEET_IMAGE: r.example/gpuops-fleet:0.3.0\n", encoding="utf-8")
    assert len(list(check_tree.pipeline_findings("0.1.0"))) == 2


@pytest.mark.parametrize(
    ("defaults", "specs", "words"),
    [
        (DEFAULTS + "web_new: 1\n", SPECS, "web_new: not in meta/argument_specs.yml"),
        (DEFAULTS.replace("80", "8080"), SPECS, "web_port: default 80, but defaults/main.yml has 8080"),
        ("web_port: 80\n", SPECS, "web_names: neither required nor in defaults/main.yml"),
        (DEFAULTS + "web_owner: me\n", SPECS, "web_owner: required, and has a default"),
        (DEFAULTS + "port: 1\n", SPECS, "port: a role's variables begin with web_"),
        (DEFAULTS, "argument_specs: {}\n", "a role says what it takes; none found"),
        (DEFAULTS, SPECS.replace("elements: str, default: []", "elements: str"), "web_names: default missing"),
    ],
)
def test_each_way_in_which_they_differ_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defaults: str, specs: str, words: str
) -> None:
    found = findings(monkeypatch, tmp_path, defaults, specs)
    assert any(words in line for line in found), found


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "plugins/modules/a.py",
            "# SPDX-License-Identifier: GPL-3.0-or-later\nprint(env['NVML_SIM_STATE'])\n",
            "a.py:2: the product does not know",
        ),
        ("roles/a/tasks/main.yml", "# as the Simulator has it\n", "main.yml:1: the product does not know"),
        ("plugins/modules/a.py", "import os\n", "no line 'SPDX-License-Identifier"),
        ("tests/a.py", "# SPDX-License-Identifier: GPL-3.0-or-later\n" + "pass\n\n" * 500, "501 lines without blank ones"),
    ],
)
def test_a_file_that_breaks_a_rule_of_the_tree_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    (found,) = check_tree.text_findings(Path(name))
    assert words in found


def test_two_test_files_of_one_name_are_named() -> None:
    names = [
        Path("tests/unit/test_a.py"),
        Path("tests/unit/test_b.py"),
        Path("tests/integration/test_a.py"),
        Path("plugins/modules/test_a.py"),
    ]
    assert list(check_tree.name_findings(names)) == [
        "tests/integration/test_a.py: there is a tests/unit/test_a.py already; pytest takes them for one module"
    ]


def test_documentation_of_a_module_does_not_count_as_its_length() -> None:
    shown = 'DOCUMENTATION = r"""\n' + "line\n" * 600 + '"""\n'
    assert check_tree.written_lines("import os\n\n" + shown + "\nTEXT = 1\n") == 2
    assert check_tree.written_lines(shown.replace("DOCUMENTATION", "OTHER")) == 602


def test_tests_may_speak_of_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("# SPDX-License-Identifier: GPL-3.0-or-later\n# the simulator\n", encoding="utf-8")
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    assert list(check_tree.text_findings(Path("a.py"))) == []


def wheel(**collections: tuple[str, dict[str, str]]) -> zipfile.ZipFile:
    """A wheel in memory with collections ``{name of community.NAME: (version, dependencies)}``."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, (version, needs) in collections.items():
            manifest = {"collection_info": {"version": version, "dependencies": needs}}
            archive.writestr(f"ansible_collections/community/{name}/MANIFEST.json", json.dumps(manifest))
            archive.writestr(f"ansible_collections/community/{name}/plugins/modules/{name}.py", version)
    return zipfile.ZipFile(memory)


def test_dependencies_of_dependencies_come_along() -> None:
    archive = wheel(a=("1.2.0", {"community.b": "*"}), b=("3.0.0", {"community.c": ">=2.0.0"}), c=("2.1.0", {}), d=("1.0.0", {}))
    assert fetch_collections.resolve(archive, {"community.a": ">=1.0.0,<2.0.0"}) == {
        "community.a": "1.2.0",
        "community.b": "3.0.0",
        "community.c": "2.1.0",
    }


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"community.a": ">=2.0.0"}, "community.a 1.2.0 in .* is outside >=2.0.0"),
        ({"community.b": "*"}, "community.c 2.1.0 in .* is outside <2.0.0"),
        ({"community.x": "*"}, "holds no collection community.x"),
    ],
)
def test_a_wheel_outside_the_range_is_refused(wanted: dict[str, str], words: str) -> None:
    archive = wheel(a=("1.2.0", {}), b=("3.0.0", {"community.c": "<2.0.0"}), c=("2.1.0", {}))
    with pytest.raises(SystemExit, match=words):
        fetch_collections.resolve(archive, wanted)


def test_unpacking_replaces_the_old_collection_whole(tmp_path: Path) -> None:
    fetch_collections.unpack(wheel(a=("1.0.0", {}), b=("1.0.0", {})), "community.a", tmp_path)
    old = tmp_path / "ansible_collections/community/a/plugins/modules/gone.py"
    old.write_text("old", encoding="utf-8")
    fetch_collections.unpack(wheel(a=("2.0.0", {})), "community.a", tmp_path)
    assert (tmp_path / "ansible_collections/community/a/plugins/modules/a.py").read_text(encoding="utf-8") == "2.0.0"
    assert not old.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["ansible_collections"]
