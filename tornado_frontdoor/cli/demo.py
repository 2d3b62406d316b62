"""`frontdoor demo`: stand-in engines and the front door, in one process, without a GPU."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.config import Address, ConfigError, Settings, load
from tornado_frontdoor.proxy import serving

ENGINES = {
    "reasoning": StandInOptions(models=("reasoning",), slots=8, hold="2", tokens=24, gap_ms=40),
    "text": StandInOptions(
        models=("text",),
        slots=4,
        hold="0.3",
        tokens=24,
        gap_ms=40,
        sleep_mode=True,
        sleep_s=(1.5, 0.5),
        wake_s=(1.5, 1.0),
        reload_s=2.0,
    ),
    "ocr": StandInOptions(
        models=("ocr",),
        slots=4,
        hold="0.3",
        tokens=12,
        gap_ms=40,
        sleep_mode=True,
        sleep_s=(1.0, 0.3),
        wake_s=(1.0, 0.8),
        reload_s=1.0,
    ),
    "embed": StandInOptions(
        models=("embed",),
        slots=4,
        hold="0.1",
        sleep_mode=True,
        sleep_s=(0.5, 0.2),
        wake_s=(1.0, 0.5),
        reload_s=1.0,
    ),
}
"""Times a tenth of what engines of this kind take, or less: short enough to be watched."""

CONFIGURATION = """\
[server]
state_dir = "state"

[log]
format = "text"

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

[upstreams.text.sleep]
idle_sleep_s = 15
idle_offload_s = 45
max_waiting = 64

[upstreams.text.gpu]
devices = [0, 1]
utilization = 0.85

[upstreams.ocr]
url = "http://127.0.0.1:{ocr}"

[upstreams.ocr.sleep]
idle_sleep_s = 10
idle_offload_s = 30
max_waiting = 64

[upstreams.ocr.gpu]
devices = [2]
utilization = 0.10

[upstreams.embed]
url = "http://127.0.0.1:{embed}"

[upstreams.embed.sleep]
idle_sleep_s = 5
idle_offload_s = 20
max_waiting = 64
canary_path = "/v1/embeddings"

[upstreams.embed.gpu]
devices = [2]
utilization = 0.25

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

[gpu]
memory_gib = 80
"""

COMMAND = "bin/frontdoor" if (Path(__file__).parents[1] / "conf").is_symlink() else "frontdoor"
"""In a checkout `conf` is a link to the folder at its top; an installed command is on the PATH."""

INVITATION = """
Four stand-in engines are behind it. `reasoning` holds each request for 2 s, with 6 of its 8 slots
and a queue of 8. `text`, `ocr` and `embed` fall asleep after 15, 10 and 5 s without a request, and
deeper after 45, 30 and 20 s; they wake for whoever comes, in 1 to 4 s. The log says when.
In another terminal:

  # 40 at once: 14 are served (6 slots, 8 places), 26 are told when to come back
  seq 40 | xargs -P40 -I{{}} curl -s -o /dev/null -w '%{{http_code}}\\n' \\
    -X POST {public}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"reasoning","messages":[]}}' | sort | uniq -c

  # what a refusal looks like, in a third terminal while they run
  curl -i -X POST {public}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"reasoning","messages":[]}}'

  # all of it live, in a browser: {admin}/

  # who sleeps
  {command} status --admin {admin}

  # a stream from an engine that may be asleep
  curl -N {public}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"text","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}'

  # deeper asleep at once, and awake for a request that says how long it waited
  {command} sleep embed --level 2 --admin {admin}
  curl -i {public}/v1/embeddings -H 'content-type: application/json' -d '{{"input":"hello"}}'

  # the models, the numbers
  curl {public}/v1/models
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
            return await serving.serve_until_stopped(settings, lambda: settings, invite)
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
    serving.announce(public, admin)
    text = INVITATION.format(public=f"http://{public}", admin=f"http://{admin}", command=COMMAND)
    print(text, flush=True)
