"""Exact theory against published figures: Erlang's tables and solved chains, to the last digit."""

from math import inf

import pytest

from simulator.exact.closed_form import (
    BoundedQueue,
    burst_served,
    endless_queue_timed_out,
    erlang_b,
    erlang_c,
    idle_tiers,
)
from simulator.exact.markov_chains import (
    closed_loop,
    constant_service_wait,
    falling_speed,
    gamma_arrivals,
    modulated_arrivals,
    retrials,
    two_replicas_at_random,
)

NO_TIMEOUT = {
    0.5: (0.000194, 0, 0.999806, 0.499903, 0.097226, 0.064830, 0, 0.451474, 1.504881),
    0.8: (0.018671, 0, 0.981329, 0.785063, 1.254870, 0.532811, 0, 2.402701, 3.543369),
    0.95: (0.063179, 0, 0.936821, 0.889980, 2.577010, 0.965194, 0.633537, 3.065406, 4.124297),
    1.2: (0.189346, 0, 0.810654, 0.972785, 4.729303, 1.620538, 1.554063, 3.638749, 4.635088),
    2.0: (0.500197, 0, 0.499803, 0.999606, 7.006667, 2.336477, 2.244963, 4.111104, 5.070103),
}
TIMEOUT_3 = {
    0.5: (0.000131, 0.000503, 0.999366, 0.499683, 0.094829, 0.061748, 0, 0.440492, 1.450978),
    0.8: (0.012851, 0.010654, 0.976495, 0.781196, 1.157776, 0.461286, 0, 2.106807, 2.739577),
    0.95: (
        *(0.044899, 0.024200, 0.930901, 0.884356, 2.354369),
        *(0.809424, 0.535692, 2.508532, 2.880028),
    ),
    1.2: (
        *(0.145093, 0.047278, 0.807629, 0.969155, 4.397036),
        *(1.336709, 1.369545, 2.747972, 2.944598),
    ),
    2.0: (
        *(0.440576, 0.059681, 0.499743, 0.999487, 6.828590),
        *(1.919096, 1.969638, 2.867753, 2.972407),
    ),
}


@pytest.mark.parametrize("load", NO_TIMEOUT)
@pytest.mark.parametrize(("timeout_s", "table"), [(inf, NO_TIMEOUT), (3.0, TIMEOUT_3)])
def test_bounded_line_has_the_exact_values(load, timeout_s, table):
    line = BoundedQueue(6, 8, 3 * load, 2.0, timeout_s)
    found = (
        line.rejected,
        line.timed_out,
        line.served,
        line.utilization,
        line.queue_length_mean,
        line.wait_mean_s,
        line.wait_percentile_s(0.5),
        line.wait_percentile_s(0.95),
        line.wait_percentile_s(0.99),
    )
    assert found == pytest.approx(table[load], abs=6e-7)


@pytest.mark.parametrize("timeout_s", [0.5, 1.0, 5.0, 30.0, inf])
@pytest.mark.parametrize("load", [0.3, 1.0, 3.0])
def test_shares_of_a_bounded_line_sum_to_one(load, timeout_s):
    line = BoundedQueue(6, 8, 3 * load, 2.0, timeout_s)
    assert line.rejected + line.timed_out + line.served == pytest.approx(1, abs=1e-12)


def test_line_of_no_places_is_erlang_b():
    assert BoundedQueue(6, 0, 2.4, 2.0).rejected == pytest.approx(erlang_b(6, 4.8), abs=1e-14)


@pytest.mark.parametrize(
    ("load", "lost", "waits"),
    [(0.5, 0.052157, 0.099143), (0.8, 0.176780, 0.517772), (0.95, 0.243566, 0.865589)],
)
def test_erlang(load, lost, waits):
    assert erlang_b(6, 6 * load) == pytest.approx(lost, abs=6e-7)
    assert erlang_c(6, 6 * load) == pytest.approx(waits, abs=6e-7)


@pytest.mark.parametrize(
    ("load", "timeout_s", "lost"),
    [(0.5, 1, 0.011185), (0.95, 3, 0.058015), (1.2, 5, 0.171053), (2.0, 3, 0.500006)],
)
def test_endless_line_with_a_timeout(load, timeout_s, lost):
    assert endless_queue_timed_out(6, 3 * load, 2.0, timeout_s) == pytest.approx(lost, abs=6e-7)


def test_endless_line_is_continuous_where_load_is_one():
    at, near = (endless_queue_timed_out(6, rate, 2.0, 3.0) for rate in (3.0, 3.0 + 1e-7))
    assert at == pytest.approx(near, rel=1e-5)


@pytest.mark.parametrize(
    ("load", "rejected", "goodput", "wait_s", "service_s", "rejected_without_line"),
    [
        (0.5, 0.001744, 1.497384, 0.201600, 2.328718, 0.085296),
        (0.8, 0.083154, 2.200430, 1.360439, 2.464508, 0.248394),
        (2.0, 0.600018, 2.399891, 3.055968, 2.499975, 0.628983),
    ],
)
def test_speed_that_falls_with_the_batch(
    load, rejected, goodput, wait_s, service_s, rejected_without_line
):
    def speed(batch):
        return 1 / (1 + 0.05 * (batch - 1))

    flow = falling_speed(6, 8, 3 * load, 2.0, speed)
    found = (flow.rejected, flow.goodput_per_s, flow.wait_mean_s, flow.service_mean_s)
    assert found == pytest.approx((rejected, goodput, wait_s, service_s), abs=6e-7)
    alone = falling_speed(6, 0, 3 * load, 2.0, speed)
    assert alone.rejected == pytest.approx(rejected_without_line, abs=6e-7)


@pytest.mark.parametrize(
    ("cv", "load", "rejected", "at_once", "wait_s"),
    [
        (2.0, 0.5, 0.020233, 0.664211, 0.350189),
        (2.0, 0.8, 0.095385, 0.384930, 0.792538),
        (0.5, 0.95, 0.035871, 0.307420, 0.915004),
        (0.5, 2.0, 0.500009, 0.000125, 2.458474),
    ],
)
def test_gamma_arrivals(cv, load, rejected, at_once, wait_s):
    line = gamma_arrivals(6, 8, 3 * load, 2.0, cv)
    found = (line.rejected, line.at_once, line.wait_of_admitted_s)
    assert found == pytest.approx((rejected, at_once, wait_s), abs=6e-7)


def test_gamma_arrivals_of_cv_one_are_poisson():
    line, poisson = gamma_arrivals(6, 8, 2.4, 2.0, 1.0), BoundedQueue(6, 8, 2.4, 2.0)
    assert line.rejected == pytest.approx(poisson.rejected, rel=1e-9)
    assert line.wait_of_admitted_s == pytest.approx(poisson.wait_mean_s, rel=1e-9)


@pytest.mark.parametrize(
    ("load", "rejected", "wait_s"), [(0.5, 0.245028, 0.860352), (0.8, 0.365323, 0.765489)]
)
def test_modulated_arrivals(load, rejected, wait_s):
    low = 3 * load / (8 * 20 / 140 + 120 / 140)
    line = modulated_arrivals(6, 8, (8 * low, low), (20.0, 120.0), 2.0)
    found = (line.rejected, line.wait_of_admitted_s)
    assert found == pytest.approx((rejected, wait_s), abs=6e-7)


@pytest.mark.parametrize(
    ("clients", "offered", "rejected", "wait_s", "utilization"),
    [(10, 0.833304, 0.0, 0.000424, 0.277768), (20, 1.659721, 0.000004, 0.050228, 0.553238)],
)
def test_closed_loop(clients, offered, rejected, wait_s, utilization):
    flow = closed_loop(6, 8, clients, 10.0, 2.0)
    found = (flow.offered_per_s, flow.rejected, flow.wait_mean_s, flow.utilization)
    assert found == pytest.approx((offered, rejected, wait_s, utilization), abs=6e-7)


@pytest.mark.parametrize(
    ("load", "chance", "first", "attempt", "attempts", "orbit", "served"),
    [
        (0.5, 1.0, 0.000206, 0.000221, 1.000221, 0.003314, 1),
        (0.95, 1.0, 0.240525, 0.319748, 1.470044, 13.396268, 1),
        (0.8, 0.8, 0.025377, 0.028111, 1.023006, 0.552138, 0.994249),
    ],
)
def test_retrials(load, chance, first, attempt, attempts, orbit, served):
    law = retrials(6, 8, 3 * load, 2.0, 10.0, chance)
    found = (
        law.first_rejected,
        law.attempt_rejected,
        law.attempts_per_request,
        law.orbit_mean,
        law.finally_served,
    )
    assert found == pytest.approx((first, attempt, attempts, orbit, served), abs=1e-6)


@pytest.mark.parametrize(
    ("cap", "rejected", "somebody", "hidden_s", "wait_s"),
    [
        (4, 0.191825, 0.0, 0.0, 2.470188),
        (6, 0.029242, 0.157212, 0.080474, 0.678513),
        (8, 0.007528, 0.296000, 0.207169, 0.236246),
    ],
)
def test_two_replicas_that_are_picked_blindly(cap, rejected, somebody, hidden_s, wait_s):
    law = two_replicas_at_random(cap, 8, 4, 2.4, 2.0)
    found = (law.rejected, law.somebody_hidden, law.hidden_wait_mean_s, law.wait_mean_s)
    assert found == pytest.approx((rejected, somebody, hidden_s, wait_s), abs=1e-6)


@pytest.mark.parametrize(
    ("rate", "awake", "sleeping", "offloaded", "cold"),
    [(0.1, 0.024690, 0.234492, 0.740818, 0.975310), (2, 0.393469, 0.604052, 0.002479, 0.606531)],
)
def test_idle_tiers(rate, awake, sleeping, offloaded, cold):
    shares = idle_tiers(rate, (900.0, 10800.0))
    found = (shares.awake, shares.sleeping, shares.offloaded, shares.cold)
    assert found == pytest.approx((awake, sleeping, offloaded, cold), abs=6e-7)


def test_burst_of_exponential_requests():
    served = [burst_served(40, 6, 8, 2.0, timeout_s) for timeout_s in (1, 3, 5, 30)]
    assert served == pytest.approx([8.994710, 13.269852, 13.970461, 14.0], abs=6e-7)


def test_constant_service_waits_half_as_long():
    assert constant_service_wait(6, 2.4, 2.0) == pytest.approx((0.495683, 0.453130), abs=6e-7)


@pytest.mark.parametrize(
    "line",
    [
        BoundedQueue(6, 200, 2.0, 2.0, 30.0),
        BoundedQueue(6, 5000, 3.0, 2.0, 30.0),
        BoundedQueue(2, 300, 10.0, 1000.0),
        BoundedQueue(1, 150, 1.0, 2.0),
        BoundedQueue(1000, 8, 450.0, 2.0, 30.0),
        BoundedQueue(1000, 5000, 600.0, 2.0, 3.0),
    ],
)
def test_long_lines_and_many_slots_have_exact_values_too(line):
    shares = line.rejected + line.timed_out + line.served
    assert shares == pytest.approx(1.0)
    assert line.utilization <= 1 + 1e-9
    for share in (0.5, 0.95, 0.99):
        wait_s = line.wait_percentile_s(share)
        if wait_s:
            assert line.served_within(wait_s) == pytest.approx(share * line.served)
    metrics = line.metrics()
    assert metrics["wait_p50_s"] <= metrics["wait_p95_s"] <= metrics["wait_p99_s"]
