"""The acceptance check, word for word: 40 curls at once against cap 6, queue 8, holds of 2 s."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from on_stage import is_free, run, stage

VERIFY = """\
seq 40 | xargs -P40 -I{{}} curl -s -o /dev/null -w '%{{http_code}}\\n' \\
  -X POST localhost:{port}/v1/chat/completions \\
  -H 'content-type: application/json' -d '{{"model":"reasoning","messages":[]}}' | sort | uniq -c
"""
REFUSED = """\
seq 14 | xargs -P14 -I{{}} curl -s -o /dev/null \\
  -X POST localhost:{port}/v1/chat/completions \\
  -H 'content-type: application/json' -d '{{"model":"reasoning","messages":[]}}' &
sleep 0.7
curl -s -D - -o /dev/null -X POST localhost:{port}/v1/chat/completions \\
  -H 'content-type: application/json' -d '{{"model":"reasoning","messages":[]}}' \\
  | grep -i retry-after
wait
"""


def bash(script: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    ("queue_timeout_s", "counts"),
    [
        (30, {"200": 14, "503": 26}),
        pytest.param(1, {"200": 6, "503": 34}, marks=pytest.mark.slow),
        pytest.param(3, {"200": 12, "503": 28}, marks=pytest.mark.slow),
    ],
)
def test_forty_curls_at_once(
    tmp_path: Path, queue_timeout_s: float, counts: dict[str, int]
) -> None:
    with stage(tmp_path) as on:
        log = tmp_path / "stub-reasoning.log"
        _, engine = on.engine("--hold", "2", "--log", str(log))
        listen = ["--listen", "127.0.0.1:8080"] if is_free(8080) else []
        door, port, _ = on.serve(*listen, engine=engine, queue_timeout_s=queue_timeout_s)
        rows = [row.split() for row in bash(VERIFY.format(port=port)).splitlines()]
        assert {status: int(count) for count, status in rows} == counts
        assert "max_concurrent=6" in log.read_text()
        assert "max_concurrent=7" not in log.read_text()
        if queue_timeout_s == 1:
            headers = bash(REFUSED.format(port=port)).lower().splitlines()
            values = dict(line.split(": ") for line in headers)
            assert 1 <= int(values["retry-after"]) <= 59
        assert "Traceback" not in door.errors


def test_help_names_every_command() -> None:
    text = run("--help").stdout
    for command in ("serve", "demo", "check", "stand-in"):
        assert f"  frontdoor {command}" in text
