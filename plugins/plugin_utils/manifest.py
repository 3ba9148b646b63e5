# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests: what a model owner writes about one service (docs/manifest.md), checked and in MiB."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import typing as t
from collections.abc import Collection, Iterable

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import GB_TOLERANCE_PERCENT, name_parts
from ansible_collections.gpuops.fleet.plugins.plugin_utils import memory
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import (
    MOST_MIB,
    AfterValidator,
    Field,
    Name,
    Size,
    Strict,
    Wrong,
    check,
    model_validator,
    not_left_empty,
    require,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, raise_all, read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest_parts import (
    MOST_BYTES,
    MOST_CPUS,
    MOST_DISK,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_MEMORY,
    MOST_PARAMETERS,
    MOST_REQUESTS,
    MOST_SECONDS,
    MOST_TOKENS,
    MOST_WIDTH,
    at_most,
    files_differ,
    known_ports,
    not_in_billions,
    not_itself,
    ports_agree,
    profile_name,
    some_board_is_left,
    targets_differ,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.runtime_rules import SPREADING, check_runtime

SCHEMA = 1
# Parts that no host's plan has, and that a deploy carries out all the same: no container is made anew for them.
SETTINGS = ("route", "rollout", "lease")
# Fields whose change alone is no reason to touch a replica that runs.
NOT_RENDERED = frozenset({"schema", "replicas", "priority", "description", "secrets", "needs", "placement", "data_class", *SETTINGS})
# Fields that came with a later release: where they are not used, they must not make every plan before it stale.
_LATER = frozenset({"triton", "speech", "weights"})
# The collection pins a replica to its slice by the device request alone; these would fight with it.
RESERVED_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)

# A lease is of 366 days at most; what is extended ends no later than so many days from then, and its notice cannot come before.
MOST_LEASE_DAYS = 366

# Checks take the whole of a text (fullmatch): to match() alone, '$' is also the place before a line break at the end.
_IMAGE = re.compile(r"^[^\s@]+@sha256:[0-9a-f]{64}$")
_CUDA = re.compile(r"^[1-9][0-9]?\.[0-9]{1,2}(\.[0-9]{1,3})?$")
_CAPABILITY = re.compile(r"^[1-9][0-9]?\.[0-9]$")
_ENV = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def _env_name(value: str) -> str:
    if not _ENV.fullmatch(value):
        raise Wrong(f"'{value}' is not the name of an environment variable", "use letters, digits and '_', no digit first")
    return value


def _no_line_break(value: str) -> str:
    if any(ord(character) < 32 for character in value):
        raise Wrong("it has a line break or a control character", "write it in one line")
    return value


def _positive(value: int) -> int:
    if value <= 0:
        raise Wrong("it is nothing", "write more than 0 MiB")
    return value


def _stored(value: str) -> str:
    """What does not lie below the model store would be the host itself: its root, the engine's socket, other teams' secrets."""
    if value.startswith("/") or ".." in value.split("/"):
        raise Wrong(f"'{value}' is not below the model store", "write the path from there, without '..'")
    return value


def _cuda(value: str) -> str:
    if not _CUDA.fullmatch(value):
        raise Wrong(f"'{value}' is not a release of CUDA", "write it as in CUDA_VERSION of the image, in quotes: '12.4.1', or '12.4'")
    return value


def _capability(value: str) -> str:
    if not _CAPABILITY.fullmatch(value):
        raise Wrong(f"'{value}' is not a compute capability", "write it in quotes: '8.0'")
    return value


def _part(value: str) -> str:
    if "/" in value or value in (".", ".."):
        raise Wrong(f"'{value}' cannot be a directory's name", "write a name without '/'")
    return value


Line = t.Annotated[str, Field(min_length=1), AfterValidator(_no_line_break)]
StorePath = t.Annotated[Line, AfterValidator(_stored)]
ProfileName = t.Annotated[Line, AfterValidator(profile_name)]
SomeSize = t.Annotated[Size, AfterValidator(_positive)]
SecretName = t.Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
# As it stands in a request's first line: whatever is not plain ASCII is written as %XX there.
WebPath = t.Annotated[str, Field(pattern=r"^/[!-~]*$")]
PortNumber = t.Annotated[int, Field(ge=1, le=65535)]


class Gpu(Strict):
    """What one replica needs of GPUs."""

    isolation: t.Literal["exclusive", "slice", "shared"] = Field(
        default="slice", description="whole GPUs, one MIG slice, or a share of a GPU without isolation"
    )
    count: int = Field(default=1, ge=1, le=16, description="GPUs for one replica, all on one host; more than 1 only with 'exclusive'")
    memory: SomeSize | None = Field(default=None, description="memory needed on each GPU or slice")
    profile: ProfileName | None = Field(default=None, description="exactly this MIG profile (isolation: slice)")
    compute: float | None = Field(default=None, gt=0, le=1, description="share of the GPU's SMs (slice, mps) or of its time (shared)")
    sharing: t.Literal["time-slice", "mps"] | None = Field(
        default=None, description="how a shared GPU is shared: by turns (the default), or at the same time through MPS"
    )
    nvlink: t.Literal["preferred", "required"] | None = Field(
        default=None, description="of several GPUs: those that NVLink joins with each other first (the default), or only such"
    )
    models: list[Line] = Field(default_factory=list, description="only these boards: a catalogue id, or a part of it")
    not_models: list[Line] = Field(default_factory=list, description="never these boards")

    @model_validator(mode="after")
    def _agree(self) -> Gpu:
        if self.count > 1 and self.isolation != "exclusive":
            raise Wrong(
                f"{self.count} GPUs cannot be had with isolation '{self.isolation}'", "write 'isolation: exclusive', or 'count: 1'", "count"
            )
        if self.profile is not None and self.isolation != "slice":
            raise Wrong(
                f"a MIG profile cannot be had with isolation '{self.isolation}'", "write 'isolation: slice', or no profile", "profile"
            )
        if self.sharing is not None and self.isolation != "shared":
            raise Wrong(
                f"a way of sharing cannot be had with isolation '{self.isolation}'", "write 'isolation: shared', or no sharing", "sharing"
            )
        if self.nvlink is not None and self.count == 1:
            raise Wrong("one GPU is joined with nobody", "write a 'count' of 2 or more, or no nvlink", "nvlink")
        if self.compute is not None and self.isolation == "exclusive":
            raise Wrong("a whole GPU has all of its compute", "leave 'compute' out, or choose 'slice' or 'shared'", "compute")
        if "models" in self.model_fields_set and not self.models:
            raise Wrong("it names no board", "name those that it may run on, or leave 'models' out", "models")
        some_board_is_left(self.models, self.not_models)
        if self.profile is not None and self.memory is not None and _has_less(self.profile, self.memory):
            wrong = f"{memory.format_size(self.memory)} is more than a slice {self.profile} has"
            raise Wrong(wrong, "ask for less, or for a larger profile, or leave one of the two out", "memory")
        return self


def _has_less(profile: str, mib: int) -> bool:
    """Has no slice of this name so much? Its GB are rounded, and one board's spelling of it finds another's."""
    percent = 100 - GB_TOLERANCE_PERCENT
    return mib * percent > (name_parts(profile)[1] * 100 + percent) * 1024


class Host(Strict):
    """Reserved on the host for each replica."""

    cpus: float = Field(default=1.0, ge=0.01, le=MOST_CPUS, description="CPU cores")
    memory: t.Annotated[SomeSize, at_most(MOST_MEMORY)] = Field(default=2048, description="main memory", validate_default=False)
    shm: t.Annotated[Size, at_most(MOST_MEMORY)] = Field(default=64, description="shared memory (/dev/shm)", validate_default=False)
    disk: t.Annotated[Size, at_most(MOST_DISK)] = Field(default=0, description="space below the services directory", validate_default=False)

    @model_validator(mode="after")
    def _shm_is_memory(self) -> Host:
        if "shm" in self.model_fields_set and self.shm > self.memory:
            shm, all_ = memory.format_size(self.shm), memory.format_size(self.memory)
            raise Wrong(f"{shm} are more than the {all_} of 'memory', of which they are a part", "ask for more memory, or less", "shm")
        return self


class Port(Strict):
    """A TCP port of the container."""

    name: Name
    container: PortNumber
    host: PortNumber | None = Field(default=None, description="ask for this port on the host; the planner chooses one if left out")


class Health(Strict):
    """How to see that a replica serves."""

    port: str = Field(description="name of one of the ports")
    path: WebPath = "/health"
    start_period: int = Field(default=60, ge=0, le=MOST_SECONDS, description="seconds until a failed check counts")
    interval: int = Field(default=30, ge=1, le=MOST_SECONDS, description="seconds from one check to the next")
    timeout: int = Field(default=10, ge=1, le=MOST_SECONDS, description="seconds that an answer may take")
    retries: int = Field(default=3, ge=1, le=1000, description="failed checks in a row that make it unhealthy")


class Volume(Strict):
    """A directory of the host inside the container."""

    source: Line = Field(description="absolute, or relative to the host's model store")
    target: t.Annotated[str, Field(pattern=r"^/[^\s\x00-\x1f\x7f-\x9f]*$")]
    read_only: bool = True

    @model_validator(mode="after")
    def _inside(self) -> Volume:
        if ".." in self.source.split("/"):
            raise Wrong(f"'{self.source}' leads out by '..'", "name the directory itself", "source")
        return self


class ModelNeed(Strict):
    """A language model, for the memory estimate and the serving runtime."""

    parameters: t.Annotated[float, AfterValidator(not_in_billions)] = Field(gt=0, le=MOST_PARAMETERS, description="count")
    bytes_per_parameter: float = Field(gt=0, le=MOST_BYTES, description="2 for bf16 and fp16, 1 for fp8 and int8, 0.5 for int4")
    layers: int = Field(ge=1, le=MOST_LAYERS)
    kv_heads: int | None = Field(default=None, ge=1, le=MOST_HEADS)
    head_dim: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    kv_rank: int | None = Field(
        default=None, ge=1, le=MOST_WIDTH, description="of a compressed cache (MLA): kv_lora_rank of its config.json"
    )
    rope_dim: int | None = Field(
        default=None, ge=1, le=MOST_WIDTH, description="of a compressed cache: qk_rope_head_dim of its config.json"
    )
    kv_bytes: float = Field(default=2.0, gt=0, le=MOST_BYTES, description="bytes of one element of the KV cache")
    context: int = Field(ge=1, le=MOST_TOKENS, description="tokens of one request")
    concurrency: int = Field(default=1, ge=1, le=MOST_REQUESTS, description="requests held at once")
    name: Line | None = Field(default=None, description="served name; the service's own if left out")
    path: StorePath | None = Field(default=None, description="below the host's model store; the served name if left out")

    @model_validator(mode="after")
    def _has_one_cache(self) -> ModelNeed:
        heads, compressed = (self.kv_heads, self.head_dim), (self.kv_rank, self.rope_dim)
        if None not in heads and None not in compressed:
            raise Wrong("it says twice what its KV cache holds", "leave out kv_heads and head_dim, or kv_rank and rope_dim")
        if (None in heads) == (None in compressed) or any(each is not None for each in (heads if None in heads else compressed)):
            hint = "write kv_heads and head_dim, or kv_rank and rope_dim where it is compressed"
            raise Wrong("it does not say what its KV cache holds", hint)
        return self

    @model_validator(mode="after")
    def _can_be_held(self) -> ModelNeed:
        if memory.model_mib(self.model_dump()) > MOST_MIB:
            wrong = "weights and cache are too large to be true"
            raise Wrong(wrong, f"together they may take at most {memory.format_size(MOST_MIB)}: look at each of the numbers")
        return self

    @model_validator(mode="after")
    def _has_a_path(self) -> ModelNeed:
        if self.path is None and self.name is not None:
            try:
                _stored(self.name)
            except Wrong as wrong:
                raise Wrong(wrong.message, "add a 'path' to it, for the served name is not one", "name") from wrong
        return self


class Weight(Strict):
    """A file of the model store that a version is made of."""

    path: StorePath = Field(description="below the host's model store")
    sha256: t.Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(description="as sha256sum prints it")


class Tensor(Strict):
    """An input or output of a Triton model."""

    name: Line
    type: t.Literal[
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16", "STRING"
    ] = Field(description="Triton's name of the type, without TYPE_")
    dims: list[t.Annotated[int, Field(ge=-1)]] = Field(min_length=1, description="without the batch dimension; -1 for any size")


class Triton(Strict):
    """A model for Triton: what its config.pbtxt says."""

    model: t.Annotated[Line, AfterValidator(_part)] | None = Field(
        default=None, description="the model's name; the service's own if left out"
    )
    path: StorePath = Field(description="directory of the model's versions, below the host's model store")
    backend: t.Literal["onnxruntime", "tensorrt", "pytorch", "python", "openvino", "tensorflow"] = "onnxruntime"
    max_batch_size: int = Field(default=0, ge=0, description="0: the model does not batch")
    inputs: list[Tensor] = Field(min_length=1)
    outputs: list[Tensor] = Field(min_length=1)


class Speech(Strict):
    """A model for speech to text."""

    model: StorePath = Field(description="directory of the faster-whisper model, below the host's model store")
    compute_type: t.Literal["float16", "int8_float16", "int8", "float32"] = "float16"
    language: t.Annotated[str, Field(pattern=r"^[a-z]{2,3}$")] | None = Field(
        default=None, description="found out by the model if left out"
    )


class Route(Strict):
    """How the service is reached through the gateway."""

    port: str = Field(default="http", description="name of one of the ports")
    host: t.Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")] | None = Field(
        default=None, description="host name; <service>.<fleet_gateway_domain> if neither host nor path is given"
    )
    path: t.Annotated[str, Field(max_length=255, pattern=r"^/[A-Za-z0-9._/-]*[A-Za-z0-9_-]$")] | None = Field(
        default=None, description="path prefix, which is taken off before the request is passed on"
    )
    keys: bool = Field(default=True, description="only requests with an API key of a team are let in")
    teams: list[Name] = Field(
        default_factory=list, max_length=100, description="teams whose keys are let in; the service's own team always is"
    )
    rate: int | None = Field(default=None, ge=1, description="requests a minute that one team may send; the platform's default if left out")
    timeout: int = Field(default=60, ge=1, le=MOST_SECONDS, description="seconds that an answer may take")

    @model_validator(mode="after")
    def _teams_have_keys(self) -> Route:
        if self.teams and not self.keys:
            raise Wrong(
                "without 'keys' everybody is let in, and nobody is asked for a team", "leave 'keys: false' out, or the teams", "teams"
            )
        return self


class PlacementRules(Strict):
    """Where replicas are beside others."""

    spread: t.Literal["host", "gpu", "pack"] = Field(
        default="host", description="wish: replicas on different hosts, then GPUs; on different GPUs; or near to each other"
    )
    max_per_host: int | None = Field(default=None, ge=1, description="replicas of this service on one host")
    max_per_gpu: int | None = Field(default=None, ge=1, description="replicas of this service on one GPU")
    apart: list[Name] = Field(
        default_factory=list, max_length=100, description="never on a host with one of these services, nor they with it"
    )
    together: list[Name] = Field(default_factory=list, max_length=100, description="only on a host that has one of these services")
    all_or_nothing: bool = Field(default=False, description="all replicas get a place, or none does")
    move_cost: int = Field(default=1, ge=1, le=100, description="as how many moves one of it counts, where others move to make room")

    @model_validator(mode="after")
    def _agree(self) -> PlacementRules:
        not_left_empty(self, "max_per_host", "max_per_gpu")
        for index, service in enumerate(self.together):
            if service in self.apart:
                raise Wrong(f"'{service}' is to be apart and together", "take it out of one of the two", "together", index)
        return self


class WarmUp(Strict):
    """A request that a new version has to answer before anybody else's reaches it."""

    method: t.Literal["GET", "POST"] = "GET"
    path: WebPath
    body: str = ""
    content_type: Line = "application/json"
    status: int = Field(default=200, ge=100, le=599)
    timeout: int = Field(default=60, ge=1, le=MOST_SECONDS, description="seconds that the answer may take")


class Rollout(Strict):
    """How a new version takes the place of the old one."""

    way: t.Literal["auto", "stop-first"] = Field(
        default="auto", description="auto: the new version proves itself beside the old one where there is room for both"
    )
    keep_room: bool = Field(default=False, description="room for that is kept free on each host with a replica of the service")
    timeout: int = Field(
        default=600, ge=1, le=MOST_SECONDS, description="seconds until a new version that does not become healthy has failed"
    )
    settle: int = Field(default=10, ge=0, le=MOST_SECONDS, description="seconds that it has to stay healthy")
    drain: int = Field(
        default=30, ge=0, le=MOST_SECONDS, description="seconds that requests in progress get to end before the old version is stopped"
    )
    keep: int = Field(default=5, ge=1, le=50, description="versions kept on the host for a rollback")
    warm_up: WarmUp | None = None


class LeaseNeed(Strict):
    """For how long a notebook or a preview may hold its GPU."""

    days: float = Field(gt=0, le=MOST_LEASE_DAYS, description="from its first start")
    notice_hours: float = Field(default=24, ge=0, le=24 * MOST_LEASE_DAYS, description="how long before its end the notice is given")
    idle_minutes: int | None = Field(default=None, ge=5, description="it ends earlier when its GPU was idle for so long")
    idle_below: float = Field(default=0.05, gt=0, lt=1, description="share of the GPU's time below which it is idle")

    @model_validator(mode="after")
    def _idle_for_so_long(self) -> LeaseNeed:
        if "idle_below" in self.model_fields_set and self.idle_minutes is None:
            raise Wrong("nothing says for how long it has to be idle", "add 'idle_minutes: 60', or leave it out", "idle_below")
        return self


class Needs(Strict):
    """What the image needs of driver and GPU, by its owner's word."""

    cuda: t.Annotated[str, AfterValidator(_cuda)] | None = Field(default=None, description="the CUDA that it was built with: 12.4.1")
    capability: t.Annotated[str, AfterValidator(_capability)] | None = Field(
        default=None, description="the least compute capability that it was built for: 8.0"
    )
    forward_compat: bool = Field(default=False, description="it carries cuda-compat, for drivers older than its CUDA")


class ManifestModel(Strict):
    """One service."""

    schema_: t.Literal[1] = Field(alias="schema", description="version of this format")
    service: Name
    team: Name
    environment: Name = Field(description="only hosts of this environment are considered")
    # Not None: a line that somebody left empty must not let the data go anywhere.
    data_class: Name = Field(
        default="", description="class of the data that it handles: only hosts that list it in fleet_data_classes are considered"
    )
    description: str = ""
    owner: str = ""
    runtime: Name = Field(default="http", description="a runtime of docs/runtimes.md, or a site's own template")
    image: Line | None = Field(default=None, description="pinned by digest: NAME@sha256:...")
    replicas: int = Field(default=1, ge=1, le=1000)
    priority: int = Field(default=50, ge=0, le=100, description="higher is placed first")
    gpu: Gpu = Field(default_factory=Gpu)
    host: Host = Field(default_factory=Host)
    placement: PlacementRules = Field(default_factory=PlacementRules)
    ports: list[Port] = Field(default_factory=list)
    health: Health | None = None
    env: dict[t.Annotated[str, AfterValidator(_env_name)], str] = Field(default_factory=dict)
    volumes: list[Volume] = Field(default_factory=list)
    command: list[str] = Field(default_factory=list, description="replaces the image's command")
    weights: list[Weight] = Field(default_factory=list, description="files that must be on the host, with their checksums")
    secrets: list[SecretName] = Field(default_factory=list, description="of fleet_secrets, without which it is not started")
    model: ModelNeed | None = None
    triton: Triton | None = None
    speech: Speech | None = None
    route: Route | None = None
    rollout: Rollout = Field(default_factory=Rollout)
    lease: LeaseNeed | None = None
    needs: Needs | None = None
    lifecycle: t.Literal["managed", "adopted"] = "managed"

    @model_validator(mode="after")
    def _agree(self) -> ManifestModel:
        if self.gpu.memory is None and self.gpu.profile is None and self.model is None:
            raise Wrong("nothing says how much GPU memory is needed", "add 'memory: 8 GiB', or a 'profile', or a 'model' block", "gpu")
        not_left_empty(self, "health", "route")
        ports_agree(self.ports, self.health)
        if self.route is not None and self.route.port not in [port.name for port in self.ports]:
            raise Wrong(f"there is no port named '{self.route.port}'", known_ports(self.ports), "route", "port")
        if self.rollout.warm_up is not None and self.health is None:
            raise Wrong("a warm-up request needs to know the port", "add 'health: {port: ...}'", "rollout", "warm_up")
        if self.lease is None and "lease" in self.model_fields_set:
            raise Wrong("it says nothing, so that no place would ever end", "write '{days: 14}', or leave 'lease' out", "lease")
        targets_differ(self.volumes)
        files_differ(self.weights)
        not_itself(self.service, self.placement)
        if self.lifecycle == "managed":
            _can_be_rendered(self)
        return self


def _can_be_rendered(manifest: ManifestModel) -> None:
    if manifest.image is None:
        raise Wrong("the field 'image' is missing", "add 'image: NAME@sha256:<64 hex digits>'")
    if not _IMAGE.fullmatch(manifest.image):
        hint = "pin it by digest: NAME@sha256:<64 hex digits>, as 'docker buildx imagetools inspect NAME' prints it"
        raise Wrong(f"'{manifest.image}' can mean another image tomorrow", hint, "image")
    for name in RESERVED_ENV:
        if name in manifest.env:
            raise Wrong(f"'{name}' would fight with the device that the planner chooses", "leave it out", "env", name)
    check_runtime(manifest)


class Manifest:
    """A checked manifest: the model, where it was written, and what the rest of the collection asks of it."""

    def __init__(self, model: ManifestModel, located: Located) -> None:
        self.model = model
        self.located = located

    @property
    def service(self) -> str:
        """The service's name, unique in the fleet."""
        return str(self.model.service)

    @property
    def file(self) -> str:
        """Path of the file, for messages."""
        return self.located.file

    def need_mib(self) -> int:
        """GPU memory needed on each GPU or slice, in MiB; 0 where only a profile is asked for."""
        gpus = self.model.gpu.count if self.model.runtime in SPREADING else 1
        estimate = 0 if self.model.model is None else memory.model_mib(self.model.model.model_dump(), gpus)
        return max(self.model.gpu.memory or 0, estimate)

    def data(self) -> dict[str, t.Any]:
        """Plain data with every default filled in, sizes as whole MiB, and ``need_mib``."""
        data: dict[str, t.Any] = self.model.model_dump(by_alias=True)
        if data["model"] is not None:
            data["model"]["name"] = data["model"]["name"] or self.service
            data["model"]["path"] = data["model"]["path"] or data["model"]["name"]
        data["need_mib"] = self.need_mib()
        return data

    def settings(self) -> dict[str, str]:
        """``sha256:`` of each of the parts ``SETTINGS`` that says anything, of what is not the default: a default that a later release
        brings is no change."""
        found = {}
        for name in SETTINGS:
            part = getattr(self.model, name)
            said = None if part is None else part.model_dump(by_alias=True, exclude_defaults=True)
            if said or (said is not None and name != "rollout"):  # everybody has a rollout
                found[name] = _digest(said)
        return found

    def digest(self) -> str:
        """``sha256:`` of all that a replica is made from; a change of the number of replicas or of the priority is none."""
        data = {key: value for key, value in self.data().items() if key not in NOT_RENDERED}
        data = {key: value for key, value in data.items() if key not in _LATER or value}
        # How its GPUs are joined changes no container.
        data["gpu"] = {key: value for key, value in data["gpu"].items() if key != "nvlink" and (key != "sharing" or value is not None)}
        if data["model"] is not None:
            data["model"] = {key: value for key, value in data["model"].items() if key not in ("kv_rank", "rope_dim") or value is not None}
        return _digest(data)


def _digest(data: t.Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def read_manifest(path: str, text: str) -> Manifest:
    """One manifest. :raises FleetError: with file, line, field, what was wrong and what would be right."""
    located = read_yaml(text, path)
    return Manifest(check(ManifestModel, located), located)


def read_manifests(texts: Iterable[tuple[str, str]], runtimes: Collection[str] = ()) -> list[Manifest]:
    """All manifests, by service name. ``runtimes``: the compose templates that exist; nothing is said about them if empty.

    :raises FleetError: every problem of every file, each on its own line; two files that describe one service.
    """
    require()
    manifests: list[Manifest] = []
    errors: list[FleetError] = []
    for path, text in sorted(texts):
        try:
            manifests.append(read_manifest(path, text))
        except FleetError as error:
            errors.append(error)
    first: dict[str, Manifest] = {}
    for manifest in manifests:
        other = first.setdefault(manifest.service, manifest)
        if other is not manifest:
            where = f"{other.file}:{other.located.line(('service',))}"
            hint = "give one of them another name, or remove one of the files"
            errors.append(manifest.located.error(("service",), f"'{manifest.service}' is already described in {where}", hint))
        if runtimes and manifest.model.lifecycle == "managed" and manifest.model.runtime not in runtimes:
            wrong = f"there is no compose template for the runtime '{manifest.model.runtime}'"
            errors.append(manifest.located.error(("runtime",), wrong, f"write one of: {', '.join(sorted(runtimes))}"))
    raise_all(errors)
    return sorted(manifests, key=lambda manifest: manifest.service)


def by_service(texts: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """(path, text) of each service's manifest. :raises FleetError: as :func:`read_manifest`."""
    return {read_manifest(path, text).service: (path, text) for path, text in texts}


def json_schema() -> dict[str, t.Any]:
    """JSON Schema of a manifest, for editors. :raises FleetError: pydantic is missing."""
    require()
    schema: dict[str, t.Any] = ManifestModel.model_json_schema(by_alias=True, mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "gpuops.fleet service manifest",
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2, sort_keys=True) + "\n")
