"""The memory budget adds up slices, contexts and weights, and says what does not fit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tornado_frontdoor.config import ConfigError, load
from tornado_frontdoor.config.budget import BudgetLine, gpu_budget
from tornado_frontdoor.config.describe import find_warnings

Write = Callable[[str], Path]

TWO_ON_TWO = """
[upstreams.a]
url = "http://a"
[upstreams.a.gpu]
devices = [0, 1]
utilization = 0.85
weights_gib = 43
[upstreams.a.sleep]
max_waiting = 1
[upstreams.b]
url = "http://b"
[upstreams.b.gpu]
devices = [1]
utilization = 0.01
weights_gib = 2
[upstreams.b.sleep]
max_waiting = 1
[models.a]
upstream = "a"
[models.b]
upstream = "b"
[gpu]
memory_gib = 80
[host]
ram_gib = 45
"""


@pytest.fixture
def budget(write: Write) -> Callable[[str], list[BudgetLine]]:
    return lambda text: gpu_budget(load(write(text)))


def test_three_services_of_the_a800_file_fit() -> None:
    lines = gpu_budget(load(Path(__file__).parents[2] / "conf" / "a800.toml"))
    assert [(line.subject, round(line.used, 6), line.fits) for line in lines] == [
        ("GPU 0", 0.87, True),
        ("GPU 1", 0.87, True),
        ("GPU 2", 0.39, True),
        ("host RAM", 56.8, None),
    ]


def test_each_gpu_takes_a_slice_and_a_context_of_each_engine_on_it(
    budget: Callable[[str], list[BudgetLine]],
) -> None:
    gpu_0, gpu_1, host = budget(TWO_ON_TWO)
    assert gpu_0.used == pytest.approx(0.85 + 1.6 / 80)
    assert gpu_1.used == pytest.approx(0.85 + 0.01 + 2 * 1.6 / 80)
    assert (gpu_0.fits, gpu_1.fits) == (True, False)
    sum_of_both = "GPU 1: 90.0% of its memory for a, b; the limit is 88.0%, 2.0% too much"
    assert str(gpu_1) == f"{sum_of_both} at once: they take turns"
    assert (host.used, host.limit, host.fits) == (45, 45, True)


def test_sum_that_meets_the_limit_fits_in_spite_of_rounding(
    budget: Callable[[str], list[BudgetLine]],
) -> None:
    text = TWO_ON_TWO.replace("memory_gib = 80", "memory_gib = 80\ncontext_gib = 0\nlimit = 0.3")
    line = budget(text.replace("0.85", "0.1").replace("0.01", "0.2"))[1]
    assert line.used > 0.3
    assert line.fits is True


def test_what_does_not_fit_is_a_warning_and_no_fault(write: Write) -> None:
    over = TWO_ON_TWO.replace("ram_gib = 45", "ram_gib = 44")
    assert find_warnings(load(write(over))) == [
        (
            "GPU 1: 90.0% of its memory for a, b; the limit is 88.0%, 2.0% too much at once: "
            "they take turns"
        ),
        "host RAM: 45.0 GiB for a, b; the limit is 44.0 GiB, 1.0 GiB too much",
    ]


def test_engine_that_never_sleeps_at_level_1_takes_no_host_memory(
    budget: Callable[[str], list[BudgetLine]],
) -> None:
    text = TWO_ON_TWO.replace("max_waiting = 1", "max_waiting = 1\nidle_sleep_s = 0", 1)
    assert budget(text)[-1].used == 2


def test_sleeper_of_unknown_weight_is_named(budget: Callable[[str], list[BudgetLine]]) -> None:
    line = budget(TWO_ON_TWO.replace("weights_gib = 43\n", ""))[-1]
    assert (line.upstreams, line.unknown) == (("b",), ("a",))
    assert "not counting a" in str(line)


def test_file_without_gpus_has_no_budget(good: str, write: Write) -> None:
    assert gpu_budget(load(write(good))) == []


ROOM = """
[upstreams.a]
url = "http://a"
[upstreams.a.gpu]
devices = [0]
utilization = 0.6
[upstreams.a.sleep]
max_waiting = 1
{more_of_a}
[upstreams.b]
url = "http://b"
[upstreams.b.gpu]
devices = [0]
utilization = 0.5
{residual}
[upstreams.b.sleep]
max_waiting = 1
[models.a]
upstream = "a"
[models.b]
upstream = "b"
[gpu]
memory_gib = 80
"""


def faults_of(write: Write, more_of_a: str = "", residual: str = "") -> list[str]:
    try:
        load(write(ROOM.format(more_of_a=more_of_a, residual=residual)))
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []


def test_engines_that_take_turns_are_no_fault(write: Write) -> None:
    assert faults_of(write) == []


def test_one_that_can_never_wake_beside_a_pinned_one_is_a_fault_with_the_sum(write: Write) -> None:
    (fault,) = faults_of(write, more_of_a="pinned = true")
    assert "upstreams.b.gpu" in fault
    assert "needs 52.0% + 62.0% of a" in fault


def test_what_sleepers_leave_behind_counts(write: Write) -> None:
    (fault,) = faults_of(write, residual="residual_gib = 32")
    assert "needs 62.0% + 40.0% of b" in fault
