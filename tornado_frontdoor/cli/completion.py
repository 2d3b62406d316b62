"""What shells need to complete the command line, written from the help texts."""

from collections.abc import Sequence

from tornado_frontdoor.cli.help_text import Command, Option

FILES = frozenset({"FILE"})
"""Names of arguments that are files."""


def bash(commands: Sequence[Command]) -> str:
    """Return a bash script; to be sourced, or put into `bash_completion.d`."""
    words = "\n".join(
        f"        {one.name}) words='{' '.join(option.name for option in one.options)}' ;;"
        for one in commands
    )
    files = "|".join(sorted({o.name for c in commands for o in c.options if o.argument in FILES}))
    names = " ".join(one.name for one in commands)
    return f"""\
_frontdoor() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} words=
    COMPREPLY=()
    case $previous in
        {files}) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W '{names} --help --version' -- "$current")
        return
    fi
    case ${{COMP_WORDS[1]}} in
{words}
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o filenames -F _frontdoor frontdoor
"""


def zsh(commands: Sequence[Command]) -> str:
    """Return a zsh function; to be put into `fpath` as `_frontdoor`."""
    listed = "\n".join(f"        {_quoted(f'{one.name}:{one.told}')}" for one in commands)
    cases = "\n".join(
        f"        {one.name}) _arguments {' '.join(map(_zsh_option, one.options))} ;;"
        for one in commands
    )
    return f"""\
#compdef frontdoor
_frontdoor() {{
    local -a commands=(
{listed}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT -= 1 ))
    case $command in
{cases}
    esac
}}
_frontdoor "$@"
"""


def fish(commands: Sequence[Command]) -> str:
    """Return a fish script; to be put into `completions` as `frontdoor.fish`."""
    lines = ["complete -c frontdoor -f"]
    for one in commands:
        lines.append(
            f"complete -c frontdoor -n __fish_use_subcommand -a {one.name} -d {_quoted(one.told)}"
        )
        seen = f"-n '__fish_seen_subcommand_from {one.name}'"
        for option in one.options:
            takes = " -r -F" if option.argument in FILES else " -x" if option.argument else ""
            name = option.name.removeprefix("--")
            lines.append(f"complete -c frontdoor {seen} -l {name}{takes} -d {_quoted(option.told)}")
    return "\n".join(lines) + "\n"


def _zsh_option(option: Option) -> str:
    told = option.told.replace("[", "(").replace("]", ")").replace(":", " ")
    takes = ""
    if option.argument:
        what = option.argument.lower().replace(":", " ")
        takes = f":{what}:{'_files' if option.argument in FILES else ' '}"
    return _quoted(f"{option.name}[{told}]{takes}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"
