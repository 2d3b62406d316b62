"""All engines asleep, and a crowd for three models in one instant.

`--level` says how deep they sleep: the run begins by putting them to sleep through the admin
listener, and says so where the front door or an engine cannot. Everybody is to be answered: the
first request for a model wakes its engine, once, and the others wait with it.

    locust -f loadtests/wake_storm.py --headless --users 30 --spawn-rate 30 --level 2
"""

import json
import logging
import urllib.error
import urllib.request
from typing import Any, cast

from locust import events
from locust.env import Environment
from locust.runners import WorkerRunner

from loadtests.lib.dialects import ClientCall, Surface
from loadtests.lib.hooks import on
from loadtests.lib.run import samples
from loadtests.lib.users import Caller

MODELS = ("text", "ocr", "embed")
SLEEP_TIMEOUT_S = 60

log = logging.getLogger("loadtests")


@on(events.test_start)
def put_all_to_sleep(environment: Environment, **_: Any) -> None:
    """Put the engines to sleep before the first user comes."""
    if isinstance(environment.runner, WorkerRunner) or environment.parsed_options is None:
        return
    options = environment.parsed_options
    awake = 0
    for model in MODELS:
        url = f"{options.admin}/admin/sleep/{model}?level={options.level}"
        try:
            with urllib.request.urlopen(  # noqa: S310 - the admin listener is HTTP
                urllib.request.Request(url, method="POST"),  # noqa: S310
                timeout=SLEEP_TIMEOUT_S,
            ) as answer:
                log.info("%s sleeps: %s", model, json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                log.warning("%s stays awake: the front door answered %s", model, error.code)
            awake += 1
        except (OSError, ValueError) as error:
            samples.failures[f"--admin {options.admin}: {error}"] += 1
            return
    if awake == len(MODELS):
        samples.failures["no engine could be put to sleep: not a wake storm"] += 1


class OneOfTheCrowd(Caller):
    """One request, together with all others; models by turns."""

    def part(self) -> None:
        """Wait for the crowd and ask."""
        model = MODELS[self.number % len(MODELS)]
        surface: Surface = "embeddings"
        if model != "embed":
            turn = self.number // len(MODELS)
            surface = cast("Surface", self.surfaces[turn % len(self.surfaces)])
        stream = surface != "embeddings" and self.number % 2 == 0
        self.wait_for_all()
        self.ask(ClientCall(surface=surface, model=model, stream=stream, hold_s=0.05, gap_ms=5))
