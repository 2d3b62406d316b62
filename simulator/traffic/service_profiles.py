"""How fast a replica works: service profiles, with the source of every number.

A profile says what one output token costs at each batch and what a prompt costs; tokens are the
unit of work. None of them is your engine: calibrate before use (`frontdoor calibrate`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from simulator.engine_model.replica import Prefill
from simulator.traffic.distributions import Distribution, empirical
from simulator.traffic.engine_details import (
    BLOCK_TOKENS,
    PLAIN,
    EngineDetails,
    PrefixCache,
    Speculation,
)
from simulator.traffic.pace import MOST_LEVEL_ERROR, STEADY, EnginePace

CHUNK_TOKENS = 2048
"""Prompt tokens in one iteration: vLLM's `max_num_batched_tokens` where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """Seconds for one token of each of b sequences: `(first_s + per_sequence_s (b - 1)) b^power`.

    A dense model has power 0; one with experts has per_sequence_s 0, as each further sequence
    touches further experts.
    """

    first_s: float
    per_sequence_s: float = 0.0
    power: float = 0.0

    def at(self, batch: int) -> float:
        """Return the seconds that one iteration takes with `batch` sequences in it."""
        return self.at_mean(batch)

    def at_mean(self, batch: float) -> float:
        """Return the same for a mean number of sequences."""
        alone_s = self.first_s + self.per_sequence_s * (batch - 1)
        return float(alone_s * batch**self.power)


Draw = tuple[float, float, float, float, float]
"""Token, per sequence, power, prompt token, overhead: one profile that a log leaves open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceProfile:
    """One model on one machine. `source` is printed with every result made from it."""

    name: str
    source: str
    token: TokenTimes
    prompt_token_s: float = 0.0
    prompt_overhead_s: float = 0.0
    chunk_tokens: int = CHUNK_TOKENS
    draws: tuple[Draw, ...] = ()
    """As fast as its log leaves it open: token, per sequence, power, prompt token, overhead."""
    seen_batch: float = inf
    """The largest number together in the log; above it the profile is a guess."""
    details: EngineDetails = PLAIN
    """What it does besides."""
    pace: EnginePace = STEADY
    """How it varies within a run."""

    def drawn(self, number: int) -> "ServiceProfile":
        """Return one of the profiles that the log leaves open."""
        if not self.draws:
            return self
        first_s, per_sequence_s, power, prompt_s, overhead_s = self.draws[number % len(self.draws)]
        return replace(
            self,
            token=TokenTimes(first_s=first_s, per_sequence_s=per_sequence_s, power=power),
            prompt_token_s=prompt_s,
            prompt_overhead_s=overhead_s,
            draws=(),
        )

    def speed(self, batch: int) -> float:
        """Return tokens a second for each of `batch` sequences."""
        return 1.0 / self.token.at(batch)

    @property
    def prefill(self) -> Prefill | None:
        """What prompts cost, or None when they cost nothing."""
        if not self.prompt_token_s:
            return None
        return Prefill(
            cost_s=self.prompt_token_s,
            budget_tokens=self.chunk_tokens,
            overhead_s=self.prompt_overhead_s,
        )

    def alone_s(self, prompt: float, output: float) -> float:
        """Return the seconds of a request that has the replica to itself."""
        read_s = self.prompt_overhead_s + prompt * self.prompt_token_s if prompt else 0.0
        return read_s + output * self.token.first_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSeconds:
    """Whole seconds of requests, alone, as a front door sees them: no tokens are known."""

    name: str
    source: str
    seconds: Distribution
    slowdown_error: float = 0.0
    """Standard error of `slowdown`."""
    slowdown_draws: tuple[float, ...] = ()
    """Slowdowns that the log leaves open, evenly spread over what it may be, in order."""
    seconds_error: float = 0.0
    """Standard error of the mean seconds, as a share of it."""
    in_service_mean: float = 1.0
    """The mean number together in the log."""
    seen_batch: float = inf
    """The largest number together in the log."""
    slowdown: float = 0.0
    """n requests together run at 1 / (1 + slowdown (n - 1)) of the speed of one."""
    pace: EnginePace = STEADY
    """How the speed varies within a run."""


PROFILES: dict[str, ServiceProfile] = {
    profile.name: profile
    for profile in (
        ServiceProfile(
            name="dense-32b-2xa100",
            source="Qwen3-32B bf16 on 2 x A100: AIConfigurator 0.12 estimates for vLLM 0.14, "
            "batch 1 to 8; an estimate, not a measurement",
            token=TokenTimes(first_s=0.0255, per_sequence_s=0.0001),
            prompt_token_s=0.00014,
            prompt_overhead_s=0.015,
        ),
        ServiceProfile(
            name="moe-a3b-fast",
            source="Qwen3.5-35B-A3B-FP8 on one H100: 172.5 tokens/s alone (luminal.com), "
            "1186 tokens/s at 8 (vllm PR 43250, GPU not named)",
            token=TokenTimes(first_s=0.0058, power=0.35),
            prompt_token_s=0.00003,
            prompt_overhead_s=0.020,
        ),
        ServiceProfile(
            name="moe-a3b-a100",
            source="Qwen3-30B-A3B on A100: 9.6 to 10.6 ms a token alone and first tokens measured "
            "(tt-inference-server#340); growth with the batch estimated by AIConfigurator 0.12",
            token=TokenTimes(first_s=0.0096, power=0.38),
            prompt_token_s=0.00005,
            prompt_overhead_s=0.025,
        ),
    )
}


MOST_BYTES = 64 << 20
"""Of a profile: a million seconds are a third of that."""


def read_profile(path: Path) -> ServiceProfile | MeasuredSeconds:
    """Return the profile in a JSON file; raises ValueError with the key that is wrong."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES)  # a device has no end
        document = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a profile") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds no JSON object")  # noqa: TRY004 - a fault of the file
    for key, other in _PAIRS:
        if key in document and other not in document:
            raise ValueError(f"{path}: {key} goes with {other} only")
    if "seconds" in document:
        return _measured(document, path)
    unknown = sorted(set(document) - set(_KEYS) - {"name", "source", "draws", "prefix_caching"})
    if unknown:
        raise ValueError(f"{path}: unknown key {unknown[0]}")
    return ServiceProfile(
        name=str(document.get("name", path.stem)),
        source=str(document.get("source", f"{path.name}, no source given")),
        token=TokenTimes(
            first_s=_number(document, "token_s", path),
            per_sequence_s=_number(document, "token_per_sequence_s", path),
            power=_number(document, "token_power", path),
        ),
        prompt_token_s=_number(document, "prompt_token_s", path),
        prompt_overhead_s=_number(document, "prompt_overhead_s", path),
        chunk_tokens=int(_number(document, "chunk_tokens", path)),
        draws=_draws(document, path),
        seen_batch=_number(document, "seen_batch", path) or inf,
        details=_details(document, path),
        pace=_pace(document, path),
    )


def _pace(document: Mapping[str, Any], path: Path) -> EnginePace:
    time_s = _number(document, "speed_time_s", path) or inf
    return EnginePace(deviation=_number(document, "speed_deviation", path), time_s=time_s)


def _details(document: Mapping[str, Any], path: Path) -> EngineDetails:
    caching = document.get("prefix_caching", True)
    if not isinstance(caching, bool):
        raise ValueError(f"{path}: prefix_caching must be true or false, not {caching!r}")  # noqa: TRY004
    continued, cached, drafts, acceptance, deviation = (
        _number(document, key, path)
        for key in (
            *("continued_share", "cached_share"),
            *("draft_tokens", "acceptance", "acceptance_deviation"),
        )
    )
    try:
        return EngineDetails(
            kv_tokens=_number(document, "kv_tokens", path) or inf,
            kv_block_tokens=int(_number(document, "kv_block_tokens", path)),
            prefix_caching=caching,
            prefix=PrefixCache(continued=continued, cached=cached) if continued else None,
            speculation=Speculation(drafts=int(drafts), acceptance=acceptance, deviation=deviation)
            if drafts
            else None,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


_DRAWN = ("token_s", "token_per_sequence_s", "token_power", "prompt_token_s", "prompt_overhead_s")


def _draws(document: Mapping[str, Any], path: Path) -> tuple[Draw, ...]:
    draws = document.get("draws", [])
    if not isinstance(draws, list) or not all(isinstance(each, dict) for each in draws):
        raise ValueError(f"{path}: draws must be a list of objects")
    return tuple(tuple(_number(each, name, path) for name in _DRAWN) for each in draws)  # type: ignore[misc]


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number that can be reckoned with")


_KEYS: dict[str, float | None] = {
    "token_s": None,
    "token_per_sequence_s": 0.0,
    "token_power": 0.0,
    "prompt_token_s": 0.0,
    "prompt_overhead_s": 0.0,
    "chunk_tokens": CHUNK_TOKENS,
    "seen_batch": 0.0,
    "speed_deviation": 0.0,
    "speed_time_s": 0.0,
    "slowdown_error": 0.0,
    "slowdown_draws": 0.0,
    "seconds_error": 0.0,
    "in_service_mean": 1.0,
    "kv_tokens": 0.0,
    "kv_block_tokens": BLOCK_TOKENS,
    "continued_share": 0.0,
    "cached_share": 0.0,
    "draft_tokens": 0.0,
    "acceptance": 0.0,
    "acceptance_deviation": 0.0,
}


_WHOLE = {"chunk_tokens", "kv_block_tokens", "draft_tokens"}
_PAIRS = (
    ("continued_share", "cached_share"),
    ("cached_share", "continued_share"),
    ("draft_tokens", "acceptance"),
    ("acceptance", "draft_tokens"),
    ("acceptance_deviation", "draft_tokens"),
    ("speed_deviation", "speed_time_s"),
    ("speed_time_s", "speed_deviation"),
)
"""Keys that mean nothing without another."""
LEAST_TOKEN_S = 1e-12
"""Below it squares of speeds are no floats any more."""
_MOST = {
    "token_s": 1e4,
    "token_per_sequence_s": 1e4,
    "token_power": 4.0,
    "prompt_token_s": 1e4,
    "prompt_overhead_s": 1e6,
    "chunk_tokens": 1e9,
    "seen_batch": 1e6,
    "speed_deviation": 100.0,
    "speed_time_s": 1e9,
    "slowdown_error": 1e4,
    "slowdown_draws": 1e4,
    "seconds_error": MOST_LEVEL_ERROR,
    "in_service_mean": 1e6,
    "kv_tokens": 1e12,
    "kv_block_tokens": 1e6,
    "continued_share": 1.0,
    "cached_share": 1.0,
    "draft_tokens": 100,
    "acceptance": 1.0,
    "acceptance_deviation": 0.5,
}
"""Beyond them a number is a mistake, e.g. of its unit."""
MOST_SECONDS = 1e9


def _measured(document: Mapping[str, Any], path: Path) -> MeasuredSeconds:
    seconds = document["seconds"]
    if not isinstance(seconds, list) or not seconds:
        raise ValueError(f"{path}: seconds must be a list of numbers")
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in seconds):
        raise ValueError(f"{path}: seconds must be a list of numbers")
    slowdown = document.get("slowdown", 0.0)
    if isinstance(slowdown, bool) or not isinstance(slowdown, int | float):
        raise ValueError(f"{path}: slowdown must be a number, not {slowdown!r}")  # noqa: TRY004
    if slowdown < 0 or min(seconds) < 0:
        raise ValueError(f"{path}: seconds and slowdown must be at least 0")
    if slowdown > 1e4 or max(seconds) > MOST_SECONDS:
        raise ValueError(f"{path}: seconds or slowdown are larger than any engine's")
    return MeasuredSeconds(
        name=str(document.get("name", path.stem)),
        source=str(document.get("source", f"{path.name}, no source given")),
        seconds=empirical(tuple(float(value) for value in seconds)),
        slowdown=float(slowdown),
        slowdown_error=_number(document, "slowdown_error", path),
        slowdown_draws=_slowdowns(document, path),
        seconds_error=_number(document, "seconds_error", path),
        in_service_mean=max(1.0, _number(document, "in_service_mean", path)),
        seen_batch=_number(document, "seen_batch", path) or inf,
        pace=_pace(document, path),
    )


def _slowdowns(document: Mapping[str, Any], path: Path) -> tuple[float, ...]:
    draws = document.get("slowdown_draws", [])
    if not isinstance(draws, list):
        raise ValueError(f"{path}: slowdown_draws must be a list of numbers")  # noqa: TRY004
    return tuple(
        sorted(_number({"slowdown_draws": each}, "slowdown_draws", path) for each in draws)
    )


def profile_document(profile: ServiceProfile | MeasuredSeconds) -> dict[str, object]:
    """Return what `read_profile` reads."""
    if isinstance(profile, MeasuredSeconds):
        return {
            "name": profile.name,
            "source": profile.source,
            "seconds": list(profile.seconds.values),
            "slowdown": profile.slowdown,
            "slowdown_error": profile.slowdown_error,
            "slowdown_draws": [round(each, 6) for each in profile.slowdown_draws],
            "seconds_error": profile.seconds_error,
            "in_service_mean": profile.in_service_mean,
            "seen_batch": _seen(profile.seen_batch),
            **profile.pace.document,
        }
    return {
        "name": profile.name,
        "source": profile.source,
        "token_s": profile.token.first_s,
        "token_per_sequence_s": profile.token.per_sequence_s,
        "token_power": profile.token.power,
        "prompt_token_s": profile.prompt_token_s,
        "prompt_overhead_s": profile.prompt_overhead_s,
        "chunk_tokens": profile.chunk_tokens,
        "seen_batch": _seen(profile.seen_batch),
        "draws": [dict(zip(_DRAWN, draw, strict=True)) for draw in profile.draws],
        **profile.pace.document,
        **profile.details.document,
    }


def _seen(batch: float) -> float:
    """Return the largest batch of the log, 0 where there was no log."""
    return batch if isfinite(batch) else 0.0


def _number(document: Mapping[str, Any], key: str, path: Path) -> float:
    value = document.get(key, _KEYS[key])
    if value is None:
        raise ValueError(f"{path}: {key} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path}: {key} must be a number, not {value!r}")  # noqa: TRY004
    most = _MOST[key]
    if not 0 <= value <= most:
        raise ValueError(f"{path}: {key} must be between 0 and {most:g}, not {value!r}")
    if key in {"token_s", "chunk_tokens", "kv_block_tokens"} and value == 0:
        raise ValueError(f"{path}: {key} must be above 0")
    if key in _WHOLE and value != int(value):
        raise ValueError(f"{path}: {key} must be a whole number, not {value!r}")
    if key == "token_s" and value < LEAST_TOKEN_S:
        raise ValueError(f"{path}: token_s must be at least {LEAST_TOKEN_S:g}, not {value!r}")
    return float(value)
