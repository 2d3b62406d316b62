"""What is wrong is said with its key, all of it at once, in the file's order."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tornado_frontdoor.config import ConfigError, ConfigFault, load

Write = Callable[[str], Path]
Faults = Callable[[str], list[str]]

GPU = "[gpu]\nmemory_gib = 80\n[upstreams.text.gpu]\nutilization = 0.5\n"

# What is replaced in the good file, by what, and the one fault that must come of it.
SPOILED: dict[str, dict[str, str]] = {
    'listen = "127.0.0.1:8080"': {
        "listen = 8080": (
            "server.listen: must be a text of the form HOST:PORT or [IPV6]:PORT, not 8080"
        ),
        'listen = "8080"': "server.listen: must be HOST:PORT, and the port is missing",
        'listen = ":8080"': (
            "server.listen: must name a host; 0.0.0.0 stands for every address of this machine"
        ),
        'listen = "::1:8080"': "server.listen: must have an IPv6 address in brackets: [::1]:8080",
        'listen = "h:99999"': "server.listen: must have a port from 0 to 65535, not '99999'",
        'listen = "127.0.0.1:8010"': (
            "server.admin_listen: must not be the public listener too (127.0.0.1:8010)"
        ),
        'admin_listen = "0.0.0.0:8010"': (
            "server.admin_listen: must be a loopback address unless server.admin_token_file is "
            "set, not 0.0.0.0:8010"
        ),
        'admin_token_file = "absent"': (
            "server.admin_token_file: absent cannot be read: No such file or directory"
        ),
        'state_dir = "~/var"': "server.state_dir: must be written out: ~ is not expanded",
        'state_dir = ""': "server.state_dir: must have 1 to 1000 characters, not 0",
        "lisen = 1": 'server.lisen: is unknown; did you mean "listen"?',
        "_schema = 1": "server._schema: is unknown",
        "max_body_mib = true": (
            "server.max_body_mib: must be a whole number from 1 to 65536, not true"
        ),
        "max_body_mib = 1.5": (
            "server.max_body_mib: must be a whole number from 1 to 65536, not 1.5"
        ),
        "max_body_mib = 0": "server.max_body_mib: must be a whole number from 1 to 65536, not 0",
        "drain_timeout_s = nan": (
            "server.drain_timeout_s: must be a number from 0 to 31536000, not nan"
        ),
        "drain_timeout_s = inf": (
            "server.drain_timeout_s: must be a number from 0 to 31536000, not inf"
        ),
        "drain_timeout_s = true": (
            "server.drain_timeout_s: must be a number from 0 to 31536000, not true"
        ),
        'drain_timeout_s = "30"': (
            'server.drain_timeout_s: must be a number from 0 to 31536000, not "30"'
        ),
        "write_stall_timeout_s = 0": (
            "server.write_stall_timeout_s: must be a number above 0 and at most 31536000, not 0"
        ),
    },
    "[routes]": {
        "[surfaces]\nopenai = 1\n[routes]": "surfaces.openai: must be true or false, not 1",
        "[surfaces]\nopenai = false\nanthropic = false\n[routes]": (
            "surfaces: must serve at least one of openai and anthropic"
        ),
        "[surfaces]\nanthropic_overloaded_status = 500\n[routes]": (
            "surfaces.anthropic_overloaded_status: must be 529 or 503, not 500"
        ),
        "[surface]\nopenai = false\n[routes]": 'surface: is unknown; did you mean "surfaces"?',
    },
    'url = "http://engine-a:8000"': {
        "": "upstreams.reasoning.url: is required and has no default",
        'url = "engine-a:8000"': (
            "upstreams.reasoning.url: must be http://HOST:PORT or https://HOST:PORT"
        ),
        'url = "ftp://engine-a"': (
            "upstreams.reasoning.url: must be http://HOST:PORT or https://HOST:PORT"
        ),
        'url = "http://engine-a:8000/v1"': (
            "upstreams.reasoning.url: must not have /v1 at its end: requests bring their own /v1"
        ),
        'url = "http://engine-a:8000?"': (
            "upstreams.reasoning.url: must not have a query or a fragment: write only scheme, "
            "host and port"
        ),
        'url = "http://u:p@engine-a"': (
            "upstreams.reasoning.url: must not hold credentials: write only scheme, host and port"
        ),
        'url = "http://engine-a:0"': (
            "upstreams.reasoning.url: must have a port from 1 to 65535, not '0'"
        ),
        'url = "http://engine a"': (
            "upstreams.reasoning.url: must name a host, and 'engine a' is none"
        ),
        'url = "http://127.0.0.1:8080"': (
            "upstreams.reasoning.url: is the front door's own server.listen (127.0.0.1:8080)"
        ),
    },
    'url = "http://engine-b:8000"': {
        'url = "HTTP://Engine-A:8000/"': (
            "upstreams.text.url: is the address of upstreams.reasoning too: one address, one table"
        ),
    },
    "cap = 6": {
        "cap = 8": (
            "upstreams.reasoning.admission.cap: must be below slots (8), not 8: a full engine "
            "queues where nobody sees it"
        ),
        "cap = 0": (
            "upstreams.reasoning.admission.cap: must be a whole number from 1 to 100000, not 0"
        ),
        "": "upstreams.reasoning.admission.cap: is required and has no default",
        "cap = 6\nqueu = 8": (
            'upstreams.reasoning.admission.queu: is unknown; did you mean "queue"?'
        ),
    },
    "slots = 8\n": {
        "": "upstreams.reasoning.admission.slots: is required and has no default",
    },
    "queue = 8\n": {
        "": "upstreams.reasoning.admission.queue: is required and has no default",
        "queue = -1\n": (
            "upstreams.reasoning.admission.queue: must be a whole number from 0 to 100000, not -1"
        ),
    },
    "queue_timeout_s = 30": {
        "queue_timeout_s = 30\nreturn_places = 9": (
            "upstreams.reasoning.admission.return_places: must be at most queue (8), not 9"
        ),
        "": "upstreams.reasoning.admission.queue_timeout_s: is required and has no default",
        "queue_timeout_s = 0": (
            "upstreams.reasoning.admission.queue_timeout_s: must be a number above 0 and at "
            "most 31536000, not 0"
        ),
    },
    "[upstreams.text]\n": {
        "[upstreams.text]\ncap = 3\n": (
            'upstreams.text.cap: is unknown; did you mean "admission.cap"?'
        ),
        "[upstreams.text]\nadmission = 3\n": "upstreams.text.admission: must be a table",
        '[upstreams.text]\nanthropic = "nativ"\n': (
            'upstreams.text.anthropic: must be "translate" or "native", not "nativ"; did you '
            'mean "native"?'
        ),
        '[upstreams."a b"]\nurl = "http://c"\n[upstreams.text]\n': (
            'upstreams."a b": its name must be 1 to 64 letters, digits, dots, dashes or '
            'underscores, the first a letter or digit, not "a b"'
        ),
        '[upstreams.".."]\nurl = "http://c"\n[upstreams.text]\n': (
            'upstreams."..": its name must be 1 to 64 letters, digits, dots, dashes or '
            'underscores, the first a letter or digit, not ".."'
        ),
        "[upstreams.value]\n[upstreams.text]\n": (
            "upstreams.value.url: is required and has no default"
        ),
    },
    "max_waiting = 64": {
        "": "upstreams.text.sleep.max_waiting: is required where there is no admission table",
        "max_waiting = 64\nidle_offload_s = 60": (
            "upstreams.text.sleep.idle_offload_s: must not be below idle_sleep_s (900), not "
            "60; 0 means never"
        ),
        "max_waiting = 64\nhold_sleeping_s = 0": (
            "upstreams.text.sleep.hold_sleeping_s: must be a number above 0 and at most "
            "31536000, not 0"
        ),
    },
    "[models.reasoning]": {
        f"{GPU}devices = []\n[models.reasoning]": (
            "upstreams.text.gpu.devices: must have at least 1 item"
        ),
        f"{GPU}devices = [1, 1]\n[models.reasoning]": (
            "upstreams.text.gpu.devices: must not name an item twice"
        ),
        "[upstreams.text.gpu]\ndevices = [0]\nutilization = 0.5\n[models.reasoning]": (
            "gpu: is required where an upstream has a gpu table (upstreams.text.gpu)"
        ),
    },
    '[models.reasoning]\nupstream = "reasoning"': {
        "[models.reasoning]": "models.reasoning.upstream: is required and has no default",
        '[models.reasoning]\nupstream = "reasonin"': (
            'models.reasoning.upstream: names an upstream that is not in the file: "reasonin"; '
            'did you mean "reasoning"?'
        ),
    },
    "[models.Text-35B]": {
        "[models.Reasoning]": "models.Reasoning: differs from models.reasoning only in case",
        '[models."a*"]': (
            'models."a*": its name must be an exact name: patterns with *, ? or [ go into aliases'
        ),
        '[models.Text-35B]\naliases = ["R1"]': (
            'models.Text-35B.aliases[0]: "R1" is claimed by models.reasoning already'
        ),
        '[models.Text-35B]\naliases = ["x", "CLAUDE-*"]': (
            'models.Text-35B.aliases[1]: "CLAUDE-*" is claimed by models.reasoning already'
        ),
        '[models.Text-35B]\naliases = ["Reasoning"]': (
            'models.Text-35B.aliases[0]: "Reasoning" is the name of models.reasoning already'
        ),
        "[models.Text-35B]\naliases = [3]": "models.Text-35B.aliases[0]: must be a text, not 3",
        '[models.Text-35B]\naliases = "x"': (
            'models.Text-35B.aliases: must be a list, each item a text, not "x"'
        ),
        '[models.Text-35B]\naliases = ["a\\nb"]': (
            "models.Text-35B.aliases[0]: must have no control characters or outer blanks, not "
            '"a\\nb"'
        ),
        "[models.Text-35B]\ndialect = 1": "models.Text-35B.dialect: must be a table",
        "[models.Text-35B]\ndialect.effort_map = { max = 1 }": (
            "models.Text-35B.dialect.effort_map.max: must be a text, not 1"
        ),
    },
    'chat_default = "text-35b"': {
        'chat_default = "text-36b"': (
            'routes.chat_default: names a model that is not in the file: "text-36b"; did you '
            'mean "Text-35B"?'
        ),
    },
    "[server]": {
        "[host]\n[server]": "host.ram_gib: is required and has no default",
    },
}
CASES = [
    pytest.param(old, new, line, id=line)
    for old, spoiled in SPOILED.items()
    for new, line in spoiled.items()
]


@pytest.mark.parametrize(("old", "new", "line"), CASES)
def test_one_fault_is_one_line_with_its_key(
    good: str, faults: Faults, old: str, new: str, line: str
) -> None:
    assert old in good
    told = faults(good.replace(old, new, 1))
    assert line in told
    # A name that is gone is missed elsewhere too; nothing else may be said.
    assert [other for other in told if other != line and "routes.chat_default" not in other] == []


def test_good_file_has_no_fault(good: str, faults: Faults) -> None:
    assert faults(good) == []


ALL_WRONG = """\
stray = 1
[server]
lisen = "x"
listen = "nowhere"
admin_listen = "0.0.0.0:8010"
[models.m]
upstream = "gone"
aliases = ["x"]
[models."a.b"]
aliases = ["X", 5]
[upstreams.z]
url = "http://host"
[upstreams.z.admission]
queue = -1
cap = 9
slots = 8
[upstreams.a]
url = "http://HOST:80/"
sleep = {}
[routes]
embeddings = "nobody"
"""


def test_all_faults_are_told_at_once_in_the_order_of_schema_and_file(faults: Faults) -> None:
    assert [line.split(": ")[0] for line in faults(ALL_WRONG)] == [
        "server.listen",
        "server.admin_listen",
        "server.lisen",
        "upstreams.z.admission.cap",
        "upstreams.z.admission.queue",
        "upstreams.z.admission.queue_timeout_s",
        "upstreams.a.url",
        "upstreams.a.sleep.max_waiting",
        "models.m.upstream",
        'models."a.b".upstream',
        'models."a.b".aliases[0]',
        'models."a.b".aliases[1]',
        "routes.embeddings",
        "stray",
    ]


@pytest.mark.parametrize(("old", "new", "line"), CASES[:-1])
def test_no_fault_hides_another(good: str, faults: Faults, old: str, new: str, line: str) -> None:
    told = faults(good.replace(old, new, 1) + '\n[host]\nram_gib = "much"\n')
    assert line in told
    assert any(other.startswith("host.ram_gib: must be a number") for other in told)


SEVERAL = """
[gpu]
memory_gib = 80
[upstreams.several]
replicas = [{ url = "http://a:1", slots = 4 }, %s]
[upstreams.several.admission]
cap = 6
queue = 8
queue_timeout_s = 30
[upstreams.several.sleep]
[upstreams.several.gpu]
devices = [0]
utilization = 0.5
[models.several]
upstream = "several"
"""


@pytest.mark.parametrize(
    ("item", "place", "why"),
    [
        ('{ url = "http://b:1", slot = 4 }', "[1].slots", "is required and has no default"),
        ('{ url = "http://b:1", slot = 4 }', "[1].slot", 'is unknown; did you mean "slots"?'),
        ('{ url = "http://b:1" }', "[1].slots", "is required and has no default"),
        ('{ url = "http://b:1", slots = 0 }', "[1].slots", "must be a whole number from 1"),
        ('{ url = "http://b:1", slots = 4, devices = [-1] }', "[1].devices", "must be"),
        ('{ url = "nope", slots = 4 }', "[1].url", "must"),
        ('{ url = "http://b:1", slots = 4, what = 1 }', "[1].what", "is unknown"),
        ('"http://b:1"', "[1]", "must be a table"),
        ("4", "[1]", "must be a table"),
    ],
)
def test_a_fault_of_one_of_several_engines_is_told_as_such(
    good: str, faults: Faults, item: str, place: str, why: str
) -> None:
    told = faults(good + SEVERAL % item)
    key = f"upstreams.several.replicas{place}"
    assert any(line.startswith(key) and why in line for line in told), told
    assert all(line.startswith("upstreams.several.replicas[1]") for line in told), told


def test_fit_engines_beside_others_are_all_there_are(good: str, faults: Faults) -> None:
    assert faults(good + SEVERAL % '{ url = "http://b:1", slots = 4 }') == []


def test_empty_file_names_what_it_must_have(faults: Faults) -> None:
    assert faults("") == [
        "upstreams: is required and has no default: name an engine to stand before",
        "models: is required and has no default: name a model that an upstream serves",
    ]


def test_empty_tables_count_as_absent(faults: Faults) -> None:
    assert faults("[upstreams]\n[models]\n") == faults("")


@pytest.mark.parametrize("name", ["server", "upstreams", "models", "routes", "gpu", "host"])
def test_table_that_is_no_table_is_one_fault(name: str, faults: Faults) -> None:
    assert f"{name}: must be a table" in faults(f"{name} = 3")
    assert f"{name}: must be a table" in faults(f"[[{name}]]")


# Files that are no configuration


def one_fault(path: Path) -> ConfigFault:
    with pytest.raises(ConfigError) as caught:
        load(path)
    (fault,) = caught.value.faults
    assert "\n" not in str(caught.value)
    return fault


def test_absent_file(tmp_path: Path) -> None:
    assert one_fault(tmp_path / "no.toml") == ConfigFault(
        "", "cannot be read: No such file or directory"
    )


def test_folder(tmp_path: Path) -> None:
    assert one_fault(tmp_path) == ConfigFault("", "cannot be read: Is a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission(write: Write) -> None:
    path = write("")
    path.chmod(0)
    assert one_fault(path) == ConfigFault("", "cannot be read: Permission denied")


def test_path_that_no_file_can_have() -> None:
    assert one_fault(Path("a\0b")).message.startswith("cannot be read: ")


def test_endless_file() -> None:
    assert one_fault(Path("/dev/zero")) == ConfigFault("", "is larger than 1048576 bytes")


def test_syntax_error_names_its_line(write: Write) -> None:
    fault = one_fault(write("[server]\nlisten 5\n"))
    assert fault.key == "line 2"
    assert fault.message.startswith("is not TOML: Expected '='")


def test_duplicate_key_names_its_line(write: Write) -> None:
    assert one_fault(write('[server]\nlisten = "a:1"\nlisten = "b:1"\n')).key == "line 3"


def test_unfinished_file(write: Write) -> None:
    assert one_fault(write("[server]\nlisten = [1,")).key in {"line 2", "end of file"}


def test_bytes_that_are_not_utf8_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"[server]\n# caf\xe9\n")
    assert one_fault(path) == ConfigFault("line 2", "is not UTF-8")


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000, "9999-99-99"])
def test_absurd_values_are_told_and_do_not_crash(write: Write, value: str) -> None:
    one_fault(write(f"x = {value}"))


def test_number_too_long_to_write_in_decimal_is_still_told(good: str, faults: Faults) -> None:
    (line,) = faults(good.replace("cap = 6", f"cap = 0x{'f' * 5000}"))
    assert line.startswith("upstreams.reasoning.admission.cap: must be a whole number")


def test_byte_order_mark_and_windows_line_ends_are_read(good: str, tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + good.replace("\n", "\r\n").encode())
    assert load(path).models["reasoning"].upstream == "reasoning"


def test_key_with_a_line_break_stays_on_one_line(faults: Faults) -> None:
    lines = faults('"a\\nb\\u2028c\\"" = 1')
    assert lines[-1] == '"a\\nb\\u2028c\\"": is unknown'


# Listeners given on the command line


def test_listener_of_the_command_line_stands_for_that_of_the_file(good: str, write: Write) -> None:
    settings = load(write(good), listen="[::1]:0", admin_listen="localhost:0")
    assert str(settings.server.listen) == "[::1]:0"
    assert str(settings.server.admin_listen) == "localhost:0"


def test_wrong_listener_of_the_command_line_is_named_as_it_was_given(
    good: str, write: Write
) -> None:
    path = write(good)
    with pytest.raises(ConfigError) as caught:
        load(path, listen="nowhere", admin_listen="0.0.0.0:1")
    assert [fault.key for fault in caught.value.faults] == ["--listen", "--admin-listen"]


# The token


@pytest.mark.parametrize("content", ["", "  \n", "two words\n", "t\xf6ken", "x" * 5000])
def test_file_that_is_no_token_is_a_fault(
    good: str, faults: Faults, tmp_path: Path, content: str
) -> None:
    (tmp_path / "token").write_text(content, encoding="utf-8")
    (line,) = faults(good.replace("[server]", '[server]\nadmin_token_file = "token"'))
    assert line.startswith("server.admin_token_file: token ")


def test_token_opens_the_admin_listener_beyond_loopback_and_stays_out_of_the_settings(
    good: str, write: Write, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("open-sesame\n", encoding="utf-8")
    text = good.replace(
        "[server]", '[server]\nadmin_token_file = "token"\nadmin_listen = "0.0.0.0:9"'
    )
    settings = load(write(text))
    assert settings.server.read_admin_token() == "open-sesame"
    assert "open-sesame" not in repr(settings)
