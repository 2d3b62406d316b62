"""What each `POST /admin/VERB/X` may be told in its query; all else is refused, by name.

A name that is not known, or a value that is not there (`?for=$UNSET`), would be an order to all, or
for good.
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
}
_YES_OR_NO = ("undo", "wait")


class Refused(Exception):  # noqa: N818 - said to an operator as it stands
    """A query says what cannot be meant; the message says why."""


def read(verb: str, query: str) -> dict[str, str]:
    """Read the query of a verb; raises Refused."""
    asked = parse_qsl(query, keep_blank_values=True)
    counts = Counter(name for name, _ in asked)
    known = KNOWN[verb]
    for name, value in asked:
        if name not in known:
            raise Refused(f"{verb} has no parameter {quoted(name)}; it has {', '.join(known)}")
        if counts[name] > 1:
            raise Refused(f"{quoted(name)} is given twice")
        if not value.strip():
            raise Refused(f"{quoted(name)} has no value; {verb} takes {', '.join(known)}")
        if name in _YES_OR_NO and value not in ("true", "false"):
            raise Refused(f"{name} must be true or false, not {quoted(value)}")
    return dict(asked)
