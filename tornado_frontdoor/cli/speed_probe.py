"""`frontdoor calibrate --probe URL`: how fast an idle engine is, measured in at most two minutes.

Rule 1: it asks before it sends anything, as an engine in use would be slowed down, and the answer
        would be wrong.
Rule 2: 1, 2, 4 and 8 requests at once, never more than the engine has slots; prompts begin with
        words that never came before, or a prefix cache would read them for nothing.
Rule 3: what memory it has is asked rather than measured, where it tells (vLLM does).
"""

import json
import random
import re
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.request import Request

import numpy as np

from simulator.cli import option_parser as parsers
from simulator.cli.commands import tell_fit
from simulator.cli.option_parser import OptionParser, UsageError
from simulator.study.calibrate import FEWEST, fit_benchmarks
from simulator.traffic.benchmarks import Timings
from simulator.traffic.engine_details import EngineDetails
from simulator.traffic.service_profiles import ServiceProfile
from simulator.traffic.tables import TraceError
from tornado_frontdoor.cli.engine_survey import MOST_BYTES, Unasked, survey
from tornado_frontdoor.cli.straight import STRAIGHT
from tornado_frontdoor.config.address import normalised_url

LEVELS = (1, 2, 4, 8)
LONGEST_S = 3600.0
WHOLE_S = 110.0
"""For all levels together; what is under way then is waited for."""
REQUEST_TIMEOUT_S = 60.0
CACHE = "vllm:cache_config_info{"
PROMPT_WORDS = (20, 100, 400)
ANSWER_TOKENS = (16, 48, 96)


class ProbeCall(NamedTuple):
    """One request as it went: tokens, and instants of the monotonic clock."""

    prompt: float
    output: float
    sent_s: float
    first_s: float
    last_s: float


def run(given: Mapping[str, Any]) -> int:
    """Measure, fit and print; raises UsageError."""
    options = OptionParser(given)
    url = options.take("--probe", normalised_url, "")
    seconds = options.take("--seconds", parsers.up_to(LONGEST_S, parsers.above(0)), WHOLE_S)
    options.done()
    try:
        found = survey(url)
    except Unasked as error:
        raise UsageError([f"--probe: {url}: {error}"]) from None
    model = given.get("--model") or next(iter(found.models), None)
    if model is None:
        raise UsageError([f"--probe: {url} serves no model"])
    levels = [level for level in LEVELS if found.slots is None or level <= found.slots]
    _ask(url, found.kind, levels, seconds, yes=bool(given.get("--yes")))
    calls = measured(url, model, levels, seconds)
    try:
        fit = fit_benchmarks(
            [Timings(*np.array(calls, dtype=np.float64).T)] if calls else [],
            given.get("--name") or str(model),
            f"a probe of {found.kind} at {url}",
        )
    except TraceError as error:
        raise UsageError([f"--probe: {error}: ask for more --seconds"]) from None
    if isinstance(fit.profile, ServiceProfile) and (details := memory_of(_metrics(url))):
        fit = replace(fit, profile=replace(fit.profile, details=details))
    return tell_fit(fit, given)


def memory_of(metrics: str) -> EngineDetails | None:
    """Return what vLLM says of its KV cache in its metrics; None where nothing is said."""
    line = next((one for one in metrics.splitlines() if one.startswith(CACHE)), "")
    told = dict(re.findall(r'(\w+)="([^"]*)"', line))
    try:
        block = int(told["block_size"])
        # Releases before 2026 tell blocks alone.
        tokens = int(told.get("kv_cache_size_tokens") or block * int(told["num_gpu_blocks"]))
    except (KeyError, ValueError):
        return None
    if block < 1 or tokens < 1:
        return None
    caching = told.get("enable_prefix_caching") != "False"
    return EngineDetails(kv_tokens=float(tokens), kv_block_tokens=block, prefix_caching=caching)


def _metrics(url: str) -> str:
    try:
        with STRAIGHT.open(f"{url}/metrics", timeout=REQUEST_TIMEOUT_S) as answer:
            return str(answer.read(MOST_BYTES).decode(errors="replace"))
    except (OSError, HTTPException, ValueError):
        return ""


def _ask(url: str, kind: str, levels: list[int], seconds: float, *, yes: bool) -> None:
    told = ", ".join(map(str, levels))
    print(
        f"{kind} at {url}: {told} requests at once, for {seconds:.0f} s in all. Nobody else should "
        "use it meanwhile.",
        file=sys.stderr,
        flush=True,
    )
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(["--probe: asks before it begins; --yes answers"])
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError(["--probe: nothing was sent"])


def measured(url: str, model: str, levels: list[int], seconds: float) -> list[ProbeCall]:
    """Return the requests that were answered, of all levels."""
    calls: list[ProbeCall] = []
    _call(url, model, random.Random(0))  # noqa: S311 - it warms the engine up, and does not count
    for number, level in enumerate(levels):
        until_s = time.monotonic() + seconds / len(levels)
        with ThreadPoolExecutor(level) as pool:
            parts = pool.map(
                lambda each, until_s=until_s: _calls(url, model, until_s, each),
                range(100 * number, 100 * number + level),
            )
            made = [call for part in parts for call in part]
        calls += made
        print(f"{level} at once: {len(made)} requests", file=sys.stderr, flush=True)
    if len(calls) < FEWEST:
        raise UsageError(
            [f"--probe: {len(calls)} requests were answered; a fit needs {FEWEST}: more --seconds"]
        )
    return calls


def _calls(url: str, model: str, until_s: float, number: int) -> list[ProbeCall]:
    """Ask one after another until the time is over."""
    rng = random.Random(number)  # noqa: S311 - sizes of prompts
    calls = []
    while time.monotonic() < until_s:
        calls.append(_call(url, model, rng))
    return calls


def _call(url: str, model: str, rng: random.Random) -> ProbeCall:
    words = (f"{rng.randrange(1 << 30):x}" for _ in range(rng.choice(PROMPT_WORDS)))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": " ".join(words)}],
        "max_tokens": rng.choice(ANSWER_TOKENS),
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    head = {"Content-Type": "application/json"}
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)  # noqa: S310 - named by its operator
    sent_s = time.monotonic()
    first_s = last_s = None
    usage: Mapping[str, Any] = {}
    try:
        with STRAIGHT.open(request, timeout=REQUEST_TIMEOUT_S) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                now_s = time.monotonic()
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                if _has_text(event):
                    first_s = first_s or now_s
                    last_s = now_s
    except (OSError, HTTPException, ValueError) as error:
        raise UsageError([f"--probe: {url} did not answer as an engine does: {error}"]) from None
    if first_s is None or last_s is None or not usage.get("completion_tokens"):
        raise UsageError([f"--probe: {url} does not say how many tokens a stream had (usage)"])
    tokens = float(usage.get("prompt_tokens") or 0), float(usage["completion_tokens"])
    return ProbeCall(*tokens, sent_s, first_s, last_s)


def _has_text(event: Mapping[str, Any]) -> bool:
    choices = event.get("choices")
    if not choices:
        return False
    delta = choices[0].get("delta") or {}
    return any(delta.get(name) for name in ("content", "reasoning", "reasoning_content"))
