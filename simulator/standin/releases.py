"""What differs between releases of vLLM in sleep mode, as data.

Rule 1: a quirk is a row of `SINCE`: the first release in which the kinder behaviour exists.
Rule 2: nothing else of the model asks for a version; it asks for a quirk.

Sources: vLLM's release sources and public threads (vllm#15483, PR 34528, PR 44483, vllm#34600,
vllm#17103). Releases between those read follow the nearest row below them.
"""

from dataclasses import dataclass, fields

Version = tuple[int, int]

SINCE: dict[str, Version] = {
    "clears_prefix_cache": (0, 11),
    "gauge": (0, 13),
    "pauses_scheduler": (0, 17),
    "partial_wake_stays_paused": (0, 24),
    "safe_wake_retry": (0, 25),
    "kv_first_is_safe": (0, 27),
    "reset_tells_success": (0, 27),
    "sleeps_after_partial_wake": (0, 31),
    "honest_gauge": (0, 31),
    "json_answers": (0, 32),
    "counts_operations": (0, 32),
    "pause_rejects": (0, 33),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRelease:
    """One release's habits; each field is a row of `SINCE`, true from that release on."""

    version: str
    clears_prefix_cache: bool
    """Sleep drops cached prefixes; before, answers after a wake are wrong until a reset."""
    gauge: bool
    """`vllm:engine_sleep_state` exists."""
    pauses_scheduler: bool
    """Sleep pauses the scheduler and knows `mode` and level 0. Before, a sequence that is running
    when its engine falls asleep, or comes while it sleeps, kills the engine."""
    partial_wake_stays_paused: bool
    """Scheduling resumes only when all memory is back; before, with the first wake of any tag."""
    safe_wake_retry: bool
    """A wake may be tried again after it failed; before, that maps mapped memory and kills."""
    kv_first_is_safe: bool
    """At level 2 the tag `kv_cache` may be woken before `weights`; before, that kills."""
    reset_tells_success: bool
    """`/reset_prefix_cache` answers `{"success": bool}`; before, an empty 200 whatever happened."""
    sleeps_after_partial_wake: bool
    """`/sleep` works while some tags sleep; before, it leaves the woken ones resident, silently."""
    honest_gauge: bool
    """A partial wake does not set the gauge to awake."""
    json_answers: bool
    """`/sleep` and `/wake_up` answer JSON, and 400 to bad values; before, an empty 200."""
    counts_operations: bool
    """`vllm:sleep_mode_operation_duration_seconds` exists."""
    pause_rejects: bool
    """`/pause` makes new requests fail with 503."""


def profile_of(version: str) -> VllmRelease:
    """Return the habits of a release, e.g. `0.23` or `0.33.1`; raises ValueError for nonsense."""
    try:
        major, minor = (int(part) for part in version.lstrip("v").split(".")[:2])
    except ValueError:
        raise ValueError(f"{version!r} is not a version of vLLM such as 0.33") from None
    release = (major, minor)
    return VllmRelease(version=version, **{name: release >= since for name, since in SINCE.items()})


assert {field.name for field in fields(VllmRelease)} == {"version", *SINCE}
