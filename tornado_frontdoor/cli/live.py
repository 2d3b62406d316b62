"""What goes on in a front door, in a terminal: `top` draws it, `tail` writes each request's end."""

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tornado_frontdoor.cli.admin_client import (
    Unreachable,
    admin_request,
    ago,
    error_of,
    gpus_table,
    out_of,
    run_command,
)
from tornado_frontdoor.cli.straight import STRAIGHT
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.printable import printable

USAGE = """frontdoor top, frontdoor tail: what goes on in a front door that runs.

Usage:
  frontdoor top [--admin URL]
  frontdoor tail [--admin URL] [--outcome NAME] [--model NAME] [--json]

Options:
  --admin URL     Its admin listener; else $FRONTDOOR_ADMIN, else http://127.0.0.1:8010.
                  $FRONTDOOR_ADMIN_TOKEN is sent along.
  --outcome NAME  Requests that ended so; !served: all but those.
  --model NAME    Requests for models or upstreams with this in their names.
  --json          For scripts rather than people: the fields of the access line.
  -h --help       Show this text.
"""
SILENT_S = 60.0
"""The stream gives a sign of life every 15 s."""
LAST_SHOWN = 12
WAITING_SHOWN = 8

Event = tuple[str, Mapping[str, Any]]


def run(arguments: Mapping[str, Any]) -> int:
    """Run one of both commands; returns the exit code."""
    admin = arguments["--admin"]
    if arguments["top"]:
        return top(admin)
    outcome = arguments["--outcome"]
    labels = [one.label for one in Outcome]
    if outcome is not None and outcome.removeprefix("!") not in labels:
        there_are = ", ".join(labels)
        told = f"--outcome {printable(outcome)}: no request ends so; there are {there_are}"
        print(f"frontdoor: {told}", file=sys.stderr)
        return 2
    return tail(admin, outcome, arguments["--model"], as_json=arguments["--json"])


def top(admin: str | None) -> int:
    """Draw what goes on until Ctrl-C; returns the exit code."""
    return run_command(lambda: _top(admin))


def tail(admin: str | None, outcome: str | None, model: str | None, *, as_json: bool) -> int:
    """Write each request as it ends, until Ctrl-C; returns the exit code."""
    return run_command(lambda: _tail(admin, outcome, model, as_json=as_json))


def events(admin: str | None) -> Iterator[Event]:
    """Yield what a front door tells; raises Unreachable, also when it ends."""
    request = admin_request("GET", admin, "/admin/events")
    try:
        with STRAIGHT.open(request, timeout=SILENT_S) as stream:
            yield from read_events(stream)
    except HTTPError as error:
        with error:
            raise Unreachable(error_of(error.read(), error.code)) from error
    except (URLError, OSError, ValueError) as error:
        where = _base(request)
        raise Unreachable(f"no front door answers at {where}: {_reason(error)}") from error
    raise Unreachable(f"the front door at {_base(request)} has closed the stream")


def read_events(lines: Iterable[bytes], last: bytes = b"") -> Iterator[Event]:
    """Read server-sent events whose data is JSON, up to one whose data is `last`."""
    kind, data = "message", ""
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith("event: "):
            kind = line[7:]
        elif last and line == f"data: {last.decode()}":
            return
        elif line.startswith("data: "):
            data += line[6:]
        elif not line and data:
            yield kind, json.loads(data)
            kind, data = "message", ""


def _tail(admin: str | None, outcome: str | None, model: str | None, *, as_json: bool) -> int:
    for kind, fields in events(admin):
        if kind != "request" or not is_wanted(fields, outcome, model):
            continue
        print(json.dumps(fields) if as_json else line_of(fields), flush=True)
    return 0


def is_wanted(fields: Mapping[str, Any], outcome: str | None, model: str | None) -> bool:
    """Tell whether a request has this outcome (`!served`: any other) and such a model."""
    if outcome is not None:
        is_it = fields["outcome"] == outcome.removeprefix("!")
        if is_it is outcome.startswith("!"):
            return False
    names = (fields["model"], fields["upstream"])
    return model is None or any(model.lower() in str(name).lower() for name in names)


def line_of(fields: Mapping[str, Any]) -> str:
    """Return one request as a line for people."""
    what = fields["model"] or f"{fields['method']} {fields['path']}"
    waited = f", waited {_s(fields['waited_s'])}" if fields["place"] is not None else ""
    tokens = "" if fields["tokens_out"] is None else f", {fields['tokens_out']} tokens"
    why = f": {fields['cause']}" if fields["cause"] else ""
    who = fields["forwarded"] or fields["client"]
    return (
        f"{str(fields['time'])[11:19]} {fields['status']} {fields['outcome']} {what} for {who} "
        f"in {_s(fields['total_s'])}{waited}{tokens}{why}"
    )


class Picture:
    """What is known from the events so far, as tables."""

    def __init__(self) -> None:
        self.engines: dict[str, dict[str, Any]] = {}
        self.queues: dict[str, list[dict[str, Any]]] = {}
        self.requests: deque[Mapping[str, Any]] = deque(maxlen=LAST_SHOWN)
        self._gpus: Mapping[str, Any] | None = None
        self._about: Mapping[str, Any] = {}
        self._at_s = monotonic()

    def take(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Take an event."""
        match kind:
            case "snapshot":
                self._about, self._at_s = fields, monotonic()
                self.engines = {name: dict(one) for name, one in fields["engines"].items()}
                self.queues = dict(fields["queues"])
                self._gpus = fields.get("gpus")
                self.requests.extend(fields["requests"] or ())
            case "engine":
                self.engines.setdefault(fields["upstream"], {}).update(fields)
            case "queue":
                passed_s = monotonic() - self._at_s
                inside = [{**one, "age_s": one["age_s"] - passed_s} for one in fields["inside"]]
                self.queues[fields["upstream"]] = inside
            case "gpus":
                self._gpus = fields["now"]
            case "request":
                self.requests.append(fields)
            case _:
                pass  # history and log are for the page

    def __rich__(self) -> Group:
        gpus = [gpus_table(self._gpus)] if self._gpus else []
        return Group(self._engines(), *gpus, self._waiting(), self._last())

    def _engines(self) -> Table:
        up_s = self._about.get("uptime_s", 0.0) + monotonic() - self._at_s
        title = f"frontdoor {self._about.get('version', '')}, up {ago(up_s)}"
        table = Table(title=title, title_justify="left", expand=True)
        for column in ("upstream", "state", "in flight", "queued", "oldest wait", "wakes"):
            table.add_column(column, no_wrap=True)
        for name, engine in self.engines.items():
            step = f" ({engine['wake_step']})" if engine["wake_step"] else ""
            waiting = [one for one in self.queues.get(name, ()) if one["state"] == "queued"]
            oldest_s = max((one["age_s"] for one in waiting), default=None)
            passed_s = monotonic() - self._at_s
            table.add_row(
                name,
                Text(engine["state"] + step, style=_STYLES.get(engine["state"], "")),
                _slots(engine),
                out_of(engine["queued"], engine["queue"]),
                "-" if oldest_s is None else _s(oldest_s + passed_s),
                str(engine["wakes_total"]) if engine["can_sleep"] else "-",
            )
        return table

    def _waiting(self) -> Table:
        table = Table(title="waiting", title_justify="left", expand=True)
        for column in ("place", "upstream", "for", "model", "client"):
            table.add_column(column, no_wrap=True)
        passed_s = monotonic() - self._at_s
        waiting = [
            one for inside in self.queues.values() for one in inside if one["state"] == "queued"
        ]
        for one in waiting[:WAITING_SHOWN]:
            age = _s(one["age_s"] + passed_s)
            table.add_row(
                str(one["place"]), one["upstream"], age, Text(one["model"]), str(one["client"])
            )
        if len(waiting) > WAITING_SHOWN:
            table.add_row("", f"and {len(waiting) - WAITING_SHOWN} more")
        return table

    def _last(self) -> Table:
        table = Table(title="last requests", title_justify="left", expand=True)
        table.add_column("ended", no_wrap=True)
        table.add_column("outcome", no_wrap=True)
        table.add_column("model", no_wrap=True)
        table.add_column("total", justify="right", no_wrap=True)
        table.add_column("why", ratio=1, no_wrap=True)
        for fields in reversed(self.requests):
            good = fields["outcome"] == "served"
            table.add_row(
                str(fields["time"])[11:19],
                Text(fields["outcome"], style="green" if good else "yellow"),
                Text(fields["model"] or fields["path"]),
                _s(fields["total_s"]),
                Text(fields["cause"] or ""),
            )
        return table


_STYLES = {"awake": "green", "down": "red", "unknown": "red", "waking": "yellow"}


def _top(admin: str | None) -> int:
    picture = Picture()
    console = Console()
    told = events(admin)
    picture.take(*next(told))
    if not console.is_terminal:
        console.print(picture)  # into a file or a pipe goes one picture
        return 0
    with Live(picture, console=console, screen=True, refresh_per_second=4):
        for kind, fields in told:
            picture.take(kind, fields)
    return 0


def _slots(engine: Mapping[str, Any]) -> str:
    cap, busy = engine["cap"], engine["in_flight"]
    if cap is None or cap > 24:
        return out_of(busy, cap)
    reserve = "·" * max(0, (engine["slots"] or cap) - cap)
    return f"{'█' * busy}{'░' * max(0, cap - busy)}{reserve} {busy} of {cap}"


def _s(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else ago(value)


def _base(request: Request) -> str:
    return request.full_url.removesuffix("/admin/events")


def _reason(error: Exception) -> object:
    return getattr(error, "reason", error)
