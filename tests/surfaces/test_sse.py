"""The reader of event streams: whole frames from bytes in any pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.surfaces.sse import Frame, FrameTooLongError, Reader


def read(*chunks: bytes) -> list[Frame]:
    reader = Reader()
    frames = [frame for chunk in chunks for frame in reader.feed(chunk)]
    return frames + reader.close()


def in_pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize(
    ("stream", "frames"),
    [
        (b"data: {}\n\n", [(None, "{}")]),
        (b"data:{}\n\n", [(None, "{}")]),
        (b"data:  two\n\n", [(None, " two")]),
        (b"data: a\r\n\r\n", [(None, "a")]),
        (b"data: a\r\r", [(None, "a")]),
        (b"data: a\r\n\ndata: b\r\r\n", [(None, "a"), (None, "b")]),
        (b"data: a\ndata: b\n\n", [(None, "a\nb")]),
        (b"data: a\ndata\ndata:\n\n", [(None, "a\n\n")]),
        (b"data:\n\n", [(None, "")]),
        (b"event: ping\ndata: {}\n\ndata: b\n\n", [("ping", "{}"), (None, "b")]),
        (b"event:x\nevent: y\ndata: a\n\n", [("y", "a")]),
        (b"event: lonely\n\ndata: a\n\n", [(None, "a")]),
        (b": OPENROUTER PROCESSING\n\ndata: a\n\n", [(None, "a")]),
        (b"data: a\n: comment\n:\ndata: b\n\n", [(None, "a\nb")]),
        (b"id: 1\nretry: 5\nnonsense\ndatax: 1\ndata: a\n\n", [(None, "a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(None, "a")]),
        (b"data: \xef\xbb\xbfa\n\n", [(None, "\ufeffa")]),
        (b"\n\n\ndata: a\n\n\n\n", [(None, "a")]),
        (b"data: a", [(None, "a")]),
        (b"data: a\n", [(None, "a")]),
        (b"data: a\r", [(None, "a")]),
        (b"event: x\n", []),
        (b": only a comment", []),
        (b"", []),
        (b"data: \xff\n\n", [(None, "\ufffd")]),
        ("data: a\u2028b\u0085c\x0bd\x0ce\n\n".encode(), [(None, "a\u2028b\u0085c\x0bd\x0ce")]),
        (
            b"data: one\n\ndata: two\n\ndata: [DONE]\n\n",
            [(None, d) for d in ("one", "two", "[DONE]")],
        ),
    ],
)
def test_frames_are_read_alike_however_the_stream_is_cut(
    stream: bytes, frames: list[tuple[str | None, str]]
) -> None:
    expected = [Frame(*frame) for frame in frames]
    assert read(stream) == expected
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == expected
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == expected


@given(
    st.lists(
        st.sampled_from(["a", "渐🙂é", "data: ", "data:", "event: e", ":", " ", "id", "\ufeff"])
    ),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.sampled_from([1, 1, 2])),
    st.lists(st.integers(min_value=0), max_size=12),
)
def test_any_cut_of_any_stream_gives_the_frames_of_the_whole(
    words: list[str], newline: str, breaks: list[int], cuts: list[int]
) -> None:
    text = ""
    for number, word in enumerate(words):
        text += word + newline * (breaks[number] if number < len(breaks) else number % 3)
    stream = text.encode()
    assert read(*in_pieces(stream, cuts)) == read(stream)


@given(st.binary(max_size=60), st.lists(st.integers(min_value=0), max_size=8))
def test_no_bytes_at_all_upset_the_reader(stream: bytes, cuts: list[int]) -> None:
    assert read(*in_pieces(stream, cuts)) == read(stream)


def test_frame_is_given_out_with_its_last_byte_and_not_one_later() -> None:
    reader = Reader()
    assert reader.feed(b"data: a\r\n\r") == [Frame(None, "a")]
    assert reader.feed(b"\ndata: b\n") == []
    assert reader.feed(b"\n") == [Frame(None, "b")]


def test_line_of_just_the_limit_is_read_at_the_end_of_the_stream() -> None:
    reader = Reader(limit_bytes=20)
    assert reader.feed(b"data: 12345678901234") == []
    assert reader.close() == [Frame(None, "12345678901234")]


def test_end_comes_only_once() -> None:
    reader = Reader()
    assert reader.feed(b"data: a\n") == []
    assert reader.close() == [Frame(None, "a")]
    assert reader.close() == []


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: 12345678901234567\n\n"],
        [b"data: 12345", b"678901234567890"],
        [b"data: 1234\n"] * 3,
        [b": 1234567890123456789012"],
        [b": 1234567890123456789012\n"],
    ],
)
def test_frame_above_the_limit_is_an_error_and_not_a_growing_buffer(chunks: list[bytes]) -> None:
    reader = Reader(limit_bytes=20)
    for chunk in chunks[:-1]:
        reader.feed(chunk)
    with pytest.raises(FrameTooLongError):
        reader.feed(chunks[-1])


def test_limit_is_for_one_frame_and_not_for_the_stream() -> None:
    reader = Reader(limit_bytes=24)
    for _ in range(50):
        for piece in (b"data: 1", b"2\ndata:", b"3\r", b"\n: comm", b"ent\n\r\n"):
            frames = reader.feed(piece)
    assert frames == [Frame(None, "12\n3")]


def test_long_line_in_small_pieces_is_read_in_linear_time() -> None:
    reader = Reader()
    piece = b"x" * 16
    reader.feed(b"data: ")
    for _ in range(200_000):  # quadratic copying would move 300 GB here
        reader.feed(piece)
    [frame] = reader.feed(b"\n\n")
    assert len(frame.data) == 200_000 * 16
