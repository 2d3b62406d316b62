"""A real engine fitted at a small cap, foretold for larger ones, and measured there.

Rule 1: one engine, a front door for each cap, and the same kind of traffic for all of them; rounds
        in turns, so that what else the machine does meets all caps alike.
Rule 2: what is fitted is the log of the smallest cap and nothing else. The judge is that of
        `frontdoor validate --engine LOG --against LOG`.
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from bench.harness import ROOT, FrontDoor, configuration
from simulator.cli.engine_validation import EngineTest, fit_and_compare
from simulator.study.engine_check import LimitsOfLog
from simulator.study.experiment import Plan

Say = Callable[..., None]
CAPS = (2, 4, 6)
SLOTS, QUEUE, TIMEOUT_S = 8, 8, 30
PROMPT_TOKENS, OUTPUT_TOKENS = (16, 96), (4, 28)
LOAD = 0.95
"""Of what the engine makes with four at once: enough to wait."""
LOAD_FITTED = 0.8
"""Of what it makes with as many as the smallest cap: with them all the time, nothing would tell how
speed falls with the batch."""
PILOT_S = 15.0
ROUND_S = 40.0
FITTED_ROUND_S = 80.0
"""Of the cap that is fitted: few come there."""
PATIENCE_S = 300.0


def ask(url: str, model: str, prompt: Sequence[int], output: int) -> bool:
    """Ask for a stream and read it; tells whether it was answered."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    head = {"Content-Type": "application/json"}
    request = Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
    try:
        with urlopen(request, timeout=PATIENCE_S) as answer:
            answer.read()
    except HTTPError as error:
        if error.code != 503:
            raise
        return False
    except (OSError, HTTPException):
        return False
    return True


def sizes(rng: random.Random) -> tuple[list[int], int]:
    """Return a prompt that came never before and the length of its answer."""
    prompt = [rng.randrange(10, 3000) for _ in range(rng.randint(*PROMPT_TOKENS))]
    return prompt, rng.randint(*OUTPUT_TOKENS)


def tokens_per_s(url: str, model: str, together: int) -> float:
    """Return the tokens that so many make a second, asking one after another."""
    until_s = time.monotonic() + PILOT_S

    def loop(number: int) -> int:
        rng, made = random.Random(number), 0
        while time.monotonic() < until_s:
            prompt, output = sizes(rng)
            made += output * ask(url, model, prompt, output)
        return made

    began_s = time.monotonic()
    with ThreadPoolExecutor(together) as pool:
        made = sum(pool.map(loop, range(together)))
    return made / (time.monotonic() - began_s)


def round_of(url: str, model: str, rate: float, seconds: float, seed: int) -> int:
    """Send a Poisson stream for so long and wait for its end; returns how many were sent."""
    rng = random.Random(seed)
    sent, began_s = 0, time.monotonic()
    due_s = began_s
    with ThreadPoolExecutor(64) as pool:
        while (due_s := due_s + rng.expovariate(rate)) < began_s + seconds:
            time.sleep(max(0.0, due_s - time.monotonic()))
            pool.submit(ask, url, model, *sizes(rng))
            sent += 1
    return sent


def keep_pace(say: Say, url: str, pace: str) -> None:
    """Have an engine keep a pace, `ALONE,FURTHER,READING` in seconds; see `vllm_pace`."""
    names = ("alone_s", "further_s", "reading_s")
    body = {"method": "keep_pace", "kwargs": dict(zip(names, pace.split(","), strict=True))}
    head = {"Content-Type": "application/json"}
    request = Request(f"{url}/collective_rpc", json.dumps(body).encode(), head)
    with urlopen(request, timeout=PATIENCE_S) as answer:
        say(answer.read().decode())


def try_foretold(say: Say, url: str, model: str, rounds: int) -> None:
    """Measure three caps in turns, fit the smallest, and hold the others against it."""
    out = ROOT / "var" / "tryouts" / "foretold"
    small, large = (tokens_per_s(url, model, together) for together in CAPS[:2])
    mean = sum(OUTPUT_TOKENS) / 2
    rates = dict.fromkeys(CAPS, LOAD * large / mean) | {CAPS[0]: LOAD_FITTED * small / mean}
    told = ", ".join(f"{rate:.2f}" for rate in rates.values())
    say(f"{told} requests a second, {rounds} rounds of {ROUND_S:g} s for each cap")
    logs: dict[int, Path] = {}
    with ExitStack() as stack:
        doors = {}
        for cap in CAPS:
            folder = out / f"cap{cap}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "frontdoor.log").unlink(missing_ok=True)
            text = configuration(url, model, admission=(SLOTS, cap, QUEUE, TIMEOUT_S))
            doors[cap] = stack.enter_context(FrontDoor(folder, text))
            logs[cap] = doors[cap].log
        for number in range(rounds):
            turns = CAPS if number % 2 else CAPS[::-1]
            for cap in turns:
                seconds = FITTED_ROUND_S if cap == CAPS[0] else ROUND_S
                sent = round_of(doors[cap].public, model, rates[cap], seconds, 100 * number + cap)
                print(f"    round {number + 1}, cap {cap}: {sent} requests", flush=True)
    for cap in CAPS:
        judge(say, logs[CAPS[0]], logs[cap], cap)


def judge(say: Say, fitted: Path, foretold: Path, cap: int) -> None:
    """Ask what `frontdoor validate --engine` asks."""
    limits = LimitsOfLog(cap=cap, queue=QUEUE, timeout_s=TIMEOUT_S)
    test = EngineTest([fitted], foretold, SLOTS, limits)
    _, found = fit_and_compare(test, Plan(replications=40, driver="heap"))
    for value in found:
        inside = value.low <= value.measured <= value.high
        say(
            f"cap {cap}, {value.name}: measured {value.measured:.3f}, foretold "
            f"{value.simulated:.3f}, 95 % in {value.low:.3f} to {value.high:.3f}",
            holds=(inside or value.right) if cap != CAPS[0] else None,
        )
