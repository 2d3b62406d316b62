"""What each call under `/admin/` may be told in its query; all else is refused, by name.

A name that is not known, or a value that is not there (`?for=$UNSET`), would be an order to all, or
for good; and who asks for less than all of a status should know that it is all. Not so `/metrics`,
`/health` and the page: what scrapes, looks and browses adds words of its own (Prometheus' `params`,
a word against caches), which change nothing, and no monitoring may end by them.
"""

from collections import Counter
from collections.abc import Mapping
from urllib.parse import parse_qsl

from tornado_frontdoor.core.printable import quoted

KNOWN: Mapping[str, tuple[str, ...]] = {
    "wake": ("by", "replica", "wait"),
    "sleep": ("by", "for", "level", "replica", "until"),
    "drain": ("replica", "undo"),
    "believe": ("replica",),
    "what-if": ("cap", "queue", "timeout_s"),
    "pin": ("by", "for", "replica", "until"),
    "unpin": ("by", "replica"),
    "keep": ("by", "for", "replica", "until"),
    "status": (),
    "events": (),
    "explain": (),
    "reload": (),
}
_YES_OR_NO = ("undo", "wait")


def wrong(path: str, query: str) -> str:
    """Return what is wrong with the query of a call that is there; empty: nothing."""
    verb = path.removeprefix("/admin/").partition("/")[0]
    known = KNOWN.get(verb) if path.startswith("/admin/") else None
    if known is None:
        return ""
    asked = parse_qsl(query, keep_blank_values=True)
    counts = Counter(name for name, _ in asked)
    there_are = f"it has {', '.join(known)}" if known else "it takes none"
    for name, value in asked:
        if name not in known:
            return f"{verb} has no parameter {quoted(name)}; {there_are}"
        if counts[name] > 1:
            return f"{quoted(name)} is given twice"
        if not value.strip():
            return f"{quoted(name)} has no value; {verb} takes {', '.join(known)}"
        if name in _YES_OR_NO and value not in ("true", "false"):
            return f"{name} must be true or false, not {quoted(value)}"
    return ""
