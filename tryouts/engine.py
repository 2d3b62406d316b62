"""Try the front door before a real engine, with real clients; heavy, by hand.

Usage:
  bin/tryout engine URL [--model NAME]
  bin/tryout messages URL [--model NAME]
  bin/tryout cooling URL [--model NAME] [--limit S] [--engine-log FILE]
  bin/tryout claude-code [--version VERSION] [--record FILE]
  bin/tryout clients [URL] [--model NAME] [--only WORD] [--folder DIR] [--write FILE]
  bin/tryout vllm URL [--model NAME] [--restart CMD]
  bin/tryout llama URL [--model NAME]
  bin/tryout several FIRST SECOND [--model NAME]
  bin/tryout tune [--seconds S] [--traces DIR]
  bin/tryout model URL [--model NAME] [--slots N] [--batched N] [--drafts K]
  bin/tryout foretell URL [--model NAME] [--rounds N] [--pace LIST]
  bin/tryout machines
  bin/tryout (-h | --help)

`engine` puts a front door with cap 2 and a line of 2 before the engine at URL (vLLM, llama.cpp or
anything that speaks OpenAI's chat completions) and tries what matters on it: a plain and a streamed
answer by the openai SDK, the cap under a crowd, and clients that leave while they wait, while the
engine is silent and while it streams. What the engine says of itself (vLLM's and llama.cpp's
gauges on /metrics) is looked at beside it. Prints what it saw; exits 1 when a law was broken.

`messages` puts a front door before the engine at URL and asks it through /llm with the anthropic
SDK, translated and native: a plain and a streamed message, and a count of tokens.

`cooling` lets two clients leave in one instant while two wait, a hundred times each for requests
that stream and that are silent, and counts at the engine whether it ever holds more than the cap:
vLLM runs with `--middleware tryouts.vllm_requests.CountRequests` for it, llama.cpp's llama-server
writes what its slots do to FILE. With `--limit 0` slots do not cool, which shows what that is for.

`claude-code` installs Claude Code into a temporary folder (with npm) and lets it answer a prompt
that takes a tool call, through a front door before a stand-in engine, in a network namespace that
has nothing but loopback. FILE gets the shape of what it sent, without texts and ids.

`clients` installs real clients (SDKs, frameworks; Python and Node), each in an environment of its
own in DIR, and lets each ask, stream, call tools, be refused, meet a sleeping engine, leave, and
see its engine die, before a stand-in in a network namespace that has nothing but loopback; with a
URL before that engine, as far as its answers can be judged. FILE gets the table of docs/clients.md.

`vllm` puts a front door with idle tiers of seconds before a vLLM that runs with
VLLM_SERVER_DEV_MODE=1 and tries sleeping and waking on it: tiers, crowds, another hand's doing, a
blocked engine (where a worker method `nap` can block it), kill -9, and a restart by CMD. Nobody
else should use the engine meanwhile.

`llama` puts a front door with idle tiers of seconds before a llama-server in router mode and tries
loading and unloading the model NAME on it: tiers, a crowd, a model unloaded by hand, a stream of
somebody else, a second model at work in a router that has room for one, and kill -9 of the front
door while the model loads.

`several` puts three front doors that share a gate, and a Redis, before two vLLM at FIRST and SECOND
that serve the same with at least 4 sequences each, and kills the one that owns the gates amid
streams. What the engines run is read from their own gauges.

`tune` needs no engine: what `frontdoor tune --apply` writes for the shipped sample, for traces in
DIR (Azure, ServeGen) and for a log of `bin/loadtest mixed` is served before a stand-in of that
profile; Locust sends a stretch of S seconds of the very recording, as it came and as much faster
as the headroom says. What it measures is held to the objectives and to the simulated interval, and
told beside what was foretold of these requests.

`model` holds the simulated engine against the vLLM at URL, by what that was started with (nobody
else should use it): with a small KV cache (`--num-gpu-blocks-override 65 --block-size 32`)
preemptions, order of ends and waits inside; with prefix caching what is found of a prompt that was
read before; with `--max-num-batched-tokens N` what others make while a long prompt is read; with K
drafts the steps that answers take.

`foretell` puts a front door with cap 2, 4 and 6 before a vLLM of at least 8 sequences, in turns, N
rounds of a minute or so each; fits the log of cap 2 and holds those of 4 and 6 against it. A busy
machine is not one engine: started with `--worker-extension-cls tryouts.vllm_pace.Pace` it keeps the
pace of LIST, e.g. 0.15,0.03,0.001: scheduler and HTTP are vLLM's, the arithmetic is time.

`machines` needs no engine, but root: a sweep over a Dask scheduler and two workers, each in a
network namespace of its own, is held to what one process says, with a worker killed amid it, and
without scheduler or worker.

Options:
  --slots N          Its --max-num-seqs. [default: 8]
  --batched N        Its --max-num-batched-tokens. [default: 2048]
  --drafts K         Drafts in a step, where it speculates. [default: 0]
  --rounds N         Rounds of each cap. [default: 6]
  --pace LIST        Seconds of an iteration alone, of a further sequence, of a prompt's token.
  --folder DIR       Where clients are installed and kept; else in a temporary folder.
  --only WORD        Only clients with this in their name.
  --write FILE       Where to write the table.
  --seconds S        How long each traffic is sent. [default: 150]
  --traces DIR       Where public traces are.
  --engine-log FILE  What llama-server logs.
  --limit S          cooling_limit_s of the front door. [default: 2]
  --model NAME       What the engine calls its model. [default: reasoning]
  --restart CMD      A shell command that ends the engine and starts it again.
  --version VERSION  Which Claude Code. [default: 2.1.197]
  --record FILE      Where to write what it sent.
"""

import asyncio
import contextlib
import json
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
from docopt import docopt
from openai.types.chat import ChatCompletionMessageParam

from bench.harness import FrontDoor, configuration
from tryouts.claude_code import try_claude_code
from tryouts.clients import try_clients
from tryouts.cooling import try_cooling
from tryouts.engine_details import try_details
from tryouts.foretold import keep_pace, try_foretold
from tryouts.llama import try_llama
from tryouts.machines import try_machines
from tryouts.messages import try_messages
from tryouts.several import try_several
from tryouts.tuned import mixed_log, try_tuned
from tryouts.vllm import try_vllm

RUNNING = re.compile(
    r"^(?:vllm:num_requests_running|llamacpp:requests_processing)\S* (\S+)", re.MULTILINE
)
WAITING = re.compile(
    r"^(?:vllm:num_requests_waiting|llamacpp:requests_deferred)(?:\{\S*)? (\S+)", re.MULTILINE
)
OF_THE_SIMULATOR = ("model", "foretell", "tune")
SIZES = ("slots", "batched", "drafts")
failures: list[str] = []


def say(what: str, *, holds: bool | None = None) -> None:
    """Print one line of what was seen, and remember a broken law."""
    mark = {None: "    ", True: "ok  ", False: "FAIL"}[holds]
    print(f"{mark} {what}", flush=True)
    if holds is False:
        failures.append(what)


@contextlib.contextmanager
def front_door(url: str, model: str) -> Iterator[tuple[str, str]]:
    """Run a front door of its own; yields its public and its admin URL."""
    with tempfile.TemporaryDirectory() as folder:
        admission = (4, 2, 2, 60)
        text = configuration(url, model, admission=admission, models='aliases = ["tryout"]')
        door = FrontDoor(Path(folder), text)
        try:
            yield door.public, door.admin
        finally:
            code = door.stop()
            say(f"the front door drained and ended with {code}", holds=code == 0)


def fetch(url: str) -> str:
    """Return the body behind a URL."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def inside(url: str) -> tuple[float, float] | None:
    """Return what the engine has running and waiting by its own gauges, if it has any."""
    try:
        text = fetch(f"{url}/metrics")
    except OSError:
        return None
    running, waiting = RUNNING.search(text), WAITING.search(text)
    return (float(running[1]), float(waiting[1]) if waiting else 0.0) if running else None


def wait_until(condition: Callable[[], bool], timeout_s: float) -> float | None:
    """Return the seconds until `condition` held, or None when it did not in time."""
    started = time.monotonic()
    while time.monotonic() - started < timeout_s:
        if condition():
            return time.monotonic() - started
        time.sleep(0.01)
    return None


def answers(client: openai.OpenAI) -> None:
    """One plain and one streamed answer."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
    plain = client.chat.completions.create(model="tryout", messages=messages, max_tokens=16)
    say(f"plain: {plain.choices[0].finish_reason}, {plain.usage}", holds=bool(plain.choices))
    started = time.monotonic()
    moments = []
    for chunk in client.chat.completions.create(
        model="tryout", messages=messages, max_tokens=32, stream=True
    ):
        moments.append(time.monotonic() - started)
        last = chunk
    say(
        f"streamed: {len(moments)} chunks, first after {moments[0]:.3f} s, last after "
        f"{moments[-1]:.3f} s, {last.choices[0].finish_reason if last.choices else None}",
        holds=len(moments) > 2,
    )
    try:
        client.with_options(max_retries=0).chat.completions.create(model="gpt-9", messages=messages)
    except openai.NotFoundError as error:
        say(f"an unknown model: {error.code}", holds=error.code == "model_not_found")


def crowd(client: openai.OpenAI, url: str) -> None:
    """Twelve at once on two slots and two places: four are served, and never three run."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "Count to a hundred."}
    ]
    most = 0.0

    def one(_: int) -> str:
        try:
            client.with_options(max_retries=0).chat.completions.create(
                model="tryout", messages=messages, max_tokens=200, extra_body={"ignore_eos": True}
            )
        except openai.InternalServerError as error:
            return f"{error.status_code} Retry-After {error.response.headers['retry-after']}"
        return "200"

    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(one, number) for number in range(12)]
        while not all(future.done() for future in running):
            gauges = inside(url)
            most = max(most, sum(gauges) if gauges else 0)
            time.sleep(0.02)
    results = sorted(future.result() for future in running)
    served = results.count("200")
    say(f"12 at once: {served} x 200, {12 - served} refused: {results[served:]}", holds=served == 4)
    say(f"most inside the engine by its own gauges: {most:g}", holds=most <= 2)


async def leave(public: str, url: str, *, stream: bool, after_s: float) -> None:
    """Leave a request after a while and see how fast the engine lets go of it."""
    host, port = public.removeprefix("http://").split(":")
    body = json.dumps(
        {
            "model": "tryout",
            "messages": [{"role": "user", "content": "Write a long story."}],
            "max_tokens": 4000,
            "stream": stream,
            "ignore_eos": True,
        }
    ).encode()
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    await asyncio.sleep(after_s)
    before = inside(url)
    writer.close()
    took_s = await asyncio.to_thread(wait_until, lambda: (inside(url) or (0, 0))[0] == 0, 10)
    kind = "a stream" if stream else "a plain request"
    held = f"{before[0]:g} running before" if before else "no gauge"
    fell = before is None or (took_s is not None and took_s <= 1.0)
    # llama.cpp looks after its clients only while it writes to them.
    known = not stream and not fell and "llamacpp:" in fetch(f"{url}/metrics")
    say(
        f"a client left {kind} after {after_s} s ({held}): the engine's gauge fell in "
        f"{'more than 10' if took_s is None else f'{took_s:.2f}'} s"
        f"{': llama.cpp ends what it began, so this slot is not free there yet' if known else ''}",
        holds=None if known else fell,
    )


def try_engine(url: str, model: str) -> None:
    """Run all of it."""
    say(f"the engine at {url}: {inside(url)} (running, waiting)")
    with front_door(url, model) as (public, admin):
        client = openai.OpenAI(base_url=f"{public}/v1", api_key="none")
        answers(client)
        crowd(client, url)
        for stream in (True, False):
            asyncio.run(leave(public, url, stream=stream, after_s=0.7))
        status = json.loads(fetch(f"{admin}/admin/status"))["upstreams"]["engine"]
        at_rest = (status["in_flight"], status["queued"]) == (0, 0)
        say(f"at rest: {status['in_flight']} in flight, {status['queued']} queued", holds=at_rest)


def beside_the_simulator(arguments: Mapping[str, Any], url: str, model: str) -> None:
    """Hold what the simulator says against what is measured."""
    if arguments["model"]:
        slots, budget, drafts = (int(arguments[f"--{name}"]) for name in SIZES)
        try_details(say, url, model, slots=slots, budget=budget, drafts=drafts)
    elif arguments["foretell"]:
        if arguments["--pace"]:
            keep_pace(say, url, arguments["--pace"])
        try_foretold(say, url, model, int(arguments["--rounds"]))
    else:
        seconds, traces = float(arguments["--seconds"]), arguments["--traces"]
        try_tuned(say, seconds, traces and Path(traces), mixed_log(seconds))


def main() -> int:
    """Run the named tryout."""
    arguments = docopt(__doc__ or "")
    url, model = (arguments["URL"] or "").rstrip("/"), arguments["--model"]
    if arguments["machines"]:
        try_machines(say)
    elif any(arguments[name] for name in OF_THE_SIMULATOR):
        beside_the_simulator(arguments, url, model)
    elif arguments["engine"]:
        try_engine(url, model)
    elif arguments["messages"]:
        try_messages(say, url, model)
    elif arguments["cooling"]:
        try_cooling(say, url, model, arguments["--limit"], arguments["--engine-log"])
    elif arguments["several"]:
        urls = [arguments[name].rstrip("/") for name in ("FIRST", "SECOND")]
        try_several(say, urls, model)
    elif arguments["llama"]:
        try_llama(say, url, model)
    elif arguments["clients"]:
        more = (arguments["--folder"], arguments["--only"], arguments["--write"])
        try_clients(say, url or None, model, *more)
    elif arguments["vllm"]:
        try_vllm(say, url, model, arguments["--restart"])
    else:
        try_claude_code(say, arguments["--version"], arguments["--record"])
    print("\nall laws held" if not failures else f"\n{len(failures)} broken")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
