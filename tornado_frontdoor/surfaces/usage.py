"""How many tokens an answer took, read from its last bytes, in whichever dialect it is.

OpenAI's count is `prompt_tokens` and `completion_tokens`, Anthropic's `input_tokens` and
`output_tokens`. A stream has one only where the client, or the translation, asked for it.
"""

import re

TAIL_BYTES = 8192

_LONGEST_KIND_BYTES = len(b'"completion')
_COUNT = re.compile(rb'"(prompt|input|completion|output)_tokens"\s*:\s*(\d{1,12})')


def tokens_of(tail: bytes) -> tuple[int | None, int | None]:
    """Return the tokens of prompt and answer, as far as the tail tells; the last count holds."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    tail = tail[-TAIL_BYTES:]
    first = tail.find(b'_tokens"')  # where there is none, as in most streams, it is a quick look
    if first < 0:
        return None, None
    for kind, count in _COUNT.findall(tail, max(0, first - _LONGEST_KIND_BYTES)):
        if kind in (b"prompt", b"input"):
            tokens_in = int(count)
        else:
            tokens_out = int(count)
    return tokens_in, tokens_out
