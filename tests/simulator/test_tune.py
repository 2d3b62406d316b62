"""`tune`: the point that an exhaustive search of theory finds, said so that it can be pasted."""

import json
import random
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docopt import docopt
from scenes import result_of, scene

from simulator.cli.tune import tune, tune_of
from simulator.cli.usage import USAGE
from simulator.exact.closed_form import BoundedQueue
from simulator.exact.known import exact_metrics
from simulator.reports.tier_picture import spans
from simulator.study.experiment import Plan
from simulator.study.limits import LARGER_IS_BETTER, judge, limit_text
from simulator.study.samples import plain
from simulator.study.sweep import nothing_exact
from simulator.study.trials import FEWEST, MOST
from simulator.study.tune import QUEUES, Search
from simulator.traffic.distributions import Distribution
from simulator.traffic.keys import ClientKey
from simulator.traffic.service import Service
from simulator.traffic.workload import Renewal
from tornado_frontdoor.cli.main import main
from tornado_frontdoor.config import load
from tornado_frontdoor.core.decisions import EngineState

PAGE = Path(__file__).parents[2] / "docs/simulation.md"
SLO = {"lost_share": 0.01, "wait_p95_s": 5.0}
TIMEOUTS_S = (5.0, 10.0, 30.0)


def search(base, slo, **more):
    usual = {
        "plan": Plan(driver="heap"),
        "caps": range(1, 8),
        "queues": QUEUES,
        "timeouts_s": TIMEOUTS_S,
        "headroom": 0.2,
        "exact": exact_metrics,
    }
    return Search(base=base, slo=slo, **{**usual, **more})


def exhaustive(base, slo, headroom):
    """Return the smallest point of all that keeps every limit by exact theory, or None."""
    rates = {base.arrivals.rate, base.arrivals.rate * (1 + headroom)}
    for cap in range(1, 8):
        for queue in QUEUES:
            for timeout_s in TIMEOUTS_S:
                queues = [BoundedQueue(cap, queue, rate, 2.0, timeout_s) for rate in rates]
                if all(keeps(each, slo) for each in queues):
                    return cap, queue, timeout_s
    return None


def keeps(queue, slo):
    in_time = queue.served_within(min(slo["wait_p95_s"], queue.timeout_s))
    return 1 - queue.served <= slo["lost_share"] and in_time >= 0.95 * queue.served


def limits_of(trial):
    if trial is None:
        return None
    return trial.scenario.cap, trial.scenario.queue, trial.scenario.timeout_s


def objectives(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        slo = {"lost_share": 10 ** rng.uniform(-3, -0.7), "wait_p95_s": rng.uniform(0.3, 8.0)}
        yield rng.uniform(0.3, 3.2), slo


def test_it_finds_what_an_exhaustive_search_of_theory_finds():
    for rate, slo in objectives(4, seed=3):
        base = scene(arrivals=Renewal(rate=rate), requests=60, warmup=0)
        found = search(base, slo).run()
        truth = exhaustive(base, slo, 0.2)
        if truth is None:
            truth = exhaustive(base, slo, 0.0)
            assert not found.holds_with_headroom
        assert limits_of(found.recommended) == truth


@pytest.mark.slow
def test_without_theory_it_finds_the_same_or_says_that_it_is_uncertain():
    right = 0
    for rate, slo in objectives(12, seed=5):
        base = scene(arrivals=Renewal(rate=rate), requests=2500, warmup=200)
        found = search(base, slo, exact=nothing_exact, headroom=0.0).run()
        same = limits_of(found.recommended) == exhaustive(base, slo, 0.0)
        right += same
        assert same or found.uncertain
    assert right >= 8


def test_cap_is_below_the_slots_and_hopeless_caps_are_not_simulated():
    said = []
    found = search(scene(requests=60, warmup=0), SLO, say=said.append).run()
    assert limits_of(found.recommended) == (7, 12, 5.0)
    assert [cap for cap, _ in found.ruled_out] == [1, 2, 3, 4, 5]
    assert any("caps 1 to 5 serve at most 2.5 requests a second" in line for line in said)


def test_what_a_point_has_ruled_out_is_not_tried():
    # With cap 6 callers wait too long by the longest timeout; by a shorter one too many are lost,
    # whatever the queue: 13 queues with 3 timeouts are out after a few points.
    slo = {"lost_share": 0.01, "wait_p95_s": 5.5}
    base = scene(arrivals=Renewal(rate=2.75), requests=60, warmup=0)
    found = search(base, slo, headroom=0.0, timeouts_s=(3.0, 4.0, 30.0)).run()
    tried = [trial for trial in found.trials if trial.scenario.cap == 6]
    assert limits_of(found.recommended)[0] == 7
    assert len(tried) <= 9


def replications(trial):
    return 0 if trial.stressed is None else len(trial.stressed.replications)


def test_only_points_that_the_answer_hangs_on_are_looked_at_closer():
    base = scene(arrivals=Renewal(rate=2.4), requests=150, warmup=20)
    only = {"caps": (7,), "queues": (0, 4, 12, 32), "timeouts_s": (5.0,)}
    found = search(base, SLO, exact=nothing_exact, **only).run()
    best = limits_of(found.recommended)
    later = [replications(trial) for trial in found.trials if limits_of(trial) > best]
    before = [replications(trial) for trial in found.trials if limits_of(trial) < best]
    assert set(later) == {FEWEST}
    assert max(before) > FEWEST


def test_what_was_looked_at_closer_may_turn_the_answer():
    # By its first four replications this point misses its limit, by 32 it keeps it.
    base = scene(arrivals=Renewal(rate=2.4), requests=150, warmup=20)
    few = result_of(base.at(7, 8, 30.0), replications=FEWEST).estimate("lost_share").mean
    many = result_of(base.at(7, 8, 30.0), replications=MOST).estimate("lost_share").mean
    assert few != many
    limit = {"lost_share": (few + many) / 2}
    only = {"caps": [7], "queues": [8], "timeouts_s": [30.0], "headroom": 0.0}
    found = search(base, limit, exact=nothing_exact, **only).run()
    assert (found.recommended is not None) == (many < limit["lost_share"])
    (trial,) = found.trials
    assert len(trial.today.replications) > FEWEST


def test_cap_is_found_by_bisection_where_a_larger_one_only_helps():
    slots = range(1, 16)
    base = scene(arrivals=Renewal(rate=4.0), slots=16, requests=20, warmup=0)
    slo = {"lost_share": 0.01, "wait_p95_s": 1.0}
    only = {"queues": (16,), "timeouts_s": (5.0,), "headroom": 0.0}
    found = search(base, slo, caps=slots, **only).run()
    each = [search(base, slo, caps=[cap], **only).run() for cap in range(9, 13)]
    kept = [limits_of(one.recommended) for one in each if one.recommended is not None]
    assert limits_of(found.recommended) == kept[0]
    assert 0 < len(kept) < len(each)
    assert len({trial.scenario.cap for trial in found.trials}) <= 4


def test_neighbours_are_a_step_to_each_side():
    found = search(scene(requests=60, warmup=0), SLO).run()
    assert {limits_of(trial) for trial in found.neighbours} == {
        (6, 12, 5.0),
        (7, 8, 5.0),
        (7, 16, 5.0),
        (7, 12, 10.0),
    }


def test_limit_on_what_is_better_larger_is_told_and_judged_as_the_least():
    keys = (ClientKey("A", 1.0), ClientKey("B", 1.0))
    result = result_of(scene(requests=50, warmup=0, keys=keys), replications=1)
    served, lost = judge(result, {"served_share[A]": 0.0, "lost_share": 1.0}, {})
    assert (served.keeps, limit_text(served)) == (True, "at least 0")
    assert (lost.keeps, limit_text(lost)) == (True, "1")
    for command in ("tune", "sweep", "replay"):
        text = " ".join(USAGE[command].split())
        assert all(name in text[text.index("--slo") :] for name in LARGER_IS_BETTER)


def test_blocks_are_told_without_exponents():
    assert [plain(value) for value in (32400.0, 1234567.0, 0.25, 600.0)] == [
        *("32400", "1230000", "0.25", "600")
    ]


def test_overloaded_engine_gets_no_recommendation():
    slow = Service(seconds=Distribution("lognormal", 2.0, 1.0))
    found = search(scene(arrivals=Renewal(rate=9.0), service=slow), SLO).run()
    assert found.recommended is None
    assert found.simulated == 0


def given(text):
    return docopt(USAGE["tune"], argv=["tune", *text.split()])


SMALL = "--jobs 1 --requests 100"


def test_answer_is_toml_with_its_reasons_as_comments(capsys):
    tune(given(f"--rate 2.4 {SMALL}"))
    told = capsys.readouterr()
    table = tomllib.loads(told.out)["upstreams"]["reasoning"]["admission"]
    assert table == {"slots": 8, "cap": 7, "queue": 12, "queue_timeout_s": 5}
    for words in ("What binds: lost_share", "How sure: 100%", "Cannot know", "neighbours"):
        assert words in told.out
    assert "2.4 requests a second are offered" in told.err
    assert max(map(len, told.out.splitlines())) <= 100


def test_page_on_simulation_begins_with_the_very_answer(capsys):
    _, block, _ = PAGE.read_text(encoding="utf-8").split("```", 2)
    command, *answer = block.strip().splitlines()
    tune(given(f"{command.removeprefix('$ frontdoor tune ')} {SMALL}"))
    assert capsys.readouterr().out.splitlines()[: len(answer)] == answer


def test_json_has_the_table_and_how_sure_it_is(capsys):
    tune(given(f"--rate 2.4 --json {SMALL}"))
    document = json.loads(capsys.readouterr().out)
    assert document["recommended"] == {"slots": 8, "cap": 7, "queue": 12, "timeout_s": 5.0}
    assert document["confidence"] == 1.0
    assert document["points"]
    assert tomllib.loads(document["toml"])


def test_answer_is_the_same_for_any_jobs(capsys):
    line = "--rate 0.2 --slots 3 --service lognormal:4,0.8 --json --requests 150"
    printed = []
    for jobs in (1, 2):
        tune(given(f"{line} --jobs {jobs}"))
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_recording_is_sampled_in_blocks(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("at_s\n" + "\n".join(str(at) for at in range(0, 20_000, 2)), encoding="utf-8")
    command, _, timeouts_s, *_ = tune_of({"--trace": str(path), "--slo": "wait_p99_s=2"})
    (base,) = command.scenarios
    assert base.requests == 5000
    assert base.arrivals.bootstrap_s == pytest.approx(600.0)
    assert timeouts_s == [2.0, 4.0, 12.0]


CONFIG = """\
# ours
[server]
state_dir = "var"

[upstreams.reasoning]
url = "http://127.0.0.1:8000"

[upstreams.reasoning.admission]   # the big one
slots = 8                         # --max-num-seqs
cap = 6                           # below slots
queue = 64
queue_timeout_s = 30

[upstreams.text]
url = "http://127.0.0.1:8001"

[models.reasoning]
upstream = "reasoning"
[models.text]
upstream = "text"
"""


def configuration(tmp_path, text=CONFIG):
    path = tmp_path / "frontdoor.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_apply_changes_four_numbers_and_keeps_the_rest(tmp_path):
    path = configuration(tmp_path)
    line = ["tune", "--rate", "2.4", "--upstream", "reasoning", "--apply", str(path)]
    assert main([*line, *SMALL.split()]) == 0
    admission = load(path).upstreams["reasoning"].admission
    assert (admission.slots, admission.cap, admission.queue) == (8, 7, 12)
    assert admission.queue_timeout_s == 5
    text = path.read_text(encoding="utf-8")
    assert "cap = 7                           # below slots" in text
    assert text.count("\n") == CONFIG.count("\n")
    assert (tmp_path / "frontdoor.toml.bak").read_text(encoding="utf-8") == CONFIG
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "frontdoor.toml",
        "frontdoor.toml.bak",
    ]
    assert main([*line, *SMALL.split()]) == 0
    assert (tmp_path / "frontdoor.toml.bak.1").exists()


def test_apply_adds_the_table_where_there_is_none(tmp_path):
    path = configuration(tmp_path)
    line = ["tune", "--rate", "2.4", "--upstream", "text", "--slots", "16", "--apply", str(path)]
    assert main([*line, *SMALL.split()]) == 0
    assert load(path).upstreams["text"].admission.slots == 16
    assert load(path).upstreams["reasoning"].admission.cap == 6


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CONFIG, "--upstream: "),
        (CONFIG.replace("cap = 6", "cap = 9"), "must be below slots"),
        ("", "upstreams"),
    ],
)
def test_configuration_that_cannot_be_used_is_named_before_anything_runs(
    text, told, tmp_path, capsys
):
    path = configuration(tmp_path, text)
    assert main(["tune", "--rate", "2.4", "--apply", str(path), *SMALL.split()]) == 2
    assert told in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == text


def test_table_written_in_another_way_is_left_alone(tmp_path, capsys):
    inline = "{ slots = 8, cap = 6, queue = 8, queue_timeout_s = 30 }"
    text = CONFIG.replace(
        CONFIG[CONFIG.index("[upstreams.reasoning.admission]") : CONFIG.index("[upstreams.text]")],
        f"admission = {inline}\n\n",
    )
    path = configuration(tmp_path, text)
    line = ["tune", "--rate", "2.4", "--upstream", "reasoning", "--apply", str(path)]
    assert main([*line, *SMALL.split()]) == 2
    assert "paste the table yourself" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == text


def test_nothing_that_keeps_the_limits_ends_with_1(capsys):
    assert main(["tune", "--rate", "9", *SMALL.split()]) == 1
    told = capsys.readouterr().out
    assert "No cap, queue and timeout keep every limit here" in told
    assert "caps 1 to 7 serve at most 3.5 requests a second" in " ".join(told.split())
    assert tomllib.loads(told) == {}


def test_timeout_of_none_is_a_fault(capsys):
    assert main(["tune", "--rate", "1", "--timeout", "none"]) == 2
    assert "no queue_timeout_s of none" in capsys.readouterr().err


class _Page(HTMLParser):
    """What a page would fetch, and its balance of tags."""

    def __init__(self):
        super().__init__()
        self.fetched = []
        self.open = []
        self.titles = 0

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in {"src", "href"}]
        self.titles += tag == "title"
        if tag not in {"meta", "input", "path", "circle", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass


def test_report_is_one_page_that_fetches_nothing(tmp_path, capsys):
    path = tmp_path / "report.html"
    assert main(["tune", "--rate", "2.4", "--html", str(path), *SMALL.split()]) == 0
    assert f"written: {path}" in capsys.readouterr().err
    text = path.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.fetched == []
    assert page.open == []
    assert "http" not in text
    assert "<h1>Set <em>cap 7</em>, <em>queue 12</em>, <em>timeout 5 s</em></h1>" in text
    assert "queue_timeout_s = 5</pre>" in text
    assert page.titles > 5  # what hovers
    rows = json.loads(text.split('id="points">')[1].split("</script>")[0])
    assert next(row["told"] for row in rows if row["chosen"]).startswith("cap 7, queue 12")
    assert "exp:2" in text
    assert "<p>Of one simulated run: half did not wait" in text
    assert "p95 of this run: " in text
    assert "timeout that was looked at, with today" in text


def test_report_with_idle_tiers_shows_states_gpu_hours_and_cold_starts(tmp_path, capsys):
    path = tmp_path / "report.html"
    line = "--rate 0.01 --slots 2 --service hold:20 --sleep 20,90 --slo lost_share=0.5"
    more = "--headroom 0 --queue 4 --timeout 60 --jobs 1 --requests 60 --idle fixed"
    assert main(["tune", *line.split(), *more.split(), "--html", str(path)]) == 0
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.open == []
    text = path.read_text(encoding="utf-8")
    _, _, section = text.partition("The engine's states over time")
    section, _, _ = section.partition("The recommended point")
    for words in ("GPU-hours", "cold starts", "awake, ", "sleeping, ", "offloaded, ", "waking, "):
        assert words in section
    widths = [float(each.split('"')[1]) for each in section.split(" width=")[1:]]
    assert max(widths) < 860
    assert capsys.readouterr().out


def test_states_last_until_the_next_one_and_no_longer_than_what_is_shown():
    states = [EngineState.UNKNOWN, EngineState.AWAKE, EngineState.SLEEPING, EngineState.AWAKE]
    lasted = spans(list(zip((0.0, 0.0, 5.0, 90.0), states, strict=True)), 7.0)
    assert lasted == [(0.0, 5.0, EngineState.AWAKE), (5.0, 7.0, EngineState.SLEEPING)]


def test_report_is_written_where_nothing_keeps_the_limits_too(tmp_path, capsys):
    path = tmp_path / "report.html"
    assert main(["tune", "--rate", "9", "--html", str(path), *SMALL.split()]) == 1
    assert "No cap, queue and timeout keep every limit here" in path.read_text(encoding="utf-8")
    assert capsys.readouterr().out


def test_configuration_is_simulated_with_a_log_and_what_was_stands_beside(tmp_path, capsys):
    path = configuration(tmp_path)
    lines = [
        {
            "time": f"2026-01-05T00:{at // 30:02d}:{2 * (at % 30):02d}.000Z",
            "upstream": "reasoning",
            "outcome": "served",
            "waited_s": 0.0,
            "total_s": 1.0 + at % 3,
            "first_byte_s": 0.5,
            "weight": 1,
        }
        for at in range(120)
    ]
    log = tmp_path / "access.log"
    log.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    line = ["simulate", "--config", str(path), "--upstream", "reasoning", "--log", str(log)]
    assert main([*line, "--json", "--reps", "2", "--jobs", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    used = document["parameters"]
    assert (used["slots"], used["cap"], used["queue"], used["timeout_s"]) == (8, 6, 64, 30)
    assert document["observed"]["served_share"] == 1.0
    assert document["counts"]["offered"] == 240
    assert main([*line, "--cap", "3", "--reps", "2", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "As it was in the log: lost 0.00 %" in told


def test_upstream_of_a_log_is_that_of_a_configuration_with_several(tmp_path, capsys):
    path, log = configuration(tmp_path), tmp_path / "access.log"
    entry = {"outcome": "served", "waited_s": 0.0, "total_s": 1.0, "weight": 1}
    lines = [
        {"time": f"2026-01-05T00:00:{at:02d}.000Z", "upstream": "reasoning", **entry}
        for at in range(40)
    ]
    log.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    line = ["simulate", "--config", str(path), "--log", str(log), "--reps", "2", "--jobs", "1"]
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["queue"] == 64
    log.write_text("\n".join(json.dumps({**each, "upstream": "other"}) for each in lines))
    assert main(line) == 2
    assert "has no other, only reasoning, text" in capsys.readouterr().err


def test_idle_tiers_of_a_configuration_are_simulated(tmp_path, capsys):
    sleep = "[upstreams.reasoning.sleep]\nidle_sleep_s = 60\nidle_offload_s = 600\n"
    path = configuration(tmp_path, CONFIG + sleep)
    line = ["simulate", "--config", str(path), "--upstream", "reasoning", "--rate", "0.01"]
    assert main([*line, "--json", "--requests", "50", "--reps", "2", "--jobs", "1"]) == 0
    used = json.loads(capsys.readouterr().out)["parameters"]
    assert used["sleep_s"] == [60, 600]
    assert used["hold_limit_s"] == [30, 180]


def test_upstream_without_a_cap_cannot_be_simulated(tmp_path, capsys):
    path = configuration(tmp_path)
    assert main(["simulate", "--config", str(path), "--upstream", "text"]) == 2
    assert "text has no admission table" in capsys.readouterr().err


def replicated(slots, more=""):
    """Return a configuration of one upstream whose engines have so many slots each."""
    listed = ", ".join(
        f'{{ url = "http://e{number}:8000", slots = {each} }}' for number, each in enumerate(slots)
    )
    tables = (
        f"[upstreams.text]\nreplicas = [{listed}]\n{more}",
        "[upstreams.text.admission]\ncap = 7\nqueue = 20\nqueue_timeout_s = 60\nfair_share = true",
        '[models.m]\nupstream = "text"\n',
    )
    return "\n".join(tables)


def test_replicas_of_a_configuration_are_simulated_as_replicas(tmp_path, capsys):
    path = configuration(tmp_path, replicated((4, 4)))
    line = ["simulate", "--config", str(path), "--rate", "2", "--json"]
    line += ["--requests", "200", "--reps", "2", "--jobs", "1"]
    assert main(line) == 0
    told = capsys.readouterr()
    used = json.loads(told.out)["parameters"]
    assert (used["replicas"], used["slots"], used["cap"]) == (2, 4, 7)
    assert told.err == f"not taken from {path}: fair_share (give --keys: who asks for how much)\n"
    assert main([*line, "--slots", "8", "--keys", "A=1,B=1"]) == 0
    told = capsys.readouterr()
    used = json.loads(told.out)["parameters"]
    assert (used["replicas"], used["slots"], told.err) == (1, 8, "")


def test_what_the_simulator_has_no_option_for_is_told_in_one_line(tmp_path, capsys):
    path = configuration(tmp_path, replicated((2, 6), 'pick = "affinity"\n'))
    line = ["simulate", "--config", str(path), "--rate", "2", "--json"]
    assert main([*line, "--requests", "200", "--reps", "2", "--jobs", "1"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["parameters"]["slots"] == 8
    assert told.err.count("\n") == 1
    assert "replicas of unequal slots (one engine of 8 instead), fair_share" in told.err
    assert 'pick = "affinity" (least instead)' in told.err


def test_replicas_of_a_configuration_are_tuned_as_replicas(tmp_path, capsys):
    path = configuration(tmp_path, replicated((4, 4)))
    assert main(["tune", "--config", str(path), "--rate", "2", "--json", *SMALL.split()]) == 0
    used = json.loads(capsys.readouterr().out)["parameters"]
    assert (used["replicas"], used["slots"]) == (2, 4)
