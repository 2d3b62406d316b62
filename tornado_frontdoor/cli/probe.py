"""`frontdoor check --probe`: a configuration held against the engines and the Redis that it names.

Each mistake is a line in the form of the configuration's own faults, with the key that is wrong.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tornado_frontdoor.cli.engine_survey import Survey, Unasked, survey
from tornado_frontdoor.config import Settings, UpstreamSettings
from tornado_frontdoor.config.faults import did_you_mean, printable, shown, spell
from tornado_frontdoor.config.redis_url import shown_redis_url


class Probed(NamedTuple):
    """What came of it."""

    seen: list[str]
    """A line for each engine that answered, and for Redis."""
    mistakes: list[str]


def probe(settings: Settings) -> Probed:
    """Ask every engine of a configuration, all at once, and then its Redis."""
    upstreams = list(settings.upstreams.values())
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(_survey, upstreams))
    result = Probed([], [])
    where = printable(str(settings.path))
    for upstream, answer in zip(upstreams, answers, strict=True):
        if isinstance(answer, Unasked) and upstream.process is not None and not answer.answered:
            result.seen.append(f"upstream {upstream.key}: not running; the front door starts it")
            continue
        if isinstance(answer, Unasked):
            key = spell(("upstreams", upstream.key, "url"))
            result.mistakes.append(f"{where}: {key}: {upstream.url}: {answer}")
            continue
        result.seen.append(f"upstream {upstream.key}: {_told(answer)}")
        result.mistakes.extend(f"{where}: {m}" for m in _mistakes(settings, upstream, answer))
    if settings.cluster is not None:
        seen, mistakes = asyncio.run(_try_redis(settings))
        result.seen.extend(f"redis {shown_redis_url(settings.cluster.redis)}: {s}" for s in seen)
        result.mistakes.extend(f"{where}: cluster.redis: {mistake}" for mistake in mistakes)
    return result


async def _try_redis(settings: Settings) -> Probed:
    try:
        from tornado_frontdoor.proxy.cluster.redis_probe import try_redis
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        told = "redis is not installed here: pip install 'tornado-frontdoor[cluster]'"
        return Probed([], [told])
    tried = await try_redis(settings)
    return Probed([tried.seen] if tried.seen else [], tried.mistakes)


def _survey(upstream: UpstreamSettings) -> Survey | Unasked:
    try:
        return survey(upstream.url, upstream.read_api_key(), upstream.tls)
    except Unasked as unasked:
        return unasked


def _told(found: Survey) -> str:
    names = ", ".join(printable(name) for name in found.models) or "no models"
    lengths = sorted({length for length in found.models.values() if length})
    parts = [found.kind, names]
    if lengths:
        parts.append(f"context {' or '.join(str(length) for length in lengths)}")
    if found.slots:
        parts.append(f"{found.slots} slots")
    if found.can_sleep:
        parts.append("asleep" if found.sleeping else "awake")
    return "; ".join(parts)


def _mistakes(settings: Settings, upstream: UpstreamSettings, found: Survey) -> Iterator[str]:
    place = ("upstreams", upstream.key)
    admission = upstream.admission
    if admission is not None and found.slots is not None and admission.slots != found.slots:
        yield (
            f"{spell((*place, 'admission', 'slots'))}: is {admission.slots}, "
            f"and the engine runs {found.slots} sequences at once"
        )
    if upstream.sleep is not None and upstream.engine == "vllm" and not found.can_sleep:
        yield (
            f"{spell((*place, 'sleep'))}: the engine has no sleep routes (/is_sleeping is not "
            "there): vLLM has them with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"
        )
    if upstream.sleep is not None and found.paths is not None and upstream.sleep.canary:
        path = upstream.sleep.canary_path
        if path not in found.paths:
            yield (
                f'{spell((*place, "sleep", "canary_path"))}: is "{path}", '
                "which the engine does not have"
            )
    for model in settings.models.values():
        if model.upstream != upstream.key:
            continue
        if model.served_name not in found.models:
            written = ("models", model.name, "served_name")
            hint = did_you_mean(model.served_name, found.models)
            there_are = ", ".join(shown(name) for name in found.models) or "none"
            yield (
                f"{spell(written)}: the engine at {upstream.url} serves no "
                f"{shown(model.served_name)}, but {there_are}{hint}"
            )
            continue
        length, engine_s = model.dialect.max_model_len, found.models[model.served_name]
        if length is not None and engine_s is not None and length > engine_s:
            yield (
                f"{spell(('models', model.name, 'dialect', 'max_model_len'))}: is {length}, "
                f"and the engine's is {engine_s}"
            )
