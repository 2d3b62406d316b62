"""The tables of the file: which keys each has and what their values may be.

Rule 1: what one value can tell by itself is said here; what takes two is in `cross_checks.py`.
Rule 2: a table has the fields of its settings class, which a test sees to, and their defaults.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from marshmallow import Schema, ValidationError, fields, validate

from tornado_frontdoor.config import settings
from tornado_frontdoor.config.fields import (
    NOT_A_TABLE,
    REQUIRED,
    YEAR_S,
    Argument,
    ChoiceField,
    EngineName,
    EnginePath,
    FilePath,
    Flag,
    HttpUrl,
    Items,
    ListenAddress,
    ModelName,
    Network,
    Number,
    OriginUrl,
    RedisUrl,
    Sha256,
    Text,
    UpstreamName,
    WebOrigin,
    Whole,
    Words,
)
from tornado_frontdoor.config.number_or_word import NumberOr
from tornado_frontdoor.config.schedule_fields import ScheduleRule, ZoneName
from tornado_frontdoor.core.catalog import Traits

PLACES_MAX = 100_000
"""Nobody waits in a queue that long: a bound on everything, this one against a slipped finger."""
SEQUENCES_MAX = 100_000
TOKENS_MAX = 100_000_000
GIB_MAX = 1_000_000
DEVICES_MAX = 1023


class Table(Schema):
    """A table of the file. Unknown keys are faults; `holds` is the class with the defaults."""

    holds: ClassVar[type[Any]]
    one_of: ClassVar[tuple[str, ...]] = ()
    """Keys of which one must be there, for editors; `cross_checks.py` says so to people."""
    error_messages = {"type": NOT_A_TABLE, "unknown": "is unknown"}  # noqa: RUF012 - marshmallow's

    def on_bind_field(self, field_name: str, field_obj: fields.Field[Any]) -> None:
        """Take the default of the settings field that has the same name."""
        if field_obj.required or isinstance(field_obj, fields.Nested | Named):
            return
        default = _defaults(self.holds)[field_name]
        field_obj.load_default = default


def _defaults(settings_class: type[Any]) -> dict[str, Any]:
    return {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(settings_class)
    } | {
        field.name: field.default_factory
        for field in dataclasses.fields(settings_class)
        if field.default_factory is not dataclasses.MISSING
    }


class Optional(fields.Nested):
    """A table that means something by being there: absent, the settings have None."""

    def __init__(self, table: type[Table]) -> None:
        super().__init__(table, load_default=None)


class Always(fields.Nested):
    """A table with a default for each key: absent, it is as if it were empty."""

    def __init__(self, table: type[Table]) -> None:
        super().__init__(table, load_default=lambda: table().load({}))


class Named(fields.Dict):
    """Tables of one kind, each under a name of its own; at least one, or `none` says why not."""

    def __init__(self, name: Text, table: type[Table], none: str | None = None) -> None:
        super().__init__(
            keys=name,
            values=fields.Nested(table),
            error_messages={"required": none or REQUIRED, "invalid": NOT_A_TABLE},
            **(
                {"required": True, "validate": validate.Length(min=1, error=none)}
                if none
                else {"load_default": dict}
            ),
        )


class Tables(fields.List[Any]):
    """A list of tables of one kind; the settings hold it as a tuple."""

    kind = "a list of tables, each with url and slots"

    def __init__(self, table: type[Table]) -> None:
        super().__init__(
            fields.Nested(table), error_messages={"invalid": "must be a list of tables"}
        )
        self._table = table

    def _deserialize(  # type: ignore[override]  # a tuple for a list: settings are frozen
        self, value: object, attr: str | None, data: Mapping[str, Any] | None, **kwargs: object
    ) -> tuple[Any, ...]:
        try:
            items: list[dict[str, Any]] = super()._deserialize(value, attr, data, **kwargs) or []  # type: ignore[assignment]
        except ValidationError as error:
            # Without the items that are fit: no cross check is to take those for all there are.
            raise ValidationError(error.messages) from error
        return tuple(self._table.holds(**item) for item in items)


class ServerTable(Table):
    """`[server]`."""

    holds = settings.ServerSettings

    listen = ListenAddress()
    admin_listen = ListenAddress()
    admin_token_file = FilePath()
    admin_hosts = Items(Text())
    cross_site_posts = Flag()
    state_dir = FilePath()
    max_body_mib = Whole(1, 65536)
    max_buffered_mib = Whole(1, 1_048_576)
    spill_body_mib = Whole(0, 65536)
    max_spilled_mib = Whole(0, 67_108_864)
    max_connections = Whole(1, 1_000_000)
    max_unfinished_per_address = Whole(1, 1_000_000)
    idle_timeout_s = Number(above=0, most=YEAR_S)
    head_timeout_s = Number(above=0, most=YEAR_S)
    body_timeout_s = Number(above=0, most=YEAR_S)
    drain_timeout_s = Number(least=0, most=YEAR_S)
    lame_duck_s = Number(least=0, most=YEAR_S)
    write_stall_timeout_s = Number(above=0, most=YEAR_S)
    progress = ChoiceField("known", "asked", "off")
    trusted_proxies = Items(Network())
    cors_origins = Items(WebOrigin())
    tls_cert = FilePath()
    tls_key = FilePath()


class LogTable(Table):
    """`[log]`."""

    holds = settings.LogSettings

    format = ChoiceField("json", "text")
    file = FilePath()
    buffer_kib = Whole(16, 1_048_576)


class SurfacesTable(Table):
    """`[surfaces]`."""

    holds = settings.SurfaceSettings

    openai = Flag()
    anthropic = Flag()
    anthropic_at_v1 = Flag()
    anthropic_overloaded_status = ChoiceField(529, 503)
    steering_fields = ChoiceField("remove", "refuse", "pass")


class AdmissionTable(Table):
    """`[upstreams.X.admission]`."""

    holds = settings.AdmissionSettings

    slots = Whole(2, SEQUENCES_MAX)
    cap = Whole(1, SEQUENCES_MAX, required=True)
    queue = Whole(0, PLACES_MAX, required=True)
    queue_timeout_s = Number(above=0, most=YEAR_S, required=True)
    return_places = Whole(0, PLACES_MAX)
    heed_client_timeouts = Flag()
    fair_share = Flag()


class SleepTable(Table):
    """`[upstreams.X.sleep]`."""

    holds = settings.SleepSettings

    idle_sleep_s = Number(least=0, most=YEAR_S)
    idle_offload_s = Number(least=0, most=YEAR_S)
    idle_stop_s = Number(least=0, most=YEAR_S)
    hold_sleeping_s = Number(above=0, most=YEAR_S)
    hold_offloaded_s = Number(above=0, most=YEAR_S)
    hold_restarting_s = Number(above=0, most=YEAR_S)
    retry_after_sleeping_s = Whole(1, YEAR_S)
    retry_after_offloaded_s = Whole(1, YEAR_S)
    retry_after_restarting_s = Whole(1, YEAR_S)
    max_waiting = Whole(1, PLACES_MAX)
    max_keep_alive_s = Number(least=0, most=YEAR_S)
    pinned = Flag()
    preload = Flag()
    schedule = Items(ScheduleRule())
    time_zone = ZoneName()
    canary = Flag()
    canary_path = ChoiceField("/v1/completions", "/v1/chat/completions", "/v1/embeddings")


class ProcessTable(Table):
    """`[upstreams.X.process]`."""

    holds = settings.ProcessSettings

    command = Items(Argument())
    start = Items(Argument())
    stop = Items(Argument())
    ready_path = EnginePath()
    start_timeout_s = Number(above=0, most=YEAR_S)
    stop_timeout_s = Number(above=0, most=3600)
    log_file = FilePath()


class GpuTable(Table):
    """`[upstreams.X.gpu]`."""

    holds = settings.GpuSettings

    devices = Items(Whole(0, DEVICES_MAX), least=1, distinct=True, required=True)
    utilization = NumberOr("measure", above=0, most=1, required=True)
    weights_gib = Number(above=0, most=GIB_MAX)
    residual_gib = NumberOr("measure", least=0, most=GIB_MAX)
    priority = Whole(-1000, 1000)


class ReplicaTable(Table):
    """One of `[upstreams.X] replicas`."""

    holds = settings.ReplicaSettings

    url = OriginUrl(required=True)
    slots = Whole(1, SEQUENCES_MAX, required=True)
    devices = Items(Whole(0, DEVICES_MAX), least=1, distinct=True)


class UpstreamTable(Table):
    """`[upstreams.X]`."""

    holds = settings.UpstreamSettings
    one_of = ("url", "replicas")

    engine = EngineName()
    url = OriginUrl()
    replicas = Tables(ReplicaTable)
    discover = ChoiceField("dns")
    discover_every_s = Number(least=1, most=86400)
    pick = ChoiceField("least", "affinity")
    probe_period_s = Number(least=0, most=YEAR_S)
    hold_restarting_s = Number(least=0, most=YEAR_S)
    connect_timeout_s = Number(above=0, most=YEAR_S)
    read_timeout_s = Number(above=0, most=YEAR_S)
    chunk_timeout_s = Number(above=0, most=YEAR_S)
    api_key_file = FilePath()
    forward_client_key = Flag()
    ca_file = FilePath()
    client_cert = FilePath()
    client_key = FilePath()
    cooling_limit_s = Number(least=0, most=3600)
    anthropic = ChoiceField("translate", "native")
    admission = Optional(AdmissionTable)
    sleep = Optional(SleepTable)
    gpu = Optional(GpuTable)
    process = Optional(ProcessTable)


class DialectTable(Table):
    """`[models.X.dialect]`."""

    holds = Traits

    inline_system = ChoiceField("merge", "keep", "reminder")
    thinking_style = ChoiceField("reasoning_effort", "enable_thinking", "thinking", "none")
    thinking_budget = Flag()
    thinking_default = ChoiceField("template", "off")
    effort_map = Words()
    reasoning_field = ChoiceField("reasoning", "reasoning_content", "both")
    prefill = ChoiceField("continue", "reject")
    images = ChoiceField("base64", "base64+url", "none")
    max_output_tokens = Whole(1, TOKENS_MAX)
    max_model_len = Whole(1, TOKENS_MAX)
    stop_limit = Whole(0, 1000)
    strip_attribution = Flag()
    continuous_usage = Flag()
    tool_args = ChoiceField("stream", "buffer")


class ModelTable(Table):
    """`[models.X]`."""

    holds = settings.ModelSettings

    upstream = Text(required=True)
    served_name = Text()
    aliases = Items(Text())
    wake = ChoiceField("always", "if-awake", "never")
    progress = ChoiceField("interim", "sse")
    dialect = Always(DialectTable)


class RoutesTable(Table):
    """`[routes]`."""

    holds = settings.RouteSettings

    chat_default = Text()
    multipart_chat_default = Text()
    embeddings = Text()


class KeyTable(Table):
    """`[keys.X]`."""

    holds = settings.KeySettings

    sha256 = Sha256(required=True)
    models = Items(Text())
    share = Number(above=0, most=1000)


class GroupTable(Table):
    """`[groups.X]`."""

    holds = settings.GroupSettings

    models = Items(Text(), least=2, distinct=True, required=True)
    exclusive = Flag()


class GpuPoolTable(Table):
    """`[gpu]`."""

    holds = settings.GpuPoolSettings

    memory_gib = Number(above=0, most=GIB_MAX, required=True)
    limit = Number(above=0, most=1)
    context_gib = Number(least=0, most=GIB_MAX)
    stay_factor = Number(least=0, most=1000)
    max_turn_wait_s = Number(above=0, most=YEAR_S)


class HostTable(Table):
    """`[host]`."""

    holds = settings.HostSettings

    ram_gib = Number(above=0, most=GIB_MAX, required=True)


class ClusterTable(Table):
    """`[cluster]`."""

    holds = settings.ClusterSettings

    redis = RedisUrl(required=True)
    on_outage = ChoiceField("split", "refuse")
    lease_s = Number(least=0.2, most=60)


class OtelTable(Table):
    """`[otel]`."""

    holds = settings.OtelSettings

    endpoint = HttpUrl(required=True)
    service_name = Text()
    sample_share = Number(least=0, most=1)


class File(Table):
    """The whole file."""

    holds = settings.Settings

    server = Always(ServerTable)
    surfaces = Always(SurfacesTable)
    upstreams = Named(UpstreamName(), UpstreamTable, f"{REQUIRED}: name an engine to stand before")
    models = Named(ModelName(), ModelTable, f"{REQUIRED}: name a model that an upstream serves")
    routes = Always(RoutesTable)
    gpu = Optional(GpuPoolTable)
    host = Optional(HostTable)
    keys = Named(UpstreamName(), KeyTable)
    log = Always(LogTable)
    cluster = Optional(ClusterTable)
    otel = Optional(OtelTable)
    groups = Named(UpstreamName(), GroupTable)
