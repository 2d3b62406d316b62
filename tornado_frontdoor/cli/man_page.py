"""The man page, written from the help texts: `frontdoor man > frontdoor.1`."""

from collections.abc import Iterator, Mapping, Sequence

from tornado_frontdoor.cli.help_text import Command

ENVIRONMENT = (
    ("FRONTDOOR_CONFIG", "The configuration, where --config is not given."),
    ("FRONTDOOR_ADMIN", "The admin listener, where --admin is not given."),
    ("FRONTDOOR_ADMIN_TOKEN", "The token that the admin listener asks for."),
)


def man_page(version: str, text: str, commands: Sequence[Command]) -> str:
    """Return roff for man(7); `text` is the general help."""
    return "\n".join(_lines(version, text, commands)) + "\n"


def _lines(version: str, text: str, commands: Sequence[Command]) -> Iterator[str]:
    yield f'.TH FRONTDOOR 1 "" "frontdoor {version}"'
    title = text.partition("frontdoor: ")[2].splitlines()[0]
    yield from (".SH NAME", _plain(f"frontdoor - {title}"))
    yield ".SH SYNOPSIS"
    for command in commands:
        for usage in command.usages:
            yield from (".br", _plain(usage))
    yield ".SH COMMANDS"
    for command in commands:
        yield from (".SS " + command.name, _plain(command.told))
        for option in command.options:
            head = f"{option.name} {option.argument}".rstrip()
            yield from (".TP", f".B {_plain(head)}", _plain(option.told))
    yield from _table("ENVIRONMENT", dict(ENVIRONMENT))
    yield ".SH EXIT STATUS"
    yield _plain(text.partition("Exit codes: ")[2].strip())
    yield ".SH SIGNALS"
    yield "SIGTERM and SIGINT drain, a second one ends at once."
    yield "SIGHUP reads the configuration again."
    yield ".SH SEE ALSO"
    yield "docs/configuration.md, docs/operations.md and docs/simulation.md of the source."


def _table(title: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield f".SH {title}"
    for name, told in rows.items():
        yield from (".TP", f".B {_plain(name)}", _plain(told))


def _plain(text: str) -> str:
    """Return a text that roff prints as it stands."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text.startswith((".", "\\(aq")) else text
