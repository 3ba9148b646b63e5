# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policy: what the platform's inventory variables (``fleet_...``, docs/policy.md) allow on one host, checked."""

from __future__ import annotations

import difflib
import re
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import parse_slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import (
    AfterValidator,
    BeforeValidator,
    Field,
    Name,
    Size,
    Strict,
    Wrong,
    check,
    describe,
    model_validator,
    not_left_empty,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, raise_all
from ansible_collections.gpuops.fleet.plugins.plugin_utils.near import near
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MOST_SHARED_COMPUTE,
    MOST_SHARERS,
    Counted,
    Limit,
    Quota,
    Workspace,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import amount_words, limit_words
from ansible_collections.gpuops.fleet.plugins.plugin_utils.written import one_for_all

# Variables of playbooks and roles that decide nothing here; listed so that a slip of the pen in their names is seen too.
OTHER_VARIABLES = frozenset(
    (
        "fleet_manifests",
        "fleet_plans",
        "fleet_facts",
        "fleet_reports",
        "fleet_exports",
        "fleet_templates",
        "fleet_images",
        "fleet_state_dir",
        "fleet_services_dir",
        "fleet_models_dir",
        "fleet_models_source",
        "fleet_secrets_dir",
        "fleet_bind_address",
        "fleet_proc_root",
        "fleet_sys_root",
        "fleet_docker_socket",
        "fleet_cdi_dirs",
        "fleet_cdi_spec",
        "fleet_nvidia_ctk",
        "fleet_gather",
        "fleet_published_only",
        "fleet_down_hosts",
        "fleet_allow_reset",
        "fleet_drain",
        "fleet_driver_services",
        "fleet_sriov_manage",
        "fleet_passthrough_rules",
        "fleet_gpu_settings",
        "fleet_fail_unplaced",
        "fleet_explain",
        "fleet_what_if",
        "fleet_consolidate",
        "fleet_holder",
        "fleet_lease_seconds",
        "fleet_lease_wait",
        "fleet_lease_max_days",
        "fleet_gpu_access",
        "fleet_host_agent",
        "fleet_images_again",
        "fleet_images_drop",
        "fleet_images_strict",
        "fleet_registry_mirrors",
        "fleet_registry_logins",
        "fleet_registry_ca",
        "fleet_registry_timeout",
        "fleet_address",
        "fleet_parent",
        "fleet_gateway_domain",
        "fleet_gateway_keys",
        "fleet_gateway_rate",
        "fleet_gateway_team_rates",
        "fleet_gateway_certificate",
        "fleet_secrets",
    )
)
# More GPUs or memory slices than any site has: what is beyond it is no limit but a slip, and no number to compute with.
MOST_COUNTED = 10**9
_DIGITS = re.compile(r"-?[0-9]{1,9}")
_RANGE = re.compile(r"^([0-9]{1,5})(?:-([0-9]{1,5}))?$")

Mode = t.Literal["mig", "whole", "shared"]
# What the platform may decide of a GPU: beside the planner's modes those in which virtual machines have it.
LayoutMode = t.Literal["mig", "whole", "shared", "passthrough", "vgpu"]
Sharing = t.Literal["time-slice", "mps"]


def parse_ports(value: object) -> tuple[int, ...]:
    """``'18000-18999, 19500'`` as sorted port numbers. :raises Wrong: not of that form, or beyond 1 to 65535."""
    hint = "write a range such as '18000-18999', several with commas"
    if not isinstance(value, str):
        raise Wrong(f"{describe(value)} is not a range of ports", hint)
    ports: set[int] = set()
    for part in value.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise Wrong(f"'{part.strip()}' is not a range of ports", hint)
        first, last = int(found.group(1)), int(found.group(2) or found.group(1))
        if not 1 <= first <= last <= 65535:
            raise Wrong(f"'{part.strip()}' is not a range of ports", "ports go from 1 to 65535, the lower one first")
        ports.update(range(first, last + 1))
    return tuple(sorted(ports))


def _slice_text(value: str) -> str:
    try:
        return str(parse_slice(value))
    except FleetError as error:
        raise Wrong(error.message, error.hint or "write PROFILE@START") from error
    except ValueError as error:  # more digits than Python reads
        raise Wrong(f"{describe(value)} is not a slice", "write PROFILE@START, as in 1g.10gb@4") from error


Ports = t.Annotated[tuple[int, ...], BeforeValidator(parse_ports), Field(strict=False)]


def _gpu_name(value: object) -> object:
    """One line for what is neither a number nor text. No host has so many GPUs as the largest number here."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST_COUNTED):
        return value
    raise Wrong(f"expected an index, a UUID or a PCI address, found {describe(value)}", "write such as 0, GPU-5c1f... or '0000:07:00.0'")


GpuName = t.Annotated[int | str, BeforeValidator(_gpu_name)]


class VgpuType(Strict):
    """vGPUs of one type, as module ``vgpu`` takes them."""

    type: str
    count: int = Field(default=1, ge=1, le=64)
    gpu_instance: str | None = None
    placement: int | None = None
    params: dict[str, t.Any] | None = None


class Scheduler(Strict):
    """How time-sliced vGPUs share a GPU's time, as module ``vgpu`` takes it."""

    policy: t.Literal["best-effort", "equal-share", "fixed-share"]
    slice_ms: int | None = None
    frequency_hz: int | None = None


class Layout(Strict):
    """What one GPU is, decided by the platform."""

    gpu: GpuName = Field(description="UUID, PCI address or index")
    mode: LayoutMode
    slices: list[t.Annotated[str, AfterValidator(_slice_text)]] | None = Field(
        default=None, description="such as 1g.10gb@4; left out: the planner cuts it, in mode vgpu: not in MIG mode"
    )
    sharing: Sharing | None = Field(default=None, description="how a shared GPU is shared; time-slice if left out")
    vgpus: list[VgpuType] | None = Field(default=None, description="in mode vgpu: all that the GPU shall have")
    mixed: bool | None = Field(default=None, description="in mode vgpu: different sizes on one GPU")
    scheduler: Scheduler | None = Field(default=None, description="in mode vgpu; if left out, it stays as it is")
    companions: bool | None = Field(default=None, description="in mode passthrough: the other devices of its IOMMU group come along")


class Capacity(Strict):
    """What a host has, in place of what was sensed."""

    cpus: float | None = Field(default=None, ge=0)
    memory: Size | None = None
    shm: Size | None = None
    disk: Size | None = None


class Reserve(Strict):
    """What is kept for the system."""

    cpus: float = Field(default=1.0, ge=0)
    memory: Size = 4096
    shm: Size = 0
    disk: Size = 10240


# What a quota limits, in the order in which it is told.
COUNTED: tuple[Counted, ...] = ("memory", "slices", "gpus")


class BoardLimits(Strict):
    """What a team may have on boards of one kind."""

    memory: Size | None = Field(default=None, description="of GPUs: of whole ones, of slices, and what sharers asked for")
    slices: int | None = Field(default=None, ge=0, le=MOST_COUNTED, description="memory slices of boards that MIG has cut")
    gpus: int | None = Field(default=None, ge=0, le=MOST_COUNTED, description="whole GPUs")

    @model_validator(mode="after")
    def _each_says_something(self) -> BoardLimits:
        not_left_empty(self, *COUNTED)
        return self


class TeamLimits(BoardLimits):
    """What a team or a workspace may have in all, and on boards whose catalogue id has a word in it."""

    models: dict[str, BoardLimits] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _boards_agree(self) -> TeamLimits:
        seen: dict[str, str] = {}
        for word, limits in self.models.items():
            if not word.strip():
                raise Wrong("the name of a board is missing", "write a word of its catalogue id (a100)", "models", word)
            for kind in COUNTED:
                own, total = getattr(limits, kind), getattr(self, kind)
                if own is not None and total is not None and own > total:
                    wrong = f"these are {limit_words((kind, word), own)}, and of all together it may have {amount_words((kind, ''), total)}"
                    raise Wrong(wrong, f"lower these, or raise '{kind}'", "models", word, kind)
            other = seen.setdefault(word.lower(), word)
            if other != word:
                raise Wrong(f"'{word}' and '{other}' are the same boards", "keep one of them", "models", word)
        return self


class TeamQuota(TeamLimits):
    """The quota of one team."""

    workspace: str | None = None
    borrow: bool = Field(default=False, description="also what teams of the workspace that lend have not used")
    lend: bool = False

    @model_validator(mode="after")
    def _agree(self) -> TeamQuota:
        for field in ("borrow", "lend"):
            if getattr(self, field) and self.workspace is None:
                raise Wrong("only teams of one workspace lend to each other", "name a workspace", field)
        return self


class Quotas(Strict):
    """Quotas of the whole site."""

    workspaces: dict[str, TeamLimits] = Field(default_factory=dict)
    teams: dict[Name, TeamQuota] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agree(self) -> Quotas:
        total: dict[tuple[str, str, str], int] = {}
        for team, quota in sorted(self.teams.items()):
            if quota.workspace is None:
                continue
            if quota.workspace not in self.workspaces:
                known = sorted(self.workspaces)
                hint = near(quota.workspace, known, f"add it to workspaces, which has {', '.join(known) or 'none'}")
                raise Wrong(f"there is no workspace '{quota.workspace}'", hint, "teams", team, "workspace")
            have = {(limit.counted, limit.board): limit.most for limit in limits_of(self.workspaces[quota.workspace])}
            for limit in limits_of(quota):
                key = (quota.workspace, limit.counted, limit.board)
                total[key] = total.get(key, 0) + limit.most
                most = have.get(key[1:])
                whole = have.get((limit.counted, ""))
                if limit.board and whole is not None and limit.most > whole:
                    wrong = (
                        f"these are {limit_words(key[1:], limit.most)}, and its workspace has {amount_words((limit.counted, ''), whole)}"
                    )
                    raise Wrong(wrong, "lower these, or raise that of the workspace", "teams", team)
                if most is not None and total[key] > most:
                    sum_of = limit_words(key[1:], total[key])
                    wrong = f"the quotas of workspace '{quota.workspace}' are {sum_of} by here, and it has {amount_words(key[1:], most)}"
                    raise Wrong(wrong, "raise that of the workspace, or lower one of its teams", "teams", team)
        return self


def limits_of(said: TeamLimits) -> tuple[Limit, ...]:
    """A quota as the planner counts it."""
    parts: list[tuple[str, BoardLimits]] = [("", said), *sorted(said.models.items())]
    found = ((kind, getattr(limits, kind), board) for board, limits in parts for kind in COUNTED)
    return tuple(Limit(kind, most, board.lower()) for kind, most, board in found if most is not None)


def _number(value: object) -> object:
    """With -e NAME=3, a number comes as text."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value.strip()) else value


Number = t.Annotated[int, BeforeValidator(_number)]


class Policy(Strict):
    """The variables that a plan depends on."""

    fleet_environment: Name
    fleet_pool: str = "default"
    fleet_data_classes: list[Name] = Field(default_factory=list)
    fleet_gpu_modes: list[Mode] = Field(default=["mig", "whole"], min_length=1)
    fleet_sharing: list[Sharing] = Field(default=["time-slice"])
    fleet_shared_max: t.Annotated[Number, Field(ge=1, le=MOST_SHARERS)] = 4
    fleet_shared_reserve: Size = 1024
    fleet_shared_compute: float = Field(default=1.0, ge=1, le=MOST_SHARED_COMPUTE)
    fleet_gpu_layouts: list[Layout] = Field(default_factory=list)
    fleet_cordoned_gpus: list[GpuName] = Field(default_factory=list)
    fleet_capacity: Capacity = Field(default_factory=Capacity)
    fleet_reserve: Reserve = Field(default_factory=Reserve)
    fleet_ports: Ports = tuple(range(18000, 19000))
    fleet_quotas: Quotas = Field(default_factory=Quotas)
    fleet_moves: t.Annotated[Number, Field(ge=0, le=8)] = 3
    fleet_preemption: t.Literal["none", "lower"] = "none"

    @model_validator(mode="after")
    def _some_way_of_sharing(self) -> Policy:
        if "shared" in self.fleet_gpu_modes and not self.fleet_sharing:
            raise Wrong(
                "fleet_gpu_modes has 'shared', and no way of sharing is allowed", "write [time-slice], [mps] or both", "fleet_sharing"
            )
        return self


def read_policy(host: str, variables: Mapping[str, t.Any]) -> Policy:
    """The policy of one host from its inventory variables. A site's own variables that begin with ``fleet_`` are let pass,
    unless their name is so near to one of ours that it must be a slip.

    :raises FleetError: every problem on its own line, with ``host NAME`` in place of a file.
    """
    file = f"host {host}"
    known = sorted([*Policy.model_fields, *OTHER_VARIABLES])
    slips = []
    for name in sorted(set(variables) - set(known)):
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.88)
        if close:
            slips.append(FleetError(f"unknown variable '{name}'", file=file, field=name, hint=f"did you mean '{close[0]}'?"))
    raise_all(slips)
    return check(Policy, Located({name: variables[name] for name in Policy.model_fields if name in variables}, file))


class SitePolicy(t.NamedTuple):
    """What is one for the whole site, as the planner takes it."""

    quotas: tuple[Quota, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    moves: int = 0
    preemption: bool = False


# Variables that decide about the fleet and not about a host.
SITE_VARIABLES = ("fleet_quotas", "fleet_moves", "fleet_preemption")


def site_policy(policies: Mapping[str, Policy]) -> SitePolicy:
    """What all hosts of a run say of the site.

    :raises FleetError: two hosts say different things, each variable on its own line.
    """
    if not policies:
        return SitePolicy()
    found = (one_for_all(name, {host: getattr(policy, name) for host, policy in policies.items()}) for name in SITE_VARIABLES)
    raise_all([error for error in found if error is not None])
    said = policies[min(policies)]
    teams, spaces = said.fleet_quotas.teams, said.fleet_quotas.workspaces
    return SitePolicy(
        tuple(Quota(team, limits_of(quota), quota.workspace, quota.borrow, quota.lend) for team, quota in sorted(teams.items())),
        tuple(Workspace(name, limits_of(limits)) for name, limits in sorted(spaces.items())),
        said.fleet_moves,
        said.fleet_preemption == "lower",
    )
