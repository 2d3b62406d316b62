"""frontdoor: one capped, arrival-ordered line before each self-hosted LLM engine.

Usage:
  frontdoor serve [--config FILE] [--listen HOST:PORT] [--admin-listen HOST:PORT] [--take-over]
  frontdoor demo [--listen HOST:PORT] [--admin-listen HOST:PORT]
  frontdoor init [--out FILE] [--key-file FILE] [URL]...
  frontdoor check [--config FILE] [--json] [--probe]
  frontdoor check --schema
  frontdoor status [--admin URL] [--json]
  frontdoor wake MODEL [--replica URL] [--admin URL] [--wait]
  frontdoor sleep MODEL [--level N] [--for DURATION | --until TIME] [--replica URL] [--admin URL]
  frontdoor pin MODEL [--for DURATION | --until TIME] [--replica URL] [--admin URL]
  frontdoor keep MODEL DURATION [--replica URL] [--admin URL]
  frontdoor unpin MODEL [--replica URL] [--admin URL]
  frontdoor explain MODEL [--admin URL] [--json]
  frontdoor drain MODEL --replica URL [--undo] [--admin URL]
  frontdoor reload [--admin URL]
  frontdoor key new NAME
  frontdoor health [URL]
  frontdoor stand-in --port PORT [options] [--model NAME]...
  frontdoor completion (bash | zsh | fish)
  frontdoor man
  frontdoor (-h | --help)
  frontdoor --version

Commands:
  serve       Serve in front of the engines of the configuration, until SIGTERM or Ctrl-C.
  demo        Try it without a GPU: stand-in engines and the front door before them.
  init        Write a configuration for engines that run (else http://127.0.0.1:8000 is asked).
  check       Read a configuration and say what it means, or what is wrong with it.
  status      Show how the engines of a running front door are.
  wake        Wake an engine, by the name of its upstream or of a model of it.
  sleep       Put an engine to sleep, unless somebody is inside; with an end: and keep it asleep.
  pin         Have an engine that is awake stay so, whoever else needs its room.
  keep        Have idle tiers leave an engine awake for a while.
  unpin       End a pin or a keep before its time.
  key         Make a key for a client: the key on stdout, its hash for [keys.NAME] on stderr.
  explain     Say why an engine is as it is, and what a request for it would set going.
  drain       Send nobody new to one of several engines behind one name.
  reload      Have a running front door read its configuration again, as SIGHUP does.
  health      Ask a public listener (else http://127.0.0.1:8080) whether it serves; says nothing.
  stand-in    Run one engine that looks like vLLM and has no model.
  completion  Print what a shell needs to complete this command line.
  man         Print the man page.

  Live, each with a --help of its own:
  top         Draw who runs, who waits, and the last requests.
  tail        Write each request as it ends, all or by outcome and model.
  ask         Ask a model, and see one's place in the queue until it answers.

  The simulator, each with a --help of its own; no engine is touched:
  tune        Which cap, queue and timeout shall I set, and why? As TOML to paste.
  simulate    What would this traffic meet before an engine with this cap and this line?
  sweep       Which cap, line and timeout suit this traffic?
  validate    Is the simulator right? It is held against exact theory.
  replay      What would the logged traffic have met with other limits?
  calibrate   Fit a service profile to a log.

Options:
  --config FILE             Configuration; else $FRONTDOOR_CONFIG, else conf/frontdoor.toml.
  --listen HOST:PORT        Public listener, instead of server.listen. Port 0: any free one.
  --admin-listen HOST:PORT  Admin listener, instead of server.admin_listen.
  --take-over               In the place of the one that runs, refusing nobody; else as without.
  --json                    For scripts rather than people.
  --probe                   Ask the engines too, and name each mistake that they make visible.
  --out FILE                Where to write it; else stdout. A file that is there is left alone.
  --key-file FILE           The API key for engines that ask for one, on the file's only line.
  --schema                  Print the JSON schema of a configuration, for editors.
  --admin URL               Admin listener of the front door that is meant; else $FRONTDOOR_ADMIN,
                            else http://127.0.0.1:8010. $FRONTDOOR_ADMIN_TOKEN is sent along.
  --wait                    Until it is awake, or has failed to wake.
  --replica URL             Which of several engines, else all; drain --undo: use it again.
  --level N                 1: weights into host memory; 2: weights dropped; 3: process ended.
  --for DURATION            How long an order holds, such as 90m or 2h30m.
  --until TIME              Until when: 18:00 (the next one here), or 2026-12-01T08:00 (+01:00).
  -h --help                 Show this text.
  --version                 Show the version.

Options of stand-in:
  --port PORT               Where it listens; 0: any free one.
  --host HOST               On which address. [default: 127.0.0.1]
  --model NAME              A name it serves; may be given more than once. [default: reasoning]
  --slots N                 Sequences that run at once; more wait inside. [default: 8]
  --hold S                  Seconds before an answer begins; exp:S draws them. [default: 0]
  --tokens N                Tokens in an answer. [default: 16]
  --gap-ms MS               Milliseconds between two tokens of a stream. [default: 20]
  --notice-ms MS            Milliseconds until it notices a client's departure. [default: 0]
  --sleep-mode              Have vLLM's sleep routes.
  --vllm VERSION            Behave like this vLLM. [default: 0.33]
  --log FILE                A line whenever the number in flight changes.
  --faults SPEC             Calls that fail, e.g. wake_up=fail*1,is_sleeping=hang.

Exit codes: 0 done, 1 it ran and failed, 2 wrong usage or configuration, 130 Ctrl-C.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from docopt import docopt

from tornado_frontdoor import __version__

if TYPE_CHECKING:
    from tornado_frontdoor.cli.help_text import Command
    from tornado_frontdoor.config import Settings

DEFAULT_CONFIG = (Path(__file__).parents[1] / "conf").resolve() / "frontdoor.toml"
"""Packaged with the code; in a checkout it is `conf/` at its top."""

Arguments = Mapping[str, Any]
Number = TypeVar("Number", int, float)

_LIVE = ("top", "tail", "ask")
_SIMULATED = ("tune", "simulate", "sweep", "validate", "replay", "calibrate")
_EXTRA_OF = {
    **dict.fromkeys(("simpy", "numpy", "scipy", "matplotlib"), "simulator"),
    "redis": "cluster",
    "opentelemetry": "otel",
}
"""Which extra of ours brings a library that the core of the package does without."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Only docopt's own usage errors raise SystemExit."""
    if __doc__ is None:
        raise RuntimeError("the help text is the grammar of the command line: do not run with -OO")
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(given)
        sys.stdout.flush()  # here, where a broken pipe is no surprise
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _EXTRA_OF:
            raise
        extra = f"pip install 'tornado-frontdoor[{_EXTRA_OF[library]}]'"
        print(
            f"frontdoor {given[0]}: needs {library}, not installed here: {extra}", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough of it; keep the interpreter from saying so at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _run(given: list[str]) -> int:
    if given and given[0] in _SIMULATED:
        return _simulate(given)
    if given and given[0] in _LIVE:
        return _watch(given)
    commands: dict[str, Callable[[Arguments], int]] = {
        "serve": _serve,
        "demo": _demo,
        "init": _init,
        "check": _check,
        "status": _status,
        "wake": _wake,
        "sleep": _sleep,
        "pin": _order,
        "keep": _order,
        "unpin": _order,
        "explain": _explain,
        "drain": _drain,
        "reload": _reload,
        "key": _key,
        "health": _health,
        "stand-in": _stand_in,
        "completion": _completion,
        "man": _man,
    }
    if given and not given[0].startswith("-") and given[0] not in commands:
        there_are = ", ".join((*commands, *_LIVE, *_SIMULATED))
        print(
            f"frontdoor: there is no command {given[0]!r}; there are {there_are}", file=sys.stderr
        )
        return 2
    if {"--for", "--until"} <= {word.partition("=")[0] for word in given}:
        print(f"frontdoor {given[0]}: --for and --until cannot both be given", file=sys.stderr)
        return 2
    arguments = _parse(__doc__ or "", given)
    if isinstance(arguments, int):
        return arguments
    return next(run for name, run in commands.items() if arguments[name])(arguments)


def _parse(text: str, argv: list[str]) -> Arguments | int:
    """Return what docopt reads, or the exit code where that is all there is to do."""
    if not argv:
        print(text[text.index("Usage:") : text.index("Options:")].rstrip(), file=sys.stderr)
        return 2
    try:
        return docopt(text, argv=argv, version=f"frontdoor {__version__}")
    except SystemExit as end:
        if end.code is None or end.code == 0:
            return 0
        # docopt shows what it could not match in the notation of its own classes.
        told = str(end.code).splitlines()
        if told[0].startswith("Warning: "):
            told[0] = f"frontdoor: this cannot be read: {' '.join(argv)}"
        own = [line for line in told if line.split()[:2] == ["frontdoor", argv[0]]]
        told = [told[0], "Usage:", *own] if own else told
        command = f"frontdoor {argv[0]}" if argv[0] in (*_LIVE, *_SIMULATED) else "frontdoor"
        print(*told, f"Try: {command} --help", sep="\n", file=sys.stderr)
        return 2


def _configuration(arguments: Arguments) -> Path:
    given = arguments["--config"] or os.environ.get("FRONTDOOR_CONFIG")
    return Path(given) if given else DEFAULT_CONFIG


def _serve(arguments: Arguments) -> int:
    from tornado_frontdoor.config import ConfigError, load
    from tornado_frontdoor.proxy import serving

    def read() -> "Settings":
        return load(
            _configuration(arguments),
            listen=arguments["--listen"],
            admin_listen=arguments["--admin-listen"],
        )

    try:
        settings = read()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return serving.serve(settings, read, take_over=arguments["--take-over"])


def _demo(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import demo

    return demo.run(arguments["--listen"], arguments["--admin-listen"])


def _check(arguments: Arguments) -> int:
    from tornado_frontdoor.config import ConfigError, load
    from tornado_frontdoor.config.describe import describe, describe_json

    if arguments["--schema"]:
        from tornado_frontdoor.config.json_schema import as_text

        print(as_text())
        return 0
    path = _configuration(arguments)
    try:
        settings = load(path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(describe_json(settings) if arguments["--json"] else describe(settings))
    return _probe(settings, quiet=arguments["--json"]) if arguments["--probe"] else 0


def _probe(settings: "Settings", *, quiet: bool) -> int:
    from tornado_frontdoor.cli.probe import probe

    seen, mistakes = probe(settings)
    if not quiet:
        print("", *seen, sep="\n")
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    return 1 if mistakes else 0


def _init(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import init

    return init.run(arguments["URL"], arguments["--out"], arguments["--key-file"])


def _status(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import admin_client

    return admin_client.status(arguments["--admin"], as_json=arguments["--json"])


def _wake(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import admin_client

    return admin_client.wake(arguments)


def _drain(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import admin_client

    return admin_client.drain(arguments)


def _sleep(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import admin_client

    if arguments["--for"] is not None or arguments["--until"] is not None:
        return _order(arguments)
    return admin_client.sleep(arguments)


def _order(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import orders

    return orders.run(arguments)


def _explain(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import admin_client

    return admin_client.explain(
        arguments["--admin"], arguments["MODEL"], as_json=arguments["--json"]
    )


def _reload(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import admin_client

    return admin_client.reload(arguments["--admin"])


def _health(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import admin_client

    given = arguments["URL"]
    return admin_client.health(given[0] if given else admin_client.DEFAULT_PUBLIC)


def _key(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import keys

    return keys.new(arguments["NAME"])


def _stand_in(arguments: Arguments) -> int:
    from simulator.standin import server as stand_in

    try:
        options = stand_in.StandInOptions(
            port=_number(arguments, "--port", int),
            host=arguments["--host"],
            models=tuple(arguments["--model"]),
            slots=_number(arguments, "--slots", int),
            hold=arguments["--hold"],
            tokens=_number(arguments, "--tokens", int),
            gap_ms=_number(arguments, "--gap-ms", float),
            notice_ms=_number(arguments, "--notice-ms", float),
            sleep_mode=arguments["--sleep-mode"],
            vllm=arguments["--vllm"],
            log=arguments["--log"],
            faults=arguments["--faults"] or "",
        )
    except ValueError as error:
        print(f"frontdoor stand-in: {error}", file=sys.stderr)
        return 2
    _log_to_stderr()
    return stand_in.run(options)


def _number(arguments: Arguments, option: str, kind: type[Number]) -> Number:
    try:
        return kind(arguments[option])
    except ValueError:
        raise ValueError(f"{option} must be a number, not {arguments[option]!r}") from None


def _watch(argv: list[str]) -> int:
    from tornado_frontdoor.cli import ask, live

    module = ask if argv[0] == "ask" else live
    arguments = _parse(module.USAGE, argv)
    return arguments if isinstance(arguments, int) else module.run(arguments)


def _completion(arguments: Arguments) -> int:
    from tornado_frontdoor.cli import completion

    write = {"bash": completion.bash, "zsh": completion.zsh, "fish": completion.fish}
    shell = next(name for name in write if arguments[name])
    print(write[shell](_commands()), end="")
    return 0


def _man(arguments: Arguments) -> int:  # noqa: ARG001 - as every command
    from tornado_frontdoor.cli.man_page import man_page

    print(man_page(__version__, __doc__ or "", _commands()), end="")
    return 0


def _commands() -> "list[Command]":
    from simulator.cli.usage import USAGE
    from tornado_frontdoor.cli import ask, live
    from tornado_frontdoor.cli.help_text import commands_of

    others = {**USAGE, "top": live.USAGE, "tail": live.USAGE, "ask": ask.USAGE}
    return commands_of(__doc__ or "", others)


def _simulate(argv: list[str]) -> int:
    from simulator.cli.usage import USAGE
    from simulator.cli.words import faults_of

    name = argv[0]
    if faults := faults_of(USAGE[name], argv[1:]):
        told = (f"frontdoor {name}: {fault}" for fault in faults)
        print(*told, f"Try: frontdoor {name} --help", sep="\n", file=sys.stderr)
        return 2
    arguments = _parse(USAGE[name], argv)
    if isinstance(arguments, int):
        return arguments
    from simulator.cli.commands import COMMANDS, UsageError

    try:
        if name in {"tune", "simulate", "calibrate"}:
            from tornado_frontdoor.cli import tuning

            if arguments.get("--world"):
                from tornado_frontdoor.cli import worlds

                return worlds.run(arguments)
            return tuning.carry_out(name, arguments)
        return COMMANDS[name](arguments)
    except UsageError as error:
        print("\n".join(f"frontdoor {name}: {fault}" for fault in error.faults), file=sys.stderr)
        return 2


def _log_to_stderr() -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    # Each malformed request would be an INFO line of Tornado's; the access line is ours to write.
    logging.getLogger("tornado.general").setLevel(logging.WARNING)
    logging.getLogger("tornado.access").setLevel(logging.WARNING)
