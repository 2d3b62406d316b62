"""`frontdoor demo`: stand-in engines and the front door, in one process, without a GPU."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.stand_in import StandIn, StandInOptions
from tornado_frontdoor.config import Address, ConfigError, Settings, load
from tornado_frontdoor.proxy import app

ENGINES = {
    "reasoning": StandInOptions(models=("reasoning",), slots=8, hold="2", tokens=24, gap_ms=40),
    "text": StandInOptions(models=("text",), slots=4, hold="0.3", tokens=24, gap_ms=40),
    "ocr": StandInOptions(models=("ocr",), slots=4, hold="0.3", tokens=12, gap_ms=40),
    "embed": StandInOptions(models=("embed",), slots=4, hold="0.1"),
}

CONFIGURATION = """\
[server]

[surfaces]

[upstreams.reasoning]
url = "http://127.0.0.1:{reasoning}"

[upstreams.reasoning.admission]
slots = 8
cap = 6
queue = 8
queue_timeout_s = 30

[upstreams.text]
url = "http://127.0.0.1:{text}"

[upstreams.ocr]
url = "http://127.0.0.1:{ocr}"

[upstreams.embed]
url = "http://127.0.0.1:{embed}"

[models.reasoning]
upstream = "reasoning"

[models.text]
upstream = "text"

[models.ocr]
upstream = "ocr"

[models.embed]
upstream = "embed"

[routes]
chat_default = "text"
multipart_chat_default = "ocr"
embeddings = "embed"
"""

INVITATION = """
Four stand-in engines are behind it: `reasoning` holds each request for 2 s, with 6 of its 8 slots
and a line of 8; `text`, `ocr` and `embed` have no cap. In another terminal:

  # a stream
  curl -N {public}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"reasoning","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}'

  # 40 at once: 14 are served (6 slots, 8 places), 26 are told when to come back
  seq 40 | xargs -P40 -I{{}} curl -s -o /dev/null -w '%{{http_code}}\\n' \\
    -X POST {public}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"reasoning","messages":[]}}' | sort | uniq -c

  # what a refusal looks like while they run
  curl -i -X POST {public}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"reasoning","messages":[]}}'

  # the models, the slots, the numbers
  curl {public}/v1/models
  curl {admin}/admin/status
  curl {admin}/metrics

Ctrl-C stops everything.
"""


def run(listen: str | None, admin_listen: str | None) -> int:
    """Run until Ctrl-C; returns the exit code."""
    return asyncio.run(_run(listen, admin_listen))


async def _run(listen: str | None, admin_listen: str | None) -> int:
    engines = {name: StandIn(options) for name, options in ENGINES.items()}
    try:
        ports = {name: engine.listen() for name, engine in engines.items()}
        with TemporaryDirectory(prefix="frontdoor-demo-") as folder:
            try:
                settings = settings_for(ports, Path(folder), listen, admin_listen)
            except ConfigError as error:
                print("\n".join(f"frontdoor: {fault}" for fault in error.faults), file=sys.stderr)
                return 2
            return await app.serve_until_stopped(settings, lambda: settings, invite)
    finally:
        for engine in engines.values():
            await engine.close()


def settings_for(
    ports: Mapping[str, int], folder: Path, listen: str | None, admin_listen: str | None
) -> Settings:
    """Return the demo's settings for engines on these ports; raises ConfigError."""
    path = folder / "demo.toml"
    path.write_text(CONFIGURATION.format_map(ports), encoding="utf-8")
    return load(path, listen=listen, admin_listen=admin_listen)


def invite(public: Address, admin: Address) -> None:
    """Say where it listens and what to try."""
    app.announce(public, admin)
    print(INVITATION.format(public=f"http://{public}", admin=f"http://{admin}"), flush=True)
