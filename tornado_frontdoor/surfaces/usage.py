"""How many tokens an answer took, read from its last bytes, in whichever dialect it is.

OpenAI's count is `prompt_tokens` and `completion_tokens`, Anthropic's `input_tokens` and
`output_tokens`. A stream has one only where the client, or the translation, asked for it.
"""

import re

TAIL_PIECES = 4
"""Pieces of an answer that are kept for it: the count comes with the last events of a stream."""
TAIL_BYTES = 8192

_COUNT = re.compile(rb'"(prompt|input|completion|output)_tokens"\s*:\s*(\d{1,12})')


def tokens_of(tail: bytes) -> tuple[int | None, int | None]:
    """Return the tokens of prompt and answer, as far as the tail tells; the last count holds."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    for kind, count in _COUNT.findall(tail[-TAIL_BYTES:]):
        if kind in (b"prompt", b"input"):
            tokens_in = int(count)
        else:
            tokens_out = int(count)
    return tokens_in, tokens_out
