"""Chunked framing: what is a whole chunk, and where one begins; whatever else is left alone."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tornado_frontdoor.surfaces.chunked import chunks_in, is_one_chunk, piece_of, whole_chunks
from tornado_frontdoor.surfaces.last_pieces import LastPieces

EDGES = (1, 2, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 65535)
PIECES = st.binary(min_size=1, max_size=300) | st.sampled_from(
    [b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"data: [DONE]\n\n", b"x" * 4096]
)
OTHERS = (
    b"0\r\n\r\n",
    b"0\r\nA: b\r\n\r\n",
    b"05\r\nhello\r\n",
    b"5;x=y\r\nhello\r\n",
    b"5 \r\nhello\r\n",
    b" 5\r\nhello\r\n",
    b"+5\r\nhello\r\n",
    b"0x5\r\nhello\r\n",
    b"5\nhello\r\n",
    b"5\r\nhello\n\n",
    b"5\r\nhell\r\n\r\n",
    b"\r\n",
    b"-1\r\n\r\n",
    b"hello",
    b"data: x\n\n",
    b"100000\r\n",
)


def framed(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


@pytest.mark.parametrize("size", EDGES)
def test_a_chunk_is_one_chunk_and_none_of_its_parts_is(size: int) -> None:
    chunk = framed(b"y" * size)
    assert is_one_chunk(chunk)
    assert piece_of(chunk) == b"y" * size
    for cut in {*range(min(len(chunk), 12)), len(chunk) - 2, len(chunk) - 1}:
        assert not is_one_chunk(chunk[:cut])
        assert chunks_in(chunk[:cut]) == ([], 0)
    assert not is_one_chunk(chunk + b"1")


def test_a_chunk_of_64_kib_is_not_the_one_that_is_told_by_its_length() -> None:
    chunk = framed(b"y" * 65536)
    assert not is_one_chunk(chunk)
    assert chunks_in(chunk) == ([chunk], len(chunk))


@pytest.mark.parametrize("raw", OTHERS)
def test_another_form_of_framing_is_left_to_a_real_reader(raw: bytes) -> None:
    assert not is_one_chunk(raw)
    assert chunks_in(raw) is None
    assert chunks_in(framed(b"before") + raw) is None
    assert not whole_chunks(framed(b"before") + raw)


def test_sizes_in_capital_letters_are_read_and_are_not_the_usual_chunk() -> None:
    raw = b"1A\r\n" + b"z" * 26 + b"\r\n"
    assert not is_one_chunk(raw)
    assert chunks_in(raw) == ([raw], len(raw))


@given(pieces=st.lists(PIECES, max_size=6), cut=st.integers(min_value=0))
def test_what_is_cut_anywhere_is_whole_chunks_and_the_beginning_of_one(
    pieces: list[bytes], cut: int
) -> None:
    chunks = [framed(piece) for piece in pieces]
    raw = b"".join(chunks)
    head = raw[: cut % (len(raw) + 1)]
    found = chunks_in(head)
    assert found is not None
    whole, end = found
    assert whole == whole_chunks(head) == chunks[: len(whole)]
    assert [piece_of(chunk) for chunk in whole] == pieces[: len(whole)]
    assert end == sum(map(len, chunks[: len(whole)]))
    assert len(head) - end < len(raw[end:]) or head == raw
    assert is_one_chunk(raw) == (len(pieces) == 1 and len(pieces[0]) < 65536)


@given(raw=st.binary(max_size=24) | st.sampled_from(OTHERS))
def test_a_single_chunk_is_never_anything_else_to_the_longer_look(raw: bytes) -> None:
    if is_one_chunk(raw):
        assert chunks_in(raw) == ([raw], len(raw))


@given(
    came=st.lists(
        st.tuples(st.booleans(), st.integers(1, 9) | st.integers(60, 80) | st.just(300)),
        max_size=14,
    ),
    looks=st.sets(st.integers(0, 14)),
)
@example(came=[(False, 5), *[(True, 300)] * 5], looks=set())
def test_the_last_pieces_are_the_same_whether_they_came_in_chunks_or_not(
    came: list[tuple[bool, int]], looks: set[int]
) -> None:
    plain, mixed = LastPieces(), LastPieces()
    for number, (in_chunk, size) in enumerate(came):
        piece = bytes([65 + number]) * size
        plain.add(piece)
        if in_chunk:
            mixed.add_chunk(framed(piece))
        else:
            mixed.add(piece)
        if number in looks:
            assert mixed.pieces == plain.pieces
    assert mixed.is_all == plain.is_all
    assert mixed.pieces == plain.pieces
    assert mixed.shown() == plain.shown()
