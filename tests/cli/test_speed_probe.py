"""`calibrate --probe`: an idle engine measured, after it was asked, within its time."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from simulator.traffic.engine_details import EngineDetails
from simulator.traffic.service_profiles import ServiceProfile, read_profile
from tornado_frontdoor.cli.speed_probe import memory_of

COMMAND = (sys.executable, "-m", "tornado_frontdoor.cli")


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A stand-in with 4 slots that makes a token in two milliseconds."""
    options = ("--port", "0", "--slots", "4", "--gap-ms", "2", "--tokens", "24")
    command = [*COMMAND, "stand-in", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line
            yield found[0]
        finally:
            process.terminate()


def started(engine):
    with urlopen(f"{engine}/stand-in/stats", timeout=20) as answer:  # noqa: S310 - our own
        return json.load(answer)["started"]


def probe(engine, *more):
    line = [*COMMAND, "calibrate", "--probe", engine, *more]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL
    )


def test_nothing_is_sent_before_somebody_has_said_yes(engine):
    done = probe(engine)
    assert done.returncode == 2
    assert "--probe: asks before it begins" in done.stderr
    assert "1, 2, 4, 8 requests at once, for 110 s" in done.stderr
    assert started(engine) == 0


def test_engine_is_measured_in_its_time_and_the_profile_is_written(engine, tmp_path):
    out = tmp_path / "mine.json"
    began_s = time.monotonic()
    done = probe(engine, "--yes", "--seconds", "3", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began_s < 60
    profile = read_profile(out)
    assert isinstance(profile, ServiceProfile)
    # 2 ms and whatever a busy machine adds.
    assert 0.001 < profile.token.at(1) < 0.05
    assert profile.seen_batch > 1.2
    assert "4 at once" in done.stderr
    assert "a probe of vLLM" in profile.source


TOLD = (
    'vllm:num_preemptions_total{engine="0"} 0.0\n'
    'vllm:cache_config_info{_block_size_resolved="True",block_size="16",cache_dtype="auto",'
    'enable_prefix_caching="%s",kv_cache_size_tokens="%s",num_gpu_blocks="%s"} 1.0\n'
)


@pytest.mark.parametrize(
    ("metrics", "memory"),
    [
        (TOLD % ("True", "52400", "3276"), EngineDetails(kv_tokens=52400.0)),
        (TOLD % ("False", "", "100"), EngineDetails(kv_tokens=1600.0, prefix_caching=False)),
        (TOLD % ("True", "", "None"), None),
        (TOLD % ("True", "0", "0"), None),
        ("llamacpp:requests_processing 0", None),
        ("", None),
    ],
)
def test_memory_is_what_vllm_says_in_its_metrics(metrics, memory):
    assert memory_of(metrics) == memory


def test_address_without_an_engine_is_one_line_and_exit_code_2():
    done = probe("http://127.0.0.1:9", "--yes")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "--probe: http://127.0.0.1:9" in done.stderr
