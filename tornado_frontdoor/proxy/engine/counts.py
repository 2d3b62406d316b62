"""How many sequences an engine runs and keeps waiting, by its own gauges."""

from tornado_frontdoor.engines.base import EngineKind
from tornado_frontdoor.proxy.curl.client import UpstreamClient
from tornado_frontdoor.proxy.engine.prometheus_text import read_samples

TIMEOUT_S = 2.0


def credentials(api_key: str | None) -> list[tuple[str, str]]:
    """Return the headers of our own calls to an engine that asks for this key, if it does."""
    return [("Authorization", f"Bearer {api_key}")] if api_key else []


async def count_at(
    client: UpstreamClient,
    kind: EngineKind,
    engine: str,
    *,
    limit_bytes: int,
    api_key: str | None = None,
) -> int | None:
    """Ask the engine at an address; None where it does not tell. Raises UpstreamFailed."""
    call = kind.metrics
    if call is None:
        return None
    answer = await client.ask(
        call.method,
        engine + call.path,
        timeout_s=TIMEOUT_S,
        headers=credentials(api_key),
        limit_bytes=limit_bytes,
    )
    if answer.status != 200:
        return None
    return kind.busy(read_samples(answer.body, kind.gauges))
