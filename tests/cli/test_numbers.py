"""Numbers and addresses of the command line that are out of range: a line, exit 2, no traceback."""

import pytest

from tornado_frontdoor.cli.main import main

STAND_IN = [
    ("--port", "99999", "port must be from 0 to 65535, not 99999"),
    ("--port", "65536", "port must be from 0 to 65535, not 65536"),
    ("--port", "-1", "port must be from 0 to 65535, not -1"),
    ("--port", "x", "--port must be a number, not 'x'"),
    ("--slots", "0", "slots must be from 1 to"),
    ("--slots", "1" + "0" * 30, "slots must be from 1 to"),
    ("--tokens", "-1", "tokens must be from 0 to"),
    ("--gap-ms", "nan", "gap_ms must be from 0 to"),
    ("--gap-ms", "inf", "gap_ms must be from 0 to"),
    ("--notice-ms", "-0.5", "notice_ms must be from 0 to"),
    ("--notice-ms", "1e400", "notice_ms must be from 0 to"),
    ("--hold", "1e400", "'1e400' is "),
    ("--hold", "nan", "'nan' is not seconds"),
]


def fault(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a wrong command line is answered with."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.mark.parametrize(("option", "value", "says"), STAND_IN)
def test_a_number_that_no_stand_in_can_have_is_told(
    capsys: pytest.CaptureFixture[str], option: str, value: str, says: str
) -> None:
    port = () if option == "--port" else ("--port", "0")
    assert says in fault(capsys, "stand-in", *port, option, value)


@pytest.mark.parametrize("url", ["http://h:99999", "http://h:-1", "http://h:x", "http://h:0"])
@pytest.mark.parametrize(
    "command",
    [
        *("status --admin", "top --admin", "tail --admin", "reload --admin", "explain m --admin"),
        *("wake m --admin", "pin m --admin", "drain m --replica http://h --admin"),
        *("health", "ask m t --url", "init", "calibrate --probe"),
    ],
)
def test_an_address_with_a_port_that_is_none_is_told(
    capsys: pytest.CaptureFixture[str], command: str, url: str
) -> None:
    assert "a port from 1 to 65535" in fault(capsys, *command.split(), url)


@pytest.mark.parametrize("url", ["http://[::1", "http://", "ftp://h", "h:80", ""])
@pytest.mark.parametrize("command", ["status --admin", "health", "ask m t --url"])
def test_an_address_that_is_none_is_told(
    capsys: pytest.CaptureFixture[str], command: str, url: str
) -> None:
    assert f": {url or 'empty'}: " in fault(capsys, *command.split(), url)


def test_an_address_of_the_environment_is_named_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRONTDOOR_ADMIN", "http://h:99999")
    monkeypatch.setenv("FRONTDOOR_URL", "http://h:99999")
    assert "$FRONTDOOR_ADMIN: http://h:99999: must have a port" in fault(capsys, "status")
    assert "$FRONTDOOR_URL: http://h:99999: must have a port" in fault(capsys, "ask", "m", "t")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("serve --listen 127.0.0.1:99999", "a port from 0 to 65535"),
        ("demo --admin-listen 127.0.0.1:-1", "a port from 0 to 65535"),
        ("sleep m --level 4", "--level must be 1, 2 or 3, not 4"),
        ("pin m --for -5m", "must be above 0, not -5m"),
        ("pin m --for 0", "must be above 0, not 0"),
        ("keep m -1", "must be above 0, not -1"),
        ("simulate --cap 1 --queue 0 --jobs 0", "--jobs: must be at least 1, not 0"),
        ("simulate --cap 1 --queue 0 --jobs 5000", "--jobs: must be at most 1024, not 5000"),
        ("sweep --cap 1 --queue 0 --timeout 1 --jobs -1", "--jobs: must be at least 1, not -1"),
        ("calibrate --probe http://h:1 --seconds nan", "--seconds: 'nan' is not a finite number"),
        ("calibrate --probe http://h:1 --seconds 0", "--seconds: must be above 0, not 0"),
        ("calibrate --probe http://h:1 --seconds x", "--seconds: 'x' is not a number"),
    ],
)
def test_any_other_number_out_of_range_is_told(
    capsys: pytest.CaptureFixture[str], arguments: str, says: str
) -> None:
    assert says in fault(capsys, *arguments.split())
