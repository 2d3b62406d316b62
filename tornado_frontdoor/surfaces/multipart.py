"""Multipart bodies: the few small fields that matter here; of everything else only where it ends.

A form can be written so that two servers read two different ones. What could be read in two ways is
refused: two boundaries, a delimiter that is none, a part's name in an unusual spelling, and a field
that decides something (`model`, `n`, `best_of`) given twice, of which engines take the last.
"""

import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.bodies import Span, spliced
from tornado_frontdoor.surfaces.patient_json import find_in_steps

FIELD_LIMIT_BYTES = 1024
"""A model's name is short; a longer field of that name is not one."""
_HEAD_LIMIT_BYTES = 8 * 1024
MOST_PARTS = 1000

_BOUNDARY = re.compile(r'("?)([0-9A-Za-z\'()+_,./:=?-]{1,70})\1')
_QUOTED = rb'"(?:[^"\\]|\\.)*"'
_PARAMETER = re.compile(
    rb"\s*;\s*(?:(name)=(?:\"([^\"\\]*)\"|([^\s;\"\\]+))|filename\*?=(?:%b|[^\s;\"]+))\s*"
    % _QUOTED,
    re.IGNORECASE | re.DOTALL,
)


class Part(NamedTuple):
    """A part of a body: its name, where it begins with its delimiter, and where its value is."""

    name: str
    start: int
    value: Span
    is_file: bool


class Form(NamedTuple):
    """The fields that were looked for, each at most once, and where they stand in the body."""

    values: dict[str, str]
    spans: dict[str, Span]
    whole: list[Span]
    """Whole parts, delimiters and all, of the fields that are to be left out."""


def read_multipart(
    content_type: str, body: bytes, wanted: Collection[str], unwanted: Collection[str] = ()
) -> Form:
    """Find the fields named in `wanted` and `unwanted`; raises Refused for a doubtful form."""
    form = Form({}, {}, [])
    seen: set[str] = set()
    parts = list(islice(_parts(b"--" + _boundary(content_type), body), MOST_PARTS + 1))
    if len(parts) > MOST_PARTS:
        raise _refused(f"The multipart body has more than {MOST_PARTS} parts")
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        end = part.value[1] + 2 if following is None else following.start
        if part.name in unwanted:
            form.whole.append((part.start, end))
            form.values[part.name] = ""
        if part.name in wanted and part.name in seen:
            raise _refused(f"{part.name} is given twice", part.name)
        seen.add(part.name)
        if part.is_file or part.name not in wanted:
            continue
        start, end = part.value
        if end - start > FIELD_LIMIT_BYTES:
            raise _refused(f"The {part.name} field is too long", part.name)
        form.values[part.name] = body[start:end].decode("utf-8", "replace").strip()
        form.spans[part.name] = part.value
    return form


def rewritten(body: bytes, form: Form, model: str | None) -> bytes:
    """Return the body with `model` as its model (None: unchanged), without unwanted parts."""
    changes = [(span, b"") for span in form.whole]
    if model is not None and "model" in form.spans:
        changes.append((form.spans["model"], model.encode()))
    return spliced(body, sorted(changes))


def _parts(delimiter: bytes, body: bytes) -> Iterator[Part]:
    """Step from delimiter to delimiter."""
    at = 0 if body.startswith(delimiter) else find_in_steps(body, b"\r\n" + delimiter, 0) + 2
    if at == 1:
        raise _refused("The multipart body does not hold its boundary")
    while True:
        start = at + len(delimiter)
        if body.startswith(b"--", start):
            return
        if not body.startswith(b"\r\n", start):
            raise _refused("The multipart body has a delimiter with more behind it")
        end = find_in_steps(body, b"\r\n" + delimiter, start)
        if end < 0:
            raise _refused("The multipart body ends within a part")
        head_end = body.find(b"\r\n\r\n", start, min(end, start + _HEAD_LIMIT_BYTES))
        if head_end < 0:
            raise _refused("A part of the multipart body has no head")
        name, is_file = _named(body[start + 2 : head_end])
        yield Part(name, at, (head_end + 4, end), is_file)
        at = end + 2


def _boundary(content_type: str) -> bytes:
    parameters = [piece.strip().partition("=") for piece in content_type.split(";")[1:]]
    named = [(name.strip().lower(), value.strip()) for name, _, value in parameters]
    found = [value for name, value in named if name.startswith("boundary")]
    plain = None
    if len(found) == 1 and ("boundary", found[0]) in named:
        plain = _BOUNDARY.fullmatch(found[0])
    if plain is None:
        raise _refused("The multipart Content-Type must name one boundary, in plain characters")
    return plain[2].encode()


def _named(head: bytes) -> tuple[str, bool]:
    """Return a part's name and whether it is a file; raises Refused where that is in doubt."""
    found: list[bytes] = []
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or name != name.strip() or b"\n" in line or b"\r" in line:
            raise _refused("A part of the multipart body has a head that is none")
        if name.lower() == b"content-disposition":
            found.append(value.strip())
    if len(found) != 1 or found[0][:9].lower() != b"form-data":
        raise _refused("A part of the multipart body has no Content-Disposition of its own")
    names, is_file, at = [], False, len(b"form-data")
    while at < len(found[0]):
        parameter = _PARAMETER.match(found[0], at)
        if parameter is None:
            raise _refused("A part of the multipart body has a name in an unusual spelling")
        if parameter[1]:
            names.append(parameter[2] if parameter[2] is not None else parameter[3])
        else:
            is_file = True
        at = parameter.end()
    if len(names) != 1:
        raise _refused("A part of the multipart body must have one name")
    return names[0].decode("utf-8", "replace"), is_file


def _refused(detail: str, param: str | None = None) -> Refused:
    return Refused(Reason.BAD_REQUEST, detail, param)
