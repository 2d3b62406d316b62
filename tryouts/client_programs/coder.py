"""Coding agents on the command line, one prompt each; which one is the first word of the action."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from told import run

AGENT, _, sys.argv[1] = sys.argv[1].partition(":")
PROGRAM = os.environ["CODER"]
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _codex(address, model, prompt):
    home = Path.home() / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(
        f'model = "{model}"\nmodel_provider = "door"\n'
        '[model_providers.door]\nname = "door"\nwire_api = "responses"\nenv_key = "KEY"\n'
        f'base_url = "{address}/v1"\n'
    )
    return [PROGRAM, "exec", "--skip-git-repo-check", prompt]


def _opencode(address, model, prompt):
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{address}/v1", "apiKey": "none"},
        "models": {model: {"name": model}},
    }
    told = {"provider": {"door": provider}, "autoupdate": False, "share": "disabled"}
    Path("opencode.json").write_text(json.dumps(told))
    return [PROGRAM, "run", "--model", f"door/{model}", prompt]


def _qwen(address, model, prompt):
    return [
        *(PROGRAM, "--auth-type", "openai", "--openai-base-url", f"{address}/v1"),
        *("--openai-api-key", "none", "--model", model, "--prompt", prompt),
    ]


def _aider(address, model, prompt):
    return [
        *(PROGRAM, "--model", f"openai/{model}", "--openai-api-base", f"{address}/v1"),
        *("--openai-api-key", "none", "--no-git", "--yes-always", "--no-check-update"),
        *("--no-show-model-warnings", "--analytics-disable", "--no-show-release-notes"),
        *("--no-pretty", "--edit-format", "ask", "--message", prompt),
    ]


def plain(address, model, prompt):
    command = {"codex": _codex, "opencode": _opencode, "qwen": _qwen, "aider": _aider}[AGENT]
    done = subprocess.run(
        command(address, model, prompt),
        env=os.environ | {"KEY": "none", "NO_COLOR": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = COLOURS.sub("", done.stdout + done.stderr)
    if os.environ.get("CODER_LOUD"):
        print(said, file=sys.stderr)
    answers = [line.strip() for line in said.splitlines()]
    if os.environ["CODER_SAYS"] in answers:
        return {"said": os.environ["CODER_TOLD"]}
    return {"error": f"ended with {done.returncode}: {' / '.join(a for a in answers if a)[-400:]}"}


run(plain)
