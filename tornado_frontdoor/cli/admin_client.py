"""What an operator asks of a front door that runs: its status, a wake, a sleep. Over HTTP only."""

import getpass
import json
import os
import sys
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request

from rich.console import Console
from rich.table import Table

from tornado_frontdoor.cli.straight import STRAIGHT, base_given, base_of

DEFAULT_ADMIN = "http://127.0.0.1:8010"
DEFAULT_PUBLIC = "http://127.0.0.1:8080"
HEALTH_TIMEOUT_S = 2.0
TIMEOUT_S = 10.0
WAIT_S = 1800.0
"""A wake from a slow share takes minutes; a sleep may wait for another one on its GPU."""

Answer = tuple[int, Any]


class Unreachable(Exception):  # noqa: N818 - said to an operator as it stands
    """No front door answers there."""


class NoAddress(Exception):  # noqa: N818 - said to an operator as it stands
    """What was given is no URL of an admin listener."""


def status(admin: str | None, *, as_json: bool) -> int:
    """Print the status of all upstreams; returns the exit code."""
    return run_command(lambda: _status(admin, as_json=as_json))


def wake(given: Mapping[str, Any]) -> int:
    """Wake the engine of a model or upstream, or one of several; returns the exit code."""
    query = {"by": operator(), **({"wait": "true"} if given["--wait"] else {})}
    return _transition("wake", given, query)


def sleep(given: Mapping[str, Any]) -> int:
    """Put the engine of a model or upstream to sleep, or one of several; returns the exit code."""
    level = given["--level"]
    if level is not None and level not in ("1", "2", "3"):
        print(f"frontdoor: --level must be 1, 2 or 3, not {level}", file=sys.stderr)
        return 2
    return _transition("sleep", given, {"level": level} if level else {})


def _transition(verb: str, given: Mapping[str, Any], query: Mapping[str, str]) -> int:
    model = given["MODEL"]
    replica = {} if given["--replica"] is None else {"replica": given["--replica"]}
    asked = urlencode({**query, **replica})
    path = f"/admin/{verb}/{quote(model, safe='')}{'?' if asked else ''}{asked}"
    return run_command(lambda: _carry_out(given["--admin"], path, model))


def health(public: str) -> int:
    """Return 0 where a front door serves, 1 where it drains or is not there: for health checks."""
    try:
        public = base_of(public, "URL")
    except ValueError as error:
        print(f"frontdoor health: {error}", file=sys.stderr)
        return 2
    request = Request(f"{public}/health")  # noqa: S310 - the scheme is checked above
    try:
        with STRAIGHT.open(request, timeout=HEALTH_TIMEOUT_S) as answer:
            return 0 if answer.status == 200 else 1
    except (OSError, HTTPException) as error:  # HTTPError and URLError are OSErrors
        print(f"frontdoor: {public}/health: {error}", file=sys.stderr)
        return 1


def explain(admin: str | None, model: str, *, as_json: bool) -> int:
    """Print why the engine of a model or upstream is as it is; returns the exit code."""
    return run_command(lambda: _explain(admin, model, as_json=as_json))


def _explain(admin: str | None, model: str, *, as_json: bool) -> int:
    code, told = _call("GET", admin, f"/admin/explain/{quote(model, safe='')}", TIMEOUT_S)
    if code != 200:
        print(f"frontdoor: {_error(told, code)}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(told))
        return 0
    since = "" if told["since_s"] is None else f" for {ago(told['since_s'])}"
    print(f"{told['upstream']} is {told['state']}{since}: {told['what']}")
    for held in told["held_by"]:
        print(f"  {held}")
    if told["blocked_by"]:
        print(f"  {told['blocked_by']}")
    wait_s = told["expected_wait_s"]
    about = f", about {ago(wait_s)}" if wait_s >= 1 else ""
    print(f"  a request now {told['a_request_now']}{about}")
    print(f"  {told['in_flight']} in flight, {told['queued']} queued")
    for happening in told["history"][-10:]:
        print(f"  {happening['time'][:19]}Z  {happening['text']}")
    return 0


def drain(given: Mapping[str, Any]) -> int:
    """Send nobody new to one replica of a model or upstream; returns the exit code."""
    replica, model = (quote(given[name], safe="") for name in ("--replica", "MODEL"))
    path = f"/admin/drain/{model}?replica={replica}{'&undo=true' if given['--undo'] else ''}"
    return run_command(lambda: _drain(given["--admin"], path))


def reload(admin: str | None) -> int:
    """Have the configuration read again; returns the exit code."""
    return run_command(lambda: _reload(admin))


def run_command(command: Callable[[], int]) -> int:
    """Run a command, and say in a line what keeps it from being done."""
    try:
        return command()
    except Unreachable as error:
        print(f"frontdoor: {error}", file=sys.stderr)
        return 1
    except NoAddress as error:
        print(f"frontdoor: {error}", file=sys.stderr)
        return 2


def _status(admin: str | None, *, as_json: bool) -> int:
    code, answer = _call("GET", admin, "/admin/status", TIMEOUT_S)
    if code != 200:
        print(f"frontdoor: {_error(answer, code)}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(answer))
    else:
        for table in status_tables(answer):
            Console().print(table, markup=False, highlight=False)
    return 0


def _drain(admin: str | None, path: str) -> int:
    code, answer = _call("POST", admin, path, TIMEOUT_S)
    if code != 200:
        print(f"frontdoor: {_error(answer, code)}", file=sys.stderr)
        return 1
    for one in answer["replicas"]:
        print(f"{one['url']}: {one['state']}, {one['taken']} of {one['slots']} slots taken")
    return 0


def _reload(admin: str | None) -> int:
    code, answer = _call("POST", admin, "/admin/reload", TIMEOUT_S)
    if code == 200:
        print(*answer["notes"], "the configuration was read again", sep="\n")
        return 0
    print(f"frontdoor: {_error(answer, code)}", file=sys.stderr)
    return 1


def _carry_out(admin: str | None, path: str, model: str) -> int:
    console = Console(stderr=True)
    with console.status(f"{model} …"):  # shown on a terminal only
        code, answer = _call("POST", admin, path, WAIT_S)
    if code in (200, 202):
        print(f"{answer['upstream']}: {answer['state']}")
        return 0
    print(f"frontdoor: {_error(answer, code)}", file=sys.stderr)
    return 1


def operator() -> str:
    """Return who gives an order, as far as the system knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return "an operator"


def post(admin: str | None, path: str) -> Answer:
    """Have something done that does not take long; returns the status and what was answered."""
    return _call("POST", admin, path, TIMEOUT_S)


def told(answer: Any, code: int) -> str:
    """Return what a refused call was told."""
    return _error(answer, code)


def status_tables(answer: Mapping[str, Any]) -> list[Table | str]:
    """Lay out `/admin/status` for a person: upstreams, their replicas, the GPUs, the cluster."""
    gpus, cluster = answer.get("gpus"), answer.get("cluster")
    upstreams = answer["upstreams"]
    several = {key: one["replicas"] for key, one in upstreams.items() if one.get("replicas")}
    return [
        _upstreams_table(answer),
        *([_replicas_table(several)] if several else ()),
        *([gpus_table(gpus)] if gpus else ()),
        *([_cluster_line(cluster)] if cluster else ()),
    ]


def _cluster_line(cluster: Mapping[str, Any]) -> str:
    doors = len(cluster["doors"])
    told = f"cluster: {cluster['role']}, epoch {cluster['epoch']}, {doors} door"
    told += "" if doors == 1 else "s"
    if cluster["outage"]:
        told += f"; an outage: it {'goes on with its share' if cluster['splits'] else 'refuses'}"
    if not cluster["same_limits"]:
        told += "; its limits differ from the owner's, which hold"
    return f"{told}; this one is {cluster['door']}"


def _upstreams_table(answer: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"frontdoor {answer['version']}, up {ago(answer['uptime_s'])}", title_justify="left"
    )
    for column in ("upstream", "state", "in flight", "queued", "idle for", "wakes"):
        table.add_column(column, no_wrap=True)
    table.add_column("models")
    for name, upstream in answer["upstreams"].items():
        state = upstream["state"]
        if upstream["wake_step"]:
            state += f" ({upstream['wake_step']})"
        if orders := upstream.get("orders"):
            state += f", {orders[0]['kind']}"
        table.add_row(
            name,
            state,
            out_of(upstream["in_flight"], upstream["cap"]),
            out_of(upstream["queued"], upstream["queue"]),
            ago(upstream["last_activity_s"]),
            "-" if upstream["sleep_support"] is False else str(upstream["wakes_total"]),
            ", ".join(upstream["models"]),
        )
    return table


def _replicas_table(several: Mapping[str, Any]) -> Table:
    """Lay out each of several engines behind one name; an address may take more than one line."""
    table = Table(title="Replicas", title_justify="left")
    for column in ("upstream", "replica", "state", "slots taken"):
        table.add_column(column, no_wrap=column != "replica", overflow="fold")
    for name, replicas in several.items():
        for one in replicas:
            state = one["state"]
            if one.get("wake_step"):
                state += f" ({one['wake_step']})"
            table.add_row(name, one["url"], state, out_of(one["taken"], one["slots"]))
    return table


def gpus_table(gpus: Mapping[str, Any]) -> Table:
    """Lay out what is in the memory of the GPUs, and what is about to happen there."""
    table = Table(title="GPUs", title_justify="left")
    for column in ("GPU", "taken", "upstream", "GiB", "awake", "next"):
        table.add_column(column, no_wrap=column != "next")
    for device in gpus["devices"]:
        taken = f"{device['taken_gib']:g} of {device['limit_gib']:g} GiB"
        heading = (str(device["device"]), taken)
        for name, one in gpus["engines"].items():
            if device["device"] in one["devices"]:
                what = (name, f"{one['gib']:g}", f"{one['awake_gib']:g}", _next(name, one, gpus))
                table.add_row(*heading, *what)
                heading = ("", "")
        if heading[0]:
            table.add_row(*heading, "nobody", "", "", "")
    return table


def _next(name: str, engine: Mapping[str, Any], gpus: Mapping[str, Any]) -> str:
    """Say what is about to happen to an engine on the GPU, or would if it were asked for."""
    turn = next((turn for turn in gpus["turns"] if turn["upstream"] == name), None)
    if turn is not None:
        waits_for = turn["waits_for"] or "its turn"
        return f"waits {ago(turn['waits_s'])} for {waits_for}"
    if engine["moving"]:
        return "on its way up" if engine["moving"] == "waking" else "falls asleep"
    if engine["room_for"]:
        return f"makes room for {engine['room_for']}"
    if engine["pinned"]:
        return "pinned"
    return f"if asked for: {engine['if_asked']}" if engine["if_asked"] else ""


def out_of(number: int, limit: int | None) -> str:
    """Return a count and its limit, where it has one."""
    return str(number) if limit is None else f"{number} of {limit}"


def ago(seconds: float | None) -> str:
    """Return a duration in its largest sensible unit."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def admin_request(method: str, admin: str | None, path: str) -> Request:
    """Return a call of an admin listener; raises NoAddress."""
    try:
        base = base_given(admin, "--admin", "FRONTDOOR_ADMIN", DEFAULT_ADMIN)
    except ValueError as error:
        raise NoAddress(str(error)) from None
    mark = {"X-Frontdoor-Admin": "cli"}
    request = Request(base + path, method=method, headers=mark)  # noqa: S310 - checked above
    token = os.environ.get("FRONTDOOR_ADMIN_TOKEN")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    return request


def _call(method: str, admin: str | None, path: str, timeout_s: float) -> Answer:
    request = admin_request(method, admin, path)
    base = request.full_url.removesuffix(path)
    try:
        with STRAIGHT.open(request, timeout=timeout_s) as answer:
            return answer.status, _read(answer.read())
    except HTTPError as error:
        with error:
            return error.code, _read(error.read())
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"no front door answers at {base}: {reason}") from error


def error_of(body: bytes, code: int) -> str:
    """Return what a refused call was told."""
    return _error(_read(body), code)


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return {"error": body[:200].decode("utf-8", "replace")}


def _error(answer: Any, code: int) -> str:
    told = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(told, dict):  # as the public listener answers
        told = f"{told.get('message')}: is this the admin listener?"
    return str(told or f"the front door answered with {code}")
