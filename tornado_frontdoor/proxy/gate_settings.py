"""What a gate is told of its upstream's settings: its limits, its engines, its policy of sleep."""

from collections.abc import Sequence
from dataclasses import fields, replace
from math import inf

from tornado_frontdoor.config import GpuPoolSettings, UpstreamSettings
from tornado_frontdoor.config.schedule import TimeZone, parse_rule
from tornado_frontdoor.proxy.gate_driver import AdmissionLimits, Engines, SleepPolicy
from tornado_frontdoor.proxy.standing_orders import OrderRules

MOST_WAITING = 512
"""Who may wait for an engine without a cap: while it is down, or all its replicas are full."""


def limits_of(settings: UpstreamSettings) -> AdmissionLimits:
    """Return the limits of a gate; an uncapped upstream's queue is only for waiting on a wake."""
    admission = settings.admission
    if admission is None:
        waiting = settings.sleep.max_waiting if settings.sleep else None
        return AdmissionLimits(
            cap=None,
            queue=waiting or MOST_WAITING,
            queue_timeout_s=inf,
            cooling_limit_s=settings.cooling_limit_s,
        )
    return AdmissionLimits(
        cap=admission.cap,
        queue=admission.queue,
        queue_timeout_s=admission.queue_timeout_s,
        return_places=admission.places_for_returns,
        heeds_patience=admission.heed_client_timeouts,
        fair_share=admission.fair_share,
        cooling_limit_s=settings.cooling_limit_s,
    )


def engines_of(settings: UpstreamSettings, found: Sequence[str] = ()) -> Engines:
    """Return the engines of a gate; one alone has no bound of its own beside the cap.

    `found`: the addresses behind its name, where that is looked up, each with the same slots.
    """
    slots: dict[str, float] = {one.url: one.slots for one in settings.replicas}
    if settings.discover is not None:
        of_each = settings.admission.slots if settings.admission else inf
        slots = dict.fromkeys(found or (settings.url,), of_each)
    return Engines(
        slots=slots or {settings.url: inf},
        pick=settings.pick,
        hold_down_s=settings.hold_restarting_s,
        probe_up_s=settings.probe_period_s or inf,
    )


def wake_limits_of(
    settings: UpstreamSettings,
    pool: GpuPoolSettings | None = None,
    groups: tuple[str, ...] = (),
    url: str = "",
) -> SleepPolicy | None:
    """Return the numbers of waking and sleeping; None where the engine is left alone.

    `url`: of which of several engines, each of which may be on other GPUs.
    """
    sleep, gpu = settings.sleep, settings.gpu_of(url)
    if sleep is None:
        return None
    # Each field of the policy that is a setting has the setting's name.
    names = {field.name for field in fields(SleepPolicy)} & {field.name for field in fields(sleep)}
    policy = SleepPolicy(**{name: getattr(sleep, name) for name in names}, groups=groups)
    if gpu is None or pool is None:
        return policy
    # One of which nothing is known wakes alone, and is measured then.
    whole_gib = pool.limit * pool.memory_gib
    share, residual_gib = gpu.share, gpu.residual_gib
    return replace(
        policy,
        devices=gpu.devices,
        awake_gib=whole_gib if share is None else share * pool.memory_gib + pool.context_gib,
        asleep_gib=residual_gib if isinstance(residual_gib, int | float) else pool.context_gib,
        measures_awake=share is None,
        measures_asleep=residual_gib == "measure",
        weights_gib=gpu.weights_gib or 0.0,
        priority=gpu.priority,
    )


def order_rules_of(settings: UpstreamSettings) -> OrderRules:
    """Return what the configuration says of standing orders."""
    sleep = settings.sleep
    if sleep is None:
        return OrderRules(pinned=False)
    zone = TimeZone(sleep.time_zone) if sleep.schedule else None
    rules = tuple(parse_rule(line) for line in sleep.schedule)
    return OrderRules(pinned=sleep.pinned, rules=rules, zone=zone)


def engines_later(wanted: UpstreamSettings, kept: UpstreamSettings) -> str:
    """Return what is said of engines that come and go with the next start."""
    sides = ((kept, wanted, "stays"), (wanted, kept, "is not used"))
    some = [
        ([url for url in one.urls if url not in other.urls], what) for one, other, what in sides
    ]
    told = " and ".join(f"{', '.join(urls)} {what}" for urls, what in some if urls)
    what = f"upstreams.{wanted.key}.replicas: which engines there are changes with the next start"
    return f"{what} (also that of SIGUSR2): until then {told}" if told else what
