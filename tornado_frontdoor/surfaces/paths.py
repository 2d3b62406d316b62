"""Request targets: one spelling of a path, or none.

An engine's dangerous routes lie beside its public ones, so an allow-list is only as good as the
path it looks at. Nothing is repaired here: a target is either in normal form already (then its path
is returned as it stands, for the exact allow-list of a surface) or it is none of ours. Refused are
percent-encoding, dot segments, empty segments, backslashes, `;` parameters, fragments, controls and
everything that is not ASCII, in the path; a different case or a trailing slash is left to the
allow-list, which has neither.

The one exception is the model's id below `.../models/`: it may have slashes, plain or as `%2F`, and
other encoded characters. It is returned encoded; whoever reads it decodes it once.
"""

import re
from urllib.parse import unquote

_TAKES_MODEL = re.compile(r"(?:/[a-z0-9]+)*?/models/")
"""Of any dialect: whether it has such a path at all, its allow-list says."""

_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_VISIBLE = re.compile(r"[!-~]+")
# RFC 3986 pchar without percent-encoding and without `;`, which some servers cut a path at.
_NORMAL = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~!$&'()*+,=:@-]+)*/?")
_ENCODED = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,=:@/-]|%[0-9A-Fa-f]{2})+")


def normalise(raw_target: str) -> tuple[str, str] | None:
    """Return path and query of a request target in normal form; None: not found.

    Takes the origin form (`/v1/models?limit=1`) and the absolute form (`http://host/v1/models`).
    """
    if not _VISIBLE.fullmatch(raw_target) or "#" in raw_target:
        return None
    if not raw_target.startswith("/"):
        absolute = _ABSOLUTE.match(raw_target)
        if absolute is None:
            return None
        raw_target = raw_target[absolute.end() :]
    path, _, query = raw_target.partition("?")
    if path and _NORMAL.fullmatch(path):
        return path, query
    prefix = _TAKES_MODEL.match(path)
    if prefix is not None and _names_model(path[prefix.end() :]):
        return path, query
    return None


def _names_model(encoded: str) -> bool:
    """Tell whether the rest of a path can be a model's id once it is decoded."""
    if not _ENCODED.fullmatch(encoded):
        return False
    try:
        model = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        return False
    if "%" in model or "\\" in model or not model.isprintable():
        return False
    return not any(segment in ("", ".", "..") for segment in model.split("/"))


_HINTS = (
    (
        re.compile(r"/(llm|anthropic)(/.*)?/(chat/completions|completions|embeddings|responses)"),
        "OpenAI clients: the base URL ends in /v1, without /llm",
    ),
    (
        re.compile(r"(/openai|/api)?/(chat/completions|completions|embeddings|models|responses)"),
        "OpenAI clients: the base URL ends in /v1",
    ),
    (re.compile(r"/v1(/v1)+(/.*)?"), "OpenAI clients: the base URL ends in one /v1"),
    (
        re.compile(r"(/.*)?/(messages|messages/count_tokens)|/anthropic(/.*)?|/llm/llm(/.*)?"),
        "Anthropic clients: the base URL is /llm",
    ),
)


def hint(path: str) -> str:
    """Return what a caller at a wrong path has probably set wrongly, or the empty string."""
    return next((text for pattern, text in _HINTS if pattern.fullmatch(path)), "")
