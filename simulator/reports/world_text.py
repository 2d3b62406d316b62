"""What came of a world of several models, as text for people and as JSON for scripts."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.study.statistics import Estimate
from simulator.study.worlds import ModelResult, World, WorldResult


def world_text(world: World, result: WorldResult) -> str:
    """Return the report of one world."""
    head = ("model", "requests", "served", "wait mean s", "wait p95 s", "wakes/h", "awake")
    rows = [head, *(_row(key, one) for key, one in result.models.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines += ["", _total(world, result)]
    for device, gib in result.most_gib.items():
        limit_gib = world.room.device_gib[device]
        lines.append(f"GPU {device}: at most {gib:.1f} of {limit_gib:.1f} GiB taken")
    if result.cost_per_thousand is not None:
        lines.append(f"a thousand served cost {_told(result.cost_per_thousand, 3)}")
    for key, one in result.models.items():
        if one.preemptions_per_request is not None:
            lines.append(
                f"{key}: KV cache at most {one.kv_usage_max:.0%} full, "
                f"{one.preemptions_per_request:.3f} preemptions a request"
            )
        if one.evicted_for:
            whom = ", ".join(f"{count:.1f} for {name}" for name, count in one.evicted_for.items())
            lines.append(f"{key} made room: {whom}")
        if one.refused:
            why = ", ".join(f"{count:.1f} {name}" for name, count in one.refused.items())
            lines.append(f"{key} refused: {why}")
    return "\n".join(lines)


def sweep_text(results: Sequence[WorldResult]) -> str:
    """Return the best points of a sweep, and what to write into the configuration."""
    head = f"{'idle_sleep_s':>12} {'stay_factor':>11} {'max_turn_wait_s':>15}"
    costs = " " + f"{'cost/1000':>9}" if results[0].cost_per_thousand else ""
    lines = [f"{head} {'worst served':>12} {'worst p95 s':>11} {'switches/h':>10}{costs}"]
    for one in results[:10]:
        turns = " ".join(
            f"{'-' if value is None else f'{value:g}':>{width}}"
            for value, width in zip(one.turns, (12, 11, 15), strict=True)
        )
        switches = one.switches_per_h.mean or 0.0
        cost = one.cost_per_thousand
        told = "" if cost is None else f" {_told(Estimate(cost.mean, None), 3):>9}"
        lines.append(f"{turns} {one.worst_share:12.2%} {one.wait_s:11.1f} {switches:10.1f}{told}")
    best = results[0].turns
    lines += ["", "Recommended:", "[gpu]"]
    if best.stay_factor is not None:
        lines.append(f"stay_factor = {best.stay_factor:g}")
    if best.max_turn_wait_s is not None:
        lines.append(f"max_turn_wait_s = {best.max_turn_wait_s:g}")
    if best.idle_sleep_s is not None:
        lines.append(f"# and in each sleep table: idle_sleep_s = {best.idle_sleep_s:g}")
    return "\n".join(lines)


def world_document(result: WorldResult) -> dict[str, Any]:
    """Return a result as JSON has it."""
    return {
        "turns": result.turns._asdict(),
        "switches_per_h": _pair(result.switches_per_h),
        "evictions_per_h": _pair(result.evictions_per_h),
        "failed_wakes": result.failed_wakes,
        **(
            {}
            if result.cost_per_thousand is None
            else {"cost_per_thousand": _pair(result.cost_per_thousand)}
        ),
        "most_gib": {str(device): gib for device, gib in result.most_gib.items()},
        "models": {key: _of_model(one) for key, one in result.models.items()},
    }


def _of_model(one: ModelResult) -> Mapping[str, Any]:
    return {
        "arrivals": one.arrivals,
        "served_share": _pair(one.served_share),
        "wait_mean_s": _pair(one.wait_mean_s),
        "wait_p95_s": _pair(one.wait_p95_s),
        "wakes_per_h": _pair(one.wakes_per_h),
        "awake_share": one.awake_share,
        "refused": dict(one.refused),
        "evicted_for": dict(one.evicted_for),
        **(
            {}
            if one.preemptions_per_request is None
            else {
                "preemptions_per_request": one.preemptions_per_request,
                "kv_usage_max": one.kv_usage_max,
            }
        ),
    }


def _row(key: str, one: ModelResult) -> tuple[str, ...]:
    share = one.served_share.mean
    return (
        key,
        f"{one.arrivals:.0f}",
        "-" if share is None else f"{share:.2%}",
        _told(one.wait_mean_s),
        _told(one.wait_p95_s),
        _told(one.wakes_per_h),
        f"{one.awake_share:.0%}",
    )


def _total(world: World, result: WorldResult) -> str:
    return (
        f"{world.replications} runs of {world.duration_s / 3600:g} h: "
        f"{_told(result.switches_per_h)} wakes/h, {_told(result.evictions_per_h)} of them made "
        f"room for, {result.failed_wakes} failed"
    )


def _told(value: Estimate, digits: int = 1) -> str:
    if value.mean is None:
        return "-"
    error = "" if value.ci95 is None else f" ±{value.ci95:.{digits}f}"
    return f"{value.mean:.{digits}f}{error}"


def _pair(value: Estimate) -> Mapping[str, float | None]:
    return {"mean": value.mean, "ci95": value.ci95}
