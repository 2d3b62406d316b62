"""Completions and the man page: made from the help texts, and taken by the real shells and man."""

import shutil
import subprocess
from pathlib import Path

import pytest
from test_init_and_probe import run

from tornado_frontdoor.cli import main as cli
from tornado_frontdoor.cli.help_text import Command

COMMANDS: dict[str, Command] = {one.name: one for one in cli._commands()}


def completed(shell: str, code: str, folder: Path) -> list[str]:
    """Run code in a shell that has sourced its completion; return the words it prints."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    script = folder / f"frontdoor.{shell}"
    script.write_text(run("completion", shell).stdout)
    done = subprocess.run(
        [shell, "-c", code.replace("SCRIPT", str(script))],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        timeout=30,
    )
    assert done.stderr == ""
    return done.stdout.split()


def bash(line: str, folder: Path) -> list[str]:
    words = line.split(" ")
    return completed(
        "bash",
        f"source SCRIPT; COMP_WORDS=({' '.join(repr(word) for word in words)}); "
        f"COMP_CWORD={len(words) - 1}; _frontdoor; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        folder,
    )


def test_every_command_that_there_is_has_its_line_in_the_help():
    """A command without one would be missing from completions and the man page."""
    complaint = run("no-such-command").stderr
    there_are = complaint.partition("there are ")[2].strip().split(", ")
    assert set(there_are) == set(COMMANDS)


def test_every_option_of_a_usage_line_is_described():
    assert {option.name for option in COMMANDS["check"].options} == {
        *("--config", "--json", "--probe", "--schema")
    }
    assert "--vllm" in {option.name for option in COMMANDS["stand-in"].options}
    assert "--rho" in {option.name for option in COMMANDS["simulate"].options}
    for command in COMMANDS.values():
        assert command.usages, command.name
        assert all(option.told for option in command.options)


def test_bash_completes_commands_options_and_files(tmp_path: Path):
    (tmp_path / "mine.toml").touch()
    assert bash("frontdoor se", tmp_path) == ["serve"]
    assert bash("frontdoor wake --", tmp_path) == ["--replica", "--admin", "--wait"]
    assert bash("frontdoor simulate --qu", tmp_path) == ["--queue"]
    assert "mine.toml" in bash("frontdoor serve --config mi", tmp_path)


def test_fish_completes_commands_and_options(tmp_path: Path):
    said = completed("fish", "source SCRIPT; complete -C 'frontdoor sta'", tmp_path)
    assert said[0] in ("stand-in", "status")
    said = completed("fish", "source SCRIPT; complete -C 'frontdoor wake --w'", tmp_path)
    assert said[0] == "--wait"


def test_zsh_takes_it(tmp_path: Path):
    code = "autoload -Uz compinit; compinit -u -D; compdef _frontdoor frontdoor; source SCRIPT; "
    said = completed("zsh", f"{code} print -l ${{(k)functions[(I)_frontdoor]}}", tmp_path)
    assert said == ["_frontdoor"]


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_the_man_page_is_well_formed_and_has_every_command_and_option(tmp_path: Path):
    page = tmp_path / "frontdoor.1"
    page.write_text(run("man").stdout)
    done = subprocess.run(
        ["man", "--warnings", "--local-file", str(page)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == ""
    for command in COMMANDS.values():
        assert f"\n   {command.name}\n" in done.stdout
        assert all(option.name in done.stdout for option in command.options)
    assert "FRONTDOOR_ADMIN_TOKEN" in done.stdout
    assert "2 wrong usage or configuration" in done.stdout
