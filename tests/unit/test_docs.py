# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The papers say what the code does: examples are accepted, tables are complete, defaults are the real ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import manifest as manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import OTHER_VARIABLES, Policy, read_policy

ROOT = Path(__file__).resolve().parents[2]
RUNTIMES = ["http", "vllm"]


def paper(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def examples(name: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", paper(name), re.DOTALL)


def slice_example() -> str:
    return examples("docs/manifest.md")[0].replace("<64 hex digits>", "a" * 64)


def rows(name: str) -> list[list[str]]:
    """Cells of every table row of a paper, without the headings' rules."""
    lines = [line for line in paper(name).splitlines() if line.startswith("|") and not line.startswith("|-")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def named(name: str) -> set[str]:
    """What the first cells of a paper's tables name between backticks."""
    return {word for row in rows(name) for word in re.findall(r"`([^`]+)`", row[0])}


def test_the_manifest_examples_are_accepted() -> None:
    (found,) = manifests.read_manifests([("a.yml", slice_example())], RUNTIMES)
    assert (found.service, found.need_mib()) == ("receipt-ocr", 8192)
    with_model = slice_example().replace("runtime: http ", "runtime: vllm ") + examples("docs/manifest.md")[1]
    (found,) = manifests.read_manifests([("a.yml", with_model)], RUNTIMES)
    assert found.need_mib() == 20949


def test_the_errors_that_the_manifest_paper_shows_are_those_that_people_get() -> None:
    (shown,) = re.findall(r"```\n(manifests/.*?)\n```", paper("docs/manifest.md"), re.DOTALL)
    broken = slice_example().replace("  memory: 8 GiB ", "  memroy: 8 GiB ").replace("  memory: 16 GiB", "  memory: 16")
    with pytest.raises(FleetError) as caught:
        manifests.read_manifests([("manifests/receipt-ocr.yml", broken)], RUNTIMES)
    assert str(caught.value) == shown


def test_every_field_of_a_manifest_is_in_its_paper() -> None:
    schema = manifests.json_schema()
    gpu = schema["$defs"]["Gpu"]["properties"]
    assert set(schema["properties"]) | set(gpu) <= named("docs/manifest.md")


def test_every_variable_is_in_the_policy_paper_and_no_other() -> None:
    assert {name for name in named("docs/policy.md") if name.startswith("fleet_")} == set(Policy.model_fields) | OTHER_VARIABLES


def test_the_defaults_in_the_policy_paper_are_the_real_ones() -> None:
    real = Policy(fleet_environment="prod")
    settings = yaml.safe_load(paper("roles/fleet/defaults/main.yml"))
    compared = 0
    for row in rows("docs/policy.md"):
        name = row[0].strip("`")
        if name in settings and name not in ("fleet_holder", "fleet_gpu_access"):
            assert yaml.safe_load(row[1].strip("`")) == settings[name], name
        elif name in Policy.model_fields and name not in ("fleet_environment", "fleet_capacity"):
            written = read_policy("h", {"fleet_environment": "prod", name: yaml.safe_load(row[1].strip("`"))})
            assert getattr(written, name) == getattr(real, name), name
        else:
            continue
        compared += 1
    assert compared == 47
    assert settings["fleet_gpu_access"] == "auto"
    assert settings["fleet_lease_seconds"] == 1800


def test_the_architecture_names_every_file_of_the_rooms() -> None:
    files = {
        path.name for room in ("module_utils", "plugin_utils", "plugin_utils/solver") for path in (ROOT / "plugins" / room).glob("*.py")
    } - {"__init__.py"}
    assert files <= named("docs/architecture.md")
    assert {name for name in named("docs/architecture.md") if re.fullmatch(r"\w+\.py", name)} <= files


@pytest.mark.parametrize("readme", ["README.md", "README.zh-TW.md"])
def test_a_readme_lists_every_playbook_module_and_role(readme: str) -> None:
    playbooks = {f"gpuops.fleet.{path.stem}" for path in (ROOT / "playbooks").glob("*.yml")}
    modules = {path.stem for path in (ROOT / "plugins" / "modules").glob("*.py")}
    roles = {path.name for path in (ROOT / "roles").iterdir()}
    assert named(readme) == playbooks | modules | roles


@pytest.mark.parametrize(
    "name", ["README.md", "README.zh-TW.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_to_files_and_commands_name_targets_and_playbooks(name: str) -> None:
    text = paper(name)
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / name).parent / link).exists(), link
    targets = set(re.findall(r"^([a-z-]+):", paper("Makefile"), re.MULTILINE))
    for line in re.findall(r"`make ([a-z ]+)`|^\s*make ([a-z ]+?)(?:  |$)", text, re.MULTILINE):
        assert set("".join(line).split()) <= targets, line
    for playbook in re.findall(r"ansible-playbook .*?gpuops\.fleet\.(\w+)", text):
        assert (ROOT / "playbooks" / f"{playbook}.yml").exists()
    # A directory as inventory would read manifests and plans as inventories, too.
    assert all(inventory.endswith("hosts.yml") for inventory in re.findall(r"ansible(?:-playbook)? -i (\S+)", text))
