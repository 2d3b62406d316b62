"""The configuration as frozen values: field names are the file's keys, defaults the file's too.

A default stands here and nowhere else: the schemas take theirs from these classes, and a test
compares docs/configuration.md with them. What has no default here is required in the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

from tornado_frontdoor.config.address import Address
from tornado_frontdoor.config.admin_token import read_token
from tornado_frontdoor.config.engine_tls import TlsFiles
from tornado_frontdoor.core.catalog import Catalog, Routes, Target, Traits
from tornado_frontdoor.core.limits import default_return_places
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.engines import DEFAULT_KIND

BYTES_PER_MIB = 1024 * 1024
PUBLIC = Address("127.0.0.1", 8080)
ADMIN = Address("127.0.0.1", 8010)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`[server]`: listeners, state and the limits of one connection."""

    listen: Address = PUBLIC
    admin_listen: Address = ADMIN
    admin_token_file: Path | None = None
    admin_hosts: tuple[str, ...] = ()
    cross_site_posts: bool = False
    state_dir: Path = Path("var")
    max_body_mib: int = 64
    max_buffered_mib: int = 1024
    spill_body_mib: int = 4
    max_spilled_mib: int = 4096
    max_connections: int = 20000
    max_unfinished_per_address: int = 256
    idle_timeout_s: float = 75
    head_timeout_s: float = 20
    body_timeout_s: float = 30
    drain_timeout_s: float = 30
    lame_duck_s: float = 0
    write_stall_timeout_s: float = 120
    progress: Literal["known", "asked", "off"] = "known"
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    cors_origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mib` in bytes."""
        return self.max_body_mib * BYTES_PER_MIB

    @property
    def max_buffered_bytes(self) -> int:
        """`max_buffered_mib` in bytes."""
        return self.max_buffered_mib * BYTES_PER_MIB

    @property
    def spill_body_bytes(self) -> int:
        """`spill_body_mib` in bytes."""
        return self.spill_body_mib * BYTES_PER_MIB

    @property
    def max_spilled_bytes(self) -> int:
        """`max_spilled_mib` in bytes."""
        return self.max_spilled_mib * BYTES_PER_MIB

    @property
    def tls_files(self) -> tuple[Path, Path] | None:
        """Certificate and key of the public listener; None: it speaks plain HTTP."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return self.tls_cert, self.tls_key

    def read_admin_token(self) -> str | None:
        """Read the token that admin calls must bring; None: none is asked for.

        Raises OSError or ValueError when the file cannot be read as one line of text.
        """
        return None if self.admin_token_file is None else read_token(self.admin_token_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`[log]`: where lines go, how they look, and how many may wait for a reader."""

    format: Literal["json", "text"] = "json"
    file: Path | None = None
    buffer_kib: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceSettings:
    """`[surfaces]`: which dialects are served."""

    openai: bool = True
    anthropic: bool = True
    anthropic_at_v1: bool = True
    anthropic_overloaded_status: int = 529
    steering_fields: Literal["remove", "refuse", "pass"] = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """`[upstreams.X.admission]`: no limit has a default, a silent one is a surprise."""

    slots: int = 0
    """Never 0: the sum of those of the replicas, where there are some."""
    cap: int
    queue: int
    queue_timeout_s: float
    return_places: int | None = None
    """None: half of the queue."""
    heed_client_timeouts: bool = True
    fair_share: bool = False

    @property
    def places_for_returns(self) -> int:
        """Places that are kept for those who come back when told."""
        half = default_return_places(self.queue)
        return half if self.return_places is None else self.return_places

    @property
    def headroom(self) -> int:
        """Slots of the engine that the front door leaves to operators (>= 1)."""
        return self.slots - self.cap


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepSettings:
    """`[upstreams.X.sleep]`: idle tiers, how long callers are held, what they are told."""

    idle_sleep_s: float = 900
    idle_offload_s: float = 10800
    idle_stop_s: float = 0
    hold_sleeping_s: float = 30
    hold_offloaded_s: float = 180
    hold_restarting_s: float = 300
    retry_after_sleeping_s: int = 10
    retry_after_offloaded_s: int = 60
    retry_after_restarting_s: int = 600
    max_waiting: int | None = None
    """Never None where the upstream has no admission table."""
    max_keep_alive_s: float = 86400
    pinned: bool = False
    preload: bool = False
    schedule: tuple[str, ...] = ()
    time_zone: str = "UTC"
    canary: bool = True
    canary_path: Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings"] = (
        "/v1/completions"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """`[upstreams.X.process]`: how the engine is started and stopped."""

    command: tuple[str, ...] = ()
    """A child of the front door's own; or, instead of it:"""
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    ready_path: str = "/health"
    start_timeout_s: float = 600
    stop_timeout_s: float = 30
    log_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """`[upstreams.X.gpu]`: what the engine takes; by it room is made for one that has to wake."""

    devices: tuple[int, ...]
    utilization: float | Literal["measure"]
    weights_gib: float | None = None
    residual_gib: float | Literal["measure"] | None = None
    """What is left on each device while it sleeps; None: the CUDA context, `gpu.context_gib`."""
    priority: int = 0

    @property
    def measures(self) -> bool:
        """Whether anything of it is learned from the GPU."""
        return "measure" in (self.utilization, self.residual_gib)

    @property
    def share(self) -> float | None:
        """The share of each device that it takes awake; None: that is measured."""
        return None if self.utilization == "measure" else self.utilization


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """One of `[upstreams.X] replicas`: an engine, and the sequences that it runs at once."""

    url: str
    slots: int
    devices: tuple[int, ...] = ()
    """The GPUs that it is on; none: those of the upstream's gpu table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """`[upstreams.X]`: one gate, before one address or several."""

    key: UpstreamKey
    """The table's name."""
    engine: str = DEFAULT_KIND
    """The kind of engine: one of `engines.kinds()`."""
    url: str = ""
    """Scheme and host in lower case, no slash at the end; never equal to another upstream's. That
    of the first replica where there are some, never empty."""
    replicas: tuple[ReplicaSettings, ...] = ()
    discover: Literal["dns"] | None = None
    discover_every_s: float = 10
    pick: Literal["least", "affinity"] = "least"
    probe_period_s: float = 2
    hold_restarting_s: float = 0
    connect_timeout_s: float = 5
    read_timeout_s: float = 900
    chunk_timeout_s: float = 120
    api_key_file: Path | None = None
    forward_client_key: bool = True
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    cooling_limit_s: float = 2
    anthropic: Literal["translate", "native"] = "translate"
    admission: AdmissionSettings | None = None
    sleep: SleepSettings | None = None
    gpu: GpuSettings | None = None
    process: ProcessSettings | None = None

    @property
    def tls(self) -> TlsFiles | None:
        """What it is reached with behind TLS, where that is not what is usual."""
        files = TlsFiles(self.ca_file, self.client_cert, self.client_key)
        return files if any(files) else None

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses behind it."""
        return tuple(replica.url for replica in self.replicas) or (self.url,)

    def gpu_of(self, url: str) -> GpuSettings | None:
        """Return what the engine at one of the addresses takes of which GPUs."""
        own = next((one.devices for one in self.replicas if one.url == url), ())
        return replace(self.gpu, devices=own) if self.gpu is not None and own else self.gpu

    def devices_of(self, url: str) -> tuple[int, ...]:
        """Return the GPUs that the engine at one of the addresses is on."""
        gpu = self.gpu_of(url)
        return () if gpu is None else gpu.devices

    def name_of(self, url: str) -> str:
        """Return what an engine is called among those of all upstreams."""
        return f"{self.key} at {url.partition('://')[2]}" if self.replicas else self.key

    @property
    def several(self) -> bool:
        """Whether several engines may stand behind it."""
        return bool(self.replicas) or self.discover is not None

    def read_api_key(self) -> str | None:
        """Read the key that the engine asks for; None: it asks for none that we know.

        Raises OSError or ValueError when the file cannot be read as one line of text.
        """
        return None if self.api_key_file is None else read_token(self.api_key_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """`[models.X]`: one model, its other names, and who serves it."""

    name: str
    """The table's name."""
    upstream: UpstreamKey
    served_name: str
    """What the engine is asked for; the table's name where the file gives none."""
    aliases: tuple[str, ...] = ()
    wake: Literal["always", "if-awake", "never"] = "always"
    progress: Literal["interim", "sse"] = "interim"
    dialect: Traits = field(default_factory=Traits)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """`[routes]`: which model a request without one is for; None: it must name one."""

    chat_default: str | None = None
    multipart_chat_default: str | None = None
    embeddings: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """`[keys.X]`: one client that may call; without any such table everybody may."""

    name: str
    """The table's name."""
    sha256: str
    models: tuple[str, ...] = ()
    share: float = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """`[groups.X]`: models of which one is awake at a time."""

    name: str
    """The table's name."""
    models: tuple[str, ...]
    exclusive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPoolSettings:
    """`[gpu]`: the GPUs that the upstreams' `gpu` tables speak of, all alike."""

    memory_gib: float
    limit: float = 0.88
    context_gib: float = 1.6
    stay_factor: float = 3
    max_turn_wait_s: float = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """`[host]`: the machine in whose memory engines at level 1 keep their weights."""

    ram_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """`[cluster]`: several front doors that share one gate for each upstream."""

    redis: str
    on_outage: Literal["split", "refuse"] = "split"
    lease_s: float = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings:
    """`[otel]`: where spans go."""

    endpoint: str
    service_name: str = "frontdoor"
    sample_share: float = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One configuration file, checked whole. Mappings are read-only and in the file's order."""

    path: Path
    server: ServerSettings
    surfaces: SurfaceSettings
    upstreams: Mapping[str, UpstreamSettings]
    models: Mapping[str, ModelSettings]
    routes: RouteSettings
    gpu: GpuPoolSettings | None = None
    host: HostSettings | None = None
    keys: Mapping[str, KeySettings] = field(default_factory=dict)
    log: LogSettings = field(default_factory=LogSettings)
    cluster: ClusterSettings | None = None
    otel: OtelSettings | None = None
    groups: Mapping[str, GroupSettings] = field(default_factory=dict)

    def groups_of(self, upstream: str) -> tuple[str, ...]:
        """Return the groups in which an upstream's engine is, those in force."""
        return tuple(
            name
            for name, group in self.groups.items()
            if group.exclusive and upstream in self.upstreams_of(group)
        )

    def upstreams_of(self, group: GroupSettings) -> list[str]:
        """Return whose engines a group's models are, each once."""
        named = {name.lower() for name in group.models}
        found = (model.upstream for name, model in self.models.items() if name.lower() in named)
        return [*dict.fromkeys(found)]

    def catalog(self, lengths: Mapping[tuple[UpstreamKey, str], int] | None = None) -> Catalog:
        """Build the catalog that resolves these models, in the file's order.

        `lengths` are contexts that engines told of, by upstream and served name: what the file
        says of a model comes first.
        """
        return Catalog(
            [self._target(model, lengths or {}) for model in self.models.values()],
            Routes(
                chat_default=self.routes.chat_default,
                multipart_chat_default=self.routes.multipart_chat_default,
                embeddings=self.routes.embeddings,
            ),
        )

    def _target(
        self, model: ModelSettings, lengths: Mapping[tuple[UpstreamKey, str], int]
    ) -> Target:
        upstream = self.upstreams[model.upstream]
        traits = model.dialect
        if traits.max_model_len is None:
            length = lengths.get((model.upstream, model.served_name))
            traits = replace(traits, max_model_len=length)
        return Target(
            model=model.name,
            served_name=model.served_name,
            upstream=model.upstream,
            aliases=model.aliases,
            traits=traits,
            anthropic=upstream.anthropic,
            max_weight=upstream.admission.cap if upstream.admission else None,
            wake=model.wake,
            progress=model.progress,
        )
