"""`frontdoor init`: a commented configuration for engines that run, and what they did not tell.

What an engine says is written down; what it does not say is a careful guess and says so in the
file and on stderr, for the operator to put right.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tornado_frontdoor.cli.engine_survey import Survey, Unasked, survey
from tornado_frontdoor.config.address import normalised_url
from tornado_frontdoor.config.admin_token import read_token
from tornado_frontdoor.config.faults import printable
from tornado_frontdoor.config.fields import ModelName

USUAL = "http://127.0.0.1:8000"
"""Where vLLM listens when nobody tells it otherwise."""
GUESSED_SLOTS = 8
"""Far fewer than vLLM runs unless it is told otherwise: to queue too early is a nuisance that is
seen, to queue inside the engine is one that is not."""


class Engine(NamedTuple):
    """One engine and what it is called in the file."""

    key: str
    url: str
    found: Survey
    key_file: str | None
    """Where the key is that it asked for."""


def run(urls: Sequence[str], out: str | None, key_file: str | None = None) -> int:
    """Ask, write, and say what could not be learned; returns the exit code."""
    try:
        normal = list(dict.fromkeys(_normal(url) for url in urls or (USUAL,)))
        key = None if key_file is None else read_token(Path(key_file))
    except OSError as error:
        print(f"frontdoor init: {key_file} cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"frontdoor init: {error}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda url: _survey(url, key), normal))
    engines: list[Engine] = []
    for url, answer in zip(normal, answers, strict=True):
        if isinstance(answer, Unasked):
            print(f"frontdoor init: {url}: {answer}", file=sys.stderr)
        elif not answer.models:
            print(f"frontdoor init: {url}: the engine serves no model", file=sys.stderr)
        else:
            name = _free(_slug(next(iter(answer.models))), [engine.key for engine in engines])
            engines.append(Engine(name, url, answer, key_file if answer.took_key else None))
    if not engines:
        return 1
    notes: list[str] = []
    text = "\n".join(_lines(engines, notes)) + "\n"
    code = _write(text, out)
    for note in notes:
        print(f"not learned: {note}", file=sys.stderr)
    return code or (1 if len(engines) < len(normal) else 0)


def _write(text: str, out: str | None) -> int:
    if out is None:
        print(text, end="")
        return 0
    try:
        with Path(out).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"frontdoor init: {out} is there already; nothing was written", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"frontdoor init: {out} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"written: {out}; next: frontdoor check --probe --config {out}", file=sys.stderr)
    return 0


def _survey(url: str, key: str | None) -> Survey | Unasked:
    """Ask without the key first: it is for those that want one."""
    try:
        return survey(url)
    except Unasked as unasked:
        if key is None or not unasked.wants_key:
            return unasked
    try:
        return survey(url, key)
    except Unasked as unasked:
        return unasked


def _normal(url: str) -> str:
    """Return an engine's address as the file has it: people paste `HOST:PORT` and `.../v1`."""
    with_scheme = url if "://" in url else f"http://{url}"
    try:
        return normalised_url(re.sub(r"/v1/?$", "", with_scheme))
    except ValueError as error:
        raise ValueError(f"{printable(url)}: {error}") from None


# The file


def _lines(engines: Sequence[Engine], notes: list[str]) -> Iterator[str]:
    yield "# Written by `frontdoor init` from what the engines said. What is marked NOT LEARNED is"
    yield "# a guess that wants an eye; docs/configuration.md has every key."
    yield ""
    yield "[server]"
    yield '# listen = "127.0.0.1:8080"       # 0.0.0.0:8080 opens it to the network'
    yield '# admin_listen = "127.0.0.1:8010" # status, wake, sleep, reload, metrics'
    yield '# state_dir = "var"               # beside this file'
    yield ""
    yield "[surfaces]                         # /v1 for OpenAI clients, /llm for Anthropic's"
    for engine in engines:
        yield from _upstream(engine, notes)
    taken: set[str] = {name.lower() for engine in engines for name in engine.found.models}
    written: set[str] = set()
    chats: list[str] = []
    for engine in engines:
        for name in engine.found.models:
            if name.lower() in written or not _fits(name):
                why = "is served by two engines" if _fits(name) else "cannot be a model's name here"
                notes.append(f"{engine.url}: {quoted(name)} {why}: it is left out")
                continue
            written.add(name.lower())
            yield from _model(engine, name, taken, chats, notes)
    yield from _routes(engines, chats)


def _fits(name: str) -> bool:
    try:
        return ModelName().accept(name) is not None
    except ValueError:
        return False


def _upstream(engine: Engine, notes: list[str]) -> Iterator[str]:
    found = engine.found
    yield from ("", f"[upstreams.{engine.key}]", f'url = "{engine.url}"  # {found.kind}')
    if engine.key_file is not None:
        yield f"api_key_file = {quoted(str(Path(engine.key_file).absolute()))}"
    slots = found.slots or GUESSED_SLOTS
    where = "as the engine says"
    if found.slots is None:
        where = "NOT LEARNED: replicas x --max-num-seqs of the engine"
        notes.append(
            f"{engine.url} does not say how many sequences it runs at once (vLLM does with "
            f"VLLM_SERVER_DEV_MODE=1): upstreams.{engine.key}.admission.slots is a guess"
        )
    yield from ("", f"[upstreams.{engine.key}.admission]")
    if slots < 2:
        yield f"slots = 2  # the engine says {slots}: without a second one nothing can be held back"
        yield "cap = 1"
    else:
        yield f"slots = {slots}  # {where}"
        yield f"cap = {slots - max(1, slots // 8)}  # below slots: what is above queues unseen"
    yield f"queue = {max(8, 2 * slots)}  # who comes when it is full is told when to come back"
    yield "queue_timeout_s = 30"
    yield ""
    if not found.can_sleep:
        yield "# Not put to sleep: the engine has no sleep routes. vLLM has them with"
        yield "# --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1; then:"
        yield f"# [upstreams.{engine.key}.sleep]"
        yield "# idle_sleep_s = 900"
        return
    yield f"[upstreams.{engine.key}.sleep]  # asleep after so long without a request, woken by one"
    yield "idle_sleep_s = 900"
    yield "idle_offload_s = 10800  # deeper: weights dropped, read from the disk again; 0 = never"
    if found.only_embeds:
        yield 'canary_path = "/v1/embeddings"'


def _model(
    engine: Engine, name: str, taken: set[str], chats: list[str], notes: list[str]
) -> Iterator[str]:
    found, length = engine.found, engine.found.models[name]
    aliases: list[str] = []
    short = name.rpartition("/")[2].lower()
    if short != name.lower() and short not in taken:
        taken.add(short)
        aliases.append(short)
    if not found.only_embeds:
        if not chats:
            aliases.append("claude-*")
        chats.append(name)
    yield from ("", f"[models.{quoted(name)}]", f'upstream = "{engine.key}"')
    listed = ", ".join(quoted(alias) for alias in aliases)
    why = "  # Claude Code and the like name their own models" if "claude-*" in aliases else ""
    yield f"aliases = [{listed}]{why}"
    if length is None:
        notes.append(
            f"{engine.url} does not say how long the context of {quoted(name)} is: "
            "models.X.dialect.max_model_len, else a client may ask for more than it has"
        )
        yield f"# [models.{quoted(name)}.dialect]"
        yield "# max_model_len = 32768  # NOT LEARNED"
    else:
        yield f"# context: {length} tokens; asked of the engine again while the front door runs"


def _routes(engines: Sequence[Engine], chats: Sequence[str]) -> Iterator[str]:
    embeds = [
        name for engine in engines if engine.found.only_embeds for name in engine.found.models
    ]
    yield from ("", "[routes]  # which model a request is for that names none")
    if chats:
        yield f"chat_default = {quoted(chats[0])}"
    if embeds:
        yield f"embeddings = {quoted(embeds[0])}  # whatever the body says"


def quoted(name: str) -> str:
    """Write a name as a text of TOML, which has JSON's escapes."""
    return json.dumps(name)


def _slug(name: str) -> str:
    """Return a name for an upstream: it goes into metrics and paths."""
    short = re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower()).strip("-")
    return short[:40].strip("-") or "engine"


def _free(key: str, taken: Sequence[str]) -> str:
    number = 1
    found = key
    while found in taken:
        number += 1
        found = f"{key}-{number}"
    return found
