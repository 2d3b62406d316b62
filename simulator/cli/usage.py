"""The help texts of `simulate`, `sweep`, `validate`, `replay` and `calibrate`: docopt's grammar.

Each text is a whole docopt document. Options have no defaults of docopt's: whether an option was
given decides what it goes with, and `options.py` knows the values.
"""

_TRAFFIC = """\
Traffic (one of the first five; --rho 0.8 without any):
  --rate R                  Poisson arrivals, R a second.
  --rho X                   The same by load: X times what the engine can serve. In a sweep with the
                            largest cap, so that all points see one rate.
  --burst N                 N requests at one instant.
  --clients N               A closed loop: N clients ask, and think again however that ended.
  --trace FILE              Recorded arrivals: access logs, benchmarks, public traces, rates.
  --think S                 Mean time that a client thinks, exponential.
  --thin P                  Keep a random share P of the trace (keeps the time scale of bursts).
  --stretch X               Lengthen the trace's time X times (keeps the CV of gaps).
  --bootstrap S             Replications are random orders of the trace's blocks of S seconds.
  --arrivals-law LAW        poisson | gamma:CV | mmpp:RATIO,HIGH_S,LOW_S, with --rate or --rho.
"""

_ENGINE = """\
Engine:
  --service LAW             hold:S (constant) | exp:S | lognormal:S,SIGMA, S being the mean, or
                            profile:NAME | profile:FILE. Default exp:2. Names: dense-32b-2xa100,
                            moe-a3b-fast, moe-a3b-a100, hold-2s.
  --slowdown B              n requests together run at 1 / (1 + B (n - 1)) of the speed of one.
  --prompt LAW              Prompt tokens of a profile: const:N | exp:N | lognormal:N,SIGMA.
                            Default exp:1024; a trace brings its own.
  --output LAW              Output tokens likewise. Default exp:256.
  --max-num-batched-tokens N  Tokens in one iteration of the engine, prompts and answers together;
                            default 2048, or the profile's. As in vLLM's options.
  --kv-tokens N             Tokens that the KV cache of a replica holds ("KV cache size" in vLLM's
                            log); when it is short, requests are preempted or wait inside. Of a
                            profile; default without end.
  --prefix-cache F,S        A share F of requests goes on with a conversation, and of their prompts
                            a share S is cached. off: a preempted request reads all anew.
  --speculate K,A[,D]       K drafts a step, each accepted with chance A, which differs by D between
                            requests: noise of their lengths; a token's mean time stays.
  --slots N                 Sequences that the engine runs at once; default 8.
  --replicas RxS            R replicas of S slots behind one address; default 1 x slots.
  --pick HOW                Which replica: least | random | round-robin. Default least.
  --sleep T1,T2             Idle times (s) after which it sleeps at level 1, 2; 0 = never.
  --wake S1,S2              Time a wake from level 1, 2 takes; default 3,45.
  --fall S1,S2              Time falling asleep takes; default 10,1.
  --hold-limit S1,S2        How long a request may wait for such a wake; default 30,180.
  --hold-advice S1,S2       What those are told who waited in vain; default 10,60.
"""

_CLIENTS = """\
Clients:
  --retry HOW               none | openai | anthropic | fixed:S,N (after S seconds, N times) |
                            exp:S,P (after Exp(S), each time with chance P). Default none.
  --advice WHAT             What the refused are told: promise (as the front door does), const:S
                            (S seconds, all the same), none. Default promise.
  --return-places N         Places kept for those who come back when told; default half the queue.
  --patience LAW            none | exp:S | const:S: leave the queue after that. Default none.
  --patience-told HOW       no | ignored | heeded: they say so, as SDKs do, and try again after it;
                            heeded, who would wait in vain is refused at once. Default no.
  --keys LIST               Whose keys they bring, with parts of the traffic (of a closed loop:
                            clients): A=100,B=1. Each key is reported besides.
  --shares LIST             Shares of the slots that keys have: A=1,B=2. Default 1 each.
  --fair-share              Slots are shared by key, as with fair_share in the configuration.
  --hang-up P               Share of clients that leave in the middle of their answer.
  --cooling S               Until the engine has noticed such a departure. Default 0.
  --cooling-limit S         The slot is given on after this at the latest, as with cooling_limit_s
                            in the configuration. Default 2.
"""

_SLO = """\
  --slo LIST                {}, e.g. wait_p95_s=2.5,lost_share=0.02.
                            Default lost_share=0.01,wait_p95_s=5. Each is the most there may be; of
                            served_share, goodput_per_s, utilization, awake_share, kept_share and
                            kept_per_s the least."""

_WORTH = """\
Worth:
  --each LIST               What each request is to get, of wait_s, first_token_s, token_s and
                            latency_s at most: kept_share and kept_per_s say how many got it.
  --gpu-cost C              Cost of this upstream's GPUs an hour: cost_per_thousand served.
"""

_RUN = f"""\
{_WORTH}
Run:
  --requests N              Per replication; default 20000, all of a trace.
  --warmup N                Of these not measured; default a twentieth, none of a burst or trace.
  --reps N                  Independent replications; default 20, or 1 where nothing is random.
  --seed N                  Same seed, same version: same result, byte for byte. Default 1.
  --jobs N                  Processes; default one for each core. Changes no bit of the result.
  --driver NAME             simpy | heap: the event loop. Changes no bit of the result.
  --check                   Judge every event by the laws of admission (slower).
  --json                    For scripts rather than people.
  -h --help                 Show this text.
"""

_TUNE_RUN = f"""\
{_WORTH}
Run:
  --requests N              In a replication, at most; default 5000. Of a day of rates: in its part.
  --seed N                  Same seed, same version: same result, byte for byte. Default 1.
  --jobs N                  Processes; default one for each core. Changes no bit of the result.
  --check                   Judge every event by the laws of admission (slower).
  --json                    For scripts rather than people.
  -h --help                 Show this text.
"""

SIMULATE = f"""\
What would this traffic meet before an engine with this cap and this queue?

Usage:
  frontdoor simulate --cap N --queue N [options]
  frontdoor simulate --config FILE [--cap N] [--queue N] [options]
  frontdoor simulate --world FILE [options]

With --config it is that configuration: its engines, limits, idle tiers and shares; what it has
besides is told. With --log as well: what would this configuration have done with last Tuesday?

With --world it is several models that share GPUs: a whole configuration, with a [traffic.MODEL]
table for each model that is asked for; conf/worlds/several-models.toml is one. It goes with
--duration, --turns, --gpu-cost (of all GPUs), --reps, --seed and --json.

Options:
  --world FILE              The configuration, and its traffic.
  --duration S              How long traffic comes; default 3600.
  --turns                   Sweep idle tiers, stay_factor and max_turn_wait_s; recommend some.
  --config FILE             Take what is not given here from this configuration.
  --upstream KEY            Which upstream, where the configuration or the log has several.
  --log FILE                The traffic of the front door's own access log; - is stdin.
  --cap N                   Slots that may be in flight.
  --queue N                 Places in the queue.
  --timeout S               Longest wait in the queue, or none; default 30.
  --plot FILE               Draw waits, occupancy and queue: .html, .png or .svg.

{_TRAFFIC}
{_ENGINE}
{_CLIENTS}
{_RUN}"""

SWEEP = f"""\
Which cap, queue and timeout suit this traffic?

Usage:
  frontdoor sweep --cap LIST --queue LIST --timeout LIST [options]

Options:
  --cap LIST                E.g. 4..8 or 4,6,8.
  --queue LIST              E.g. 0,4,8,16.
  --timeout LIST            E.g. 5,30,none.
{_SLO.format("Limits that a point must keep")}
  --headroom P              The recommended point must keep them with this share more traffic too;
                            default 0.2, 0 for none.
  --dask ADDRESS            Compute on a Dask cluster (needs the dask extra).
  --plot FILE               Draw the Pareto picture: .html, .png or .svg.

{_TRAFFIC}
{_ENGINE}
{_CLIENTS}
{_RUN}"""

REPLAY = f"""\
What would the logged traffic have met with another cap and another queue?

Usage:
  frontdoor replay LOG --cap LIST --queue LIST [options]

LOG is the front door's own access log. Requests come when they came. How much
slower they are together is fitted to the log, so that another cap is another speed; or it is
--slowdown. One that was never served takes the seconds of a random one that was.

Options:
  --cap LIST                E.g. 4..8 or 4,6,8.
  --queue LIST              E.g. 0,4,8,16.
  --timeout LIST            E.g. 5,30,none; default 30.
  --upstream KEY            Whose requests, where the log has several upstreams.
{_SLO.format("Limits that a point must keep")}
  --headroom P              The recommended point must keep them with this share more traffic too;
                            default 0.2, 0 for none.
  --thin P                  Keep a random share P of the requests.
  --stretch X               Lengthen the log's time X times.
  --bootstrap S             Replications are random orders of the log's blocks of S seconds.
  --dask ADDRESS            Compute on a Dask cluster (needs the dask extra).
  --plot FILE               Draw the Pareto picture: .html, .png or .svg.

{_ENGINE}
{_CLIENTS}
{_RUN}"""

VALIDATE = """\
Is the simulator right? Simulated values beside exact theory, with their distance in sigmas; or
beside a run of your own engine.

Usage:
  frontdoor validate [options]

Options:
  --engine FILES            Fit these results of benchmarks, or these logs of the front door, with
                            commas between them, and simulate the very requests of the first.
  --against FILE            Simulate those of this other one instead, with what was fitted.
  --slots N                 Of that engine (--max-num-seqs), or as many as the benchmark let run.
  --cap N                   Of a log: the cap that it was written with, with its --queue and
  --queue N                 --timeout (default 30). What it says of losses, waits and latencies is
  --timeout S               held against what is simulated.
  --full                    All loads, timeouts and laws (minutes) rather than some of each.
  --seed N                  Default 1.
  --reps N                  Replications of each case; default 20.
  --requests N              Requests of each replication; default 5000, or 20000 with --full.
  --jobs N                  Processes; default one for each core.
  --driver NAME             simpy | heap; default heap.
  --json                    For scripts rather than people.
  -h --help                 Show this text.

Exits with 1 when a value is further than 4 sigma from the exact one; or, of an engine, neither
inside the interval that the fit leaves open nor within 5 % of what was measured (first tokens:
16 %; lost: a hundredth of all; waits: 0.1 s).
"""

CALIBRATE = """\
Fits a service profile to a log, for `--service profile:FILE`.

Usage:
  frontdoor calibrate LOG... [--upstream KEY] [--out FILE] [--name NAME] [--json]
  frontdoor calibrate --probe URL [--model NAME] [--seconds S] [--yes]
                      [--out FILE] [--name NAME] [--json]

LOG is an access log (the front door's own, nginx's or HAProxy's, or LiteLLM's spend log), which
gives seconds (or tokens, where its lines have them) and how they grow with the batch; or the result
of `vllm bench serve --save-detailed` or GuideLLM, or JSON lines with input_toks, output_toks,
scheduled_ts, first_token_ts, last_token_ts, which gives token and prompt times.
Several logs of one engine are fitted as one: logs of two caps tell far more than one.

With --probe an idle engine is measured instead: 1, 2, 4 and 8 requests at once, in two minutes at
most. It asks before it begins. How much its KV cache holds is asked, where it tells (vLLM).

Options:
  --upstream KEY            Whose requests, where the log has several upstreams.
  --probe URL               The engine to measure, e.g. http://127.0.0.1:8000.
  --model NAME              Of several that it serves.
  --seconds S               How long, at most; default 110.
  --yes                     Do not ask before it begins.
  --out FILE                Write the profile there.
  --name NAME               What to call it; default the name of the log.
  --json                    For scripts rather than people.
  -h --help                 Show this text.
"""

TUNE = f"""\
Which cap, queue, timeout and idle times shall I set, and why? Prints TOML for the configuration.

Usage:
  frontdoor tune [options]

Options:
  --log FILE                The front door's own access log: its traffic and its seconds. However it
                            was collected: prefixes, JSON of Docker or journald, gzip; - is stdin.
  --upstream KEY            Whose requests and whose table; where the log or the file has several.
  --config FILE             Take engines, idle tiers, shares (and the key) from this configuration.
{_SLO.format("Limits to keep")}
  --headroom P              Keep them with this share more traffic too; default 0.2, 0 for none.
  --tokens P,O              Mean tokens of prompts and answers, exponential, with a profile.
  --queue LIST              Queues to look through; default 0 to 64.
  --timeout LIST            Timeouts to look through; default 1, 2 and 6 times the limit on wait.
  --idle LISTS              Idle times to look through where there are tiers, of level 1 and, after
                            a slash, of level 2: 300,900,none/10800. Default a ninth, a third, 1, 3
                            and 9 times those of --sleep or the configuration (no longer than a
                            tenth of a recording or of rates), and none.
                            fixed: as they are.
  --busiest S               Judge by the busiest S seconds of a recording, or of rates in whole
                            windows of theirs; default all.
  --html FILE               Write a report, one page that needs no other file.
  --apply FILE              Take the same from this configuration and write the answer into it; the
                            old one stays as FILE.bak.

{_TRAFFIC}
{_ENGINE}
{_CLIENTS}
{_TUNE_RUN}"""

USAGE: dict[str, str] = {
    "simulate": SIMULATE,
    "sweep": SWEEP,
    "validate": VALIDATE,
    "replay": REPLAY,
    "calibrate": CALIBRATE,
    "tune": TUNE,
}
"""Help text by command."""

SUMMARY: dict[str, str] = {
    "simulate": "What would this traffic meet with this cap and this queue? No GPU is touched.",
    "sweep": "Which cap, queue and timeout suit this traffic?",
    "validate": "Compare the simulator with exact theory.",
    "replay": "What would the logged traffic have met with other limits?",
    "calibrate": "Fit a service profile to a log.",
    "tune": "Which cap, queue, timeout and idle times shall I set, and why?",
}
"""One line for each command, for the list of all."""
