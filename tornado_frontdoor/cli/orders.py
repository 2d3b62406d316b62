"""`pin`, `keep`, `unpin` and `sleep` with an end: orders that hold for a while."""

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from tornado_frontdoor.cli import admin_client
from tornado_frontdoor.surfaces.keep_alive import duration_s


def run(given: Mapping[str, Any]) -> int:
    """Carry out one of the commands; returns the exit code."""
    verb = next(name for name in ("pin", "keep", "unpin", "sleep") if given[name])
    query = {"by": admin_client.operator()}
    try:
        lasts = given["--for"] if given["DURATION"] is None else given["DURATION"]
        if verb != "unpin" and lasts is not None:
            query["for"] = _ahead(lasts)
        elif verb != "unpin" and given["--until"] is not None:
            query["until"] = _instant(given["--until"], datetime.now().astimezone())
    except ValueError as error:
        print(f"frontdoor {verb}: the time {error}", file=sys.stderr)
        return 2
    if given["--replica"] is not None:
        query["replica"] = given["--replica"]
    if given["--level"] is not None:
        query["level"] = given["--level"]
    path = f"/admin/{verb}/{quote(given['MODEL'], safe='')}?{urlencode(query)}"
    return admin_client.run_command(lambda: _order(given["--admin"], path))


def _order(admin: str | None, path: str) -> int:
    code, answer = admin_client.post(admin, path)
    if code != 200:
        print(f"frontdoor: {admin_client.told(answer, code)}", file=sys.stderr)
        return 1
    print(f"{answer['upstream']}: {answer['state']}")
    for one in answer["orders"]:
        by = f" ({one['by']})" if one["by"] else ""
        ends = f" until {one['until']}" if one["until"] else ""
        where = f" at {one['replica']}" if "replica" in one else ""
        print(f"  {one['kind']}{where} by {one['owner']}{by}{ends}")
    return 0


def _ahead(lasts: str) -> str:
    """Return a time for how long; raises ValueError for one that would be over at once."""
    if duration_s(lasts) <= 0:
        raise ValueError(f"must be above 0, not {lasts}")
    return lasts


def _instant(text: str, now: datetime) -> str:
    """Return when that is, with its time zone; what has none is meant here. Raises ValueError."""
    try:
        if len(text) == len("18:00"):
            clock = datetime.strptime(text, "%H:%M").time()  # noqa: DTZ007 - a time of day
            shown = datetime.combine(now.date(), clock)
            if shown <= now.replace(tzinfo=None):
                shown += timedelta(days=1)
        else:
            shown = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} must be of the form 18:00 or 2026-12-01T08:00") from error
    return shown.astimezone().isoformat()
