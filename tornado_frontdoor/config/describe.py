"""What a configuration means, for `frontdoor check`: in words for people, as JSON for programs.

Both are made of the settings alone; nothing is asked of an engine or of the network.
"""

import json
from collections.abc import Iterator

from tornado_frontdoor.config.budget import BudgetLine, gpu_budget
from tornado_frontdoor.config.settings import (
    ModelSettings,
    Settings,
    SleepSettings,
    UpstreamSettings,
)

Json = dict[str, object]


def describe_json(settings: Settings) -> str:
    """Return the summary as one JSON document."""
    return json.dumps(summary(settings), indent=2, ensure_ascii=False)


def summary(settings: Settings) -> Json:
    """Return the summary as plain values; their keys are those of the file where it has them."""
    server = settings.server
    return {
        "file": str(settings.path),
        "listeners": {"public": str(server.listen), "admin": str(server.admin_listen)},
        "state_dir": str(server.state_dir),
        "surfaces": _surfaces(settings),
        "upstreams": {key: _upstream_json(one) for key, one in settings.upstreams.items()},
        "models": {name: _model_json(one) for name, one in settings.models.items()},
        "routes": {route: name for route, name in _routes(settings) if name is not None},
        "groups": {
            name: {"upstreams": settings.upstreams_of(one), "exclusive": one.exclusive}
            for name, one in settings.groups.items()
        },
        "budget": [_budget_json(line) for line in gpu_budget(settings)],
        "warnings": find_warnings(settings),
    }


def describe(settings: Settings) -> str:
    """Return the summary as lines of plain text, without a newline at the end."""
    server = settings.server
    blocks = [
        [
            f"public listener  {server.listen} for {' and '.join(_surfaces(settings))}",
            f"admin listener   {server.admin_listen}{_token_words(settings)}",
            f"state            {server.state_dir}",
        ],
        *[_upstream_lines(one) for one in settings.upstreams.values()],
        [_model_line(one) for one in settings.models.values()],
        [f"{route} goes to {name}" for route, name in _routes(settings) if name is not None],
        [
            f"group {name}: of {' and '.join(settings.upstreams_of(group))} one is awake at a time"
            for name, group in settings.groups.items()
            if group.exclusive
        ],
        [str(line) for line in gpu_budget(settings)],
        [f"warning: {warning}" for warning in find_warnings(settings)],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def find_warnings(settings: Settings) -> list[str]:
    """Return what is legal and probably not meant, each with its key."""
    asked = {model.upstream for model in settings.models.values()}
    warnings = [
        f"upstreams.{key}: no model names it, so nothing can reach it"
        for key in settings.upstreams
        if key not in asked
    ]
    for upstream in settings.upstreams.values():
        warnings += _upstream_warnings(upstream)
        if upstream.admission is not None and upstream.admission.fair_share:
            path = f"upstreams.{upstream.key}.admission.fair_share"
            if not settings.keys:
                warnings.append(f"{path}: has no effect without [keys.NAME]: all are alike")
            if settings.cluster is not None:
                warnings.append(f"{path}: has no effect in a cluster, which is not told of keys")
    warnings += _preload_warnings(settings)
    for name, model in settings.models.items():
        if name in settings.upstreams and model.upstream != name:
            warnings.append(
                f"models.{name}: is served by {model.upstream}, "
                f"while admin calls for it mean the upstream {name}"
            )
    return warnings + [str(line) for line in gpu_budget(settings) if line.fits is False]


def _preload_warnings(settings: Settings) -> Iterator[str]:
    """Yield what cannot be preloaded together: each would put the one before it to sleep."""
    wanted = {
        key: one for key, one in settings.upstreams.items() if one.sleep and one.sleep.preload
    }
    for name, group in settings.groups.items():
        both = [key for key in settings.upstreams_of(group) if key in wanted]
        if group.exclusive and len(both) > 1:
            yield f"groups.{name}: {' and '.join(both)} are preloaded, and only one stays awake"
    pool = settings.gpu
    if pool is None:
        return
    shares: dict[int, dict[str, float]] = {}
    for one in wanted.values():
        share = one.gpu.share if one.gpu else None
        if one.gpu is None or share is None:
            continue  # what is measured is not known yet
        need = share + pool.context_gib / pool.memory_gib
        for url in one.urls:
            for device in one.devices_of(url):
                shares.setdefault(device, {})[one.name_of(url)] = need
    for device, there in sorted(shares.items()):
        if len(there) > 1 and sum(there.values()) > pool.limit + 1e-9:
            names = " and ".join(there)
            yield f"gpu: {names} are preloaded and do not fit into GPU {device} together"


def _upstream_warnings(upstream: UpstreamSettings) -> list[str]:
    sleep = upstream.sleep
    if sleep is None:
        return []
    path = f"upstreams.{upstream.key}.sleep"
    warnings = []
    if sleep.max_waiting is not None and upstream.admission is not None:
        warnings.append(f"{path}.max_waiting: has no effect beside an admission table")
    if not sleep.idle_sleep_s and not sleep.idle_offload_s:
        warnings.append(f"{path}: both idle tiers are 0, so only an admin call puts it to sleep")
    return warnings


# Parts of the text


def _upstream_lines(upstream: UpstreamSettings) -> list[str]:
    return [
        f"upstream {upstream.key} at {', '.join(upstream.urls)}",
        *_discovery_lines(upstream),
        *_tls_lines(upstream),
        f"  admission  {_admission_words(upstream)}",
        f"  sleep      {_sleep_words(upstream.sleep)}",
        f"  silence    {_silence_words(upstream)}",
    ]


def _silence_words(upstream: UpstreamSettings) -> str:
    return (
        f"{upstream.connect_timeout_s:g} s to connect, {upstream.read_timeout_s:g} s "
        f"to the first byte, {upstream.chunk_timeout_s:g} s between bytes"
    )


def _discovery_lines(upstream: UpstreamSettings) -> Iterator[str]:
    if upstream.discover is not None:
        every_s = upstream.discover_every_s
        yield f"  discover   the addresses of its name by {upstream.discover}, every {every_s:g} s"


def _tls_lines(upstream: UpstreamSettings) -> Iterator[str]:
    told = []
    if upstream.ca_file is not None:
        told.append(f"trusted by ca_file {upstream.ca_file}")
    if upstream.client_cert is not None:
        told.append(f"shown client_cert {upstream.client_cert}")
    if told:
        yield f"  tls        {', '.join(told)}"


def _admission_words(upstream: UpstreamSettings) -> str:
    admission = upstream.admission
    if admission is None:
        return "uncapped"
    if upstream.discover is not None:
        slots = f"{admission.cap} at once, {admission.slots} slots at each address"
    else:
        slots = (
            f"{admission.cap} of {admission.slots} slots ({admission.headroom} left to operators)"
        )
    return f"{slots}, {admission.queue} queued for at most {admission.queue_timeout_s:g} s"


def _sleep_words(sleep: SleepSettings | None) -> str:
    if sleep is None:
        return "never slept, never woken"
    tiers = [
        f"level {level} after {idle_s:g} s idle"
        for level, idle_s in ((1, sleep.idle_sleep_s), (2, sleep.idle_offload_s))
        if idle_s
    ]
    held = f"{sleep.hold_sleeping_s:g}/{sleep.hold_offloaded_s:g}/{sleep.hold_restarting_s:g} s"
    return "; ".join(
        [
            "pinned" if sleep.pinned else ", ".join(tiers) or "by admin calls only",
            *([f"{', '.join(sleep.schedule)} ({sleep.time_zone})"] if sleep.schedule else []),
            *(["woken at the start"] if sleep.preload else []),
            f"callers are held for {held}",
        ]
    )


def _model_line(model: ModelSettings) -> str:
    aliases = f", also as {', '.join(model.aliases)}" if model.aliases else ""
    served = "" if model.served_name == model.name else f" (there {model.served_name})"
    wakes = {"always": "", "if-awake": ", wakes nobody", "never": ", wakes nobody, is no use"}
    return f"model {model.name} from {model.upstream}{served}{aliases}{wakes[model.wake]}"


def _token_words(settings: Settings) -> str:
    return "" if settings.server.admin_token_file is None else ", with a token"


def _surfaces(settings: Settings) -> list[str]:
    served = {"/v1": settings.surfaces.openai, "/llm": settings.surfaces.anthropic}
    return [prefix for prefix, on in served.items() if on]


def _routes(settings: Settings) -> list[tuple[str, str | None]]:
    routes = settings.routes
    return [
        ("chat_default", routes.chat_default),
        ("multipart_chat_default", routes.multipart_chat_default),
        ("embeddings", routes.embeddings),
    ]


# Parts of the JSON


def _upstream_json(upstream: UpstreamSettings) -> Json:
    admission, sleep = upstream.admission, upstream.sleep
    return {
        "url": upstream.url,
        "replicas": [
            {"url": one.url, "slots": one.slots, "devices": list(upstream.devices_of(one.url))}
            for one in upstream.replicas
        ],
        "pick": upstream.pick,
        "discover": upstream.discover,
        "discover_every_s": upstream.discover_every_s if upstream.discover else None,
        "ca_file": None if upstream.ca_file is None else str(upstream.ca_file),
        "client_cert": None if upstream.client_cert is None else str(upstream.client_cert),
        "slots": admission.slots if admission else None,
        "cap": admission.cap if admission else None,
        "queue": admission.queue if admission else None,
        "queue_timeout_s": admission.queue_timeout_s if admission else None,
        "heed_client_timeouts": admission.heed_client_timeouts if admission else None,
        "fair_share": admission.fair_share if admission else None,
        "return_places": admission.places_for_returns if admission else None,
        # Of each address, and nobody knows how many there are.
        "headroom": admission.headroom if admission and not upstream.discover else None,
        "connect_timeout_s": upstream.connect_timeout_s,
        "read_timeout_s": upstream.read_timeout_s,
        "chunk_timeout_s": upstream.chunk_timeout_s,
        "cooling_limit_s": upstream.cooling_limit_s,
        "anthropic": upstream.anthropic,
        "sleeps": sleep is not None,
        "idle_sleep_s": sleep.idle_sleep_s if sleep else None,
        "idle_offload_s": sleep.idle_offload_s if sleep else None,
        "max_waiting": sleep.max_waiting if sleep else None,
        "max_keep_alive_s": sleep.max_keep_alive_s if sleep else None,
        "pinned": sleep.pinned if sleep else None,
        "preload": sleep.preload if sleep else None,
        "schedule": list(sleep.schedule) if sleep else None,
        "time_zone": sleep.time_zone if sleep else None,
    }


def _model_json(model: ModelSettings) -> Json:
    return {
        "upstream": model.upstream,
        "served_name": model.served_name,
        "aliases": list(model.aliases),
        "wake": model.wake,
    }


def _budget_json(line: BudgetLine) -> Json:
    return {
        "subject": line.subject,
        "used": round(line.used, 6),
        "limit": line.limit,
        "unit": line.unit,
        "upstreams": list(line.upstreams),
        "unknown": list(line.unknown),
        "fits": line.fits,
    }
