"""Alerts and dashboard name metrics that exist; each alert fires where it must, only there."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.logs import LogWriter

FOLDER = Path(__file__).parents[2] / "conf" / "monitoring"
ALERTS = (FOLDER / "frontdoor-alerts.yml").read_text(encoding="utf-8")
TESTS = (FOLDER / "frontdoor-alerts-test.yml").read_text(encoding="utf-8")
DASHBOARD = json.loads((FOLDER / "frontdoor-grafana.json").read_text(encoding="utf-8"))
NAME = re.compile(r"\b(?:frontdoor|process)_[a-z_]+\b")


def there_are(folder: Path) -> set[str]:
    """Return the names of all samples of a front door that has just started."""
    config = folder / "frontdoor.toml"
    config.write_text(
        '[upstreams.a]\nurl = "http://127.0.0.1:9"\n'
        "[upstreams.a.admission]\nslots = 2\ncap = 1\nqueue = 1\nqueue_timeout_s = 1\n"
        '[upstreams.a.sleep]\n[models.a]\nupstream = "a"\n'
    )

    async def scrape() -> str:
        log = LogWriter(folder / "log", "json", 65536)
        app = App(load(config), lambda: load(config), log)
        page = app._telemetry.scrape()[0].decode()
        await app.close()
        log.close()
        return page

    families = text_string_to_metric_families(asyncio.run(scrape()))
    return {sample.name for family in families for sample in family.samples}


def expressions() -> list[str]:
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked += [variable["query"] for variable in DASHBOARD["templating"]["list"]]
    return asked + re.findall(r"^ +expr: (.*)$", ALERTS, re.MULTILINE)


def test_every_metric_that_is_asked_for_exists(tmp_path: Path) -> None:
    samples = there_are(tmp_path)
    named = {name for text in expressions() for name in NAME.findall(text)}
    assert len(named) > 15
    assert named - samples == set()


def test_every_alert_is_tested_both_ways() -> None:
    for alert in re.findall(r"- alert: (\w+)", ALERTS):
        assert f"name: {alert} fires" in TESTS
        assert f"name: {alert} is silent" in TESTS


def test_the_dashboard_asks_what_prometheus_understands(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("PROMTOOL IS NOT INSTALLED: the dashboard's expressions are not parsed")
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "1m")}
        for number, expr in enumerate(asked)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    said = subprocess.run(
        [promtool, "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_alerts_fire_where_they_must_and_are_silent_elsewhere() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("PROMTOOL IS NOT INSTALLED: the alerts are not tested")
    for command in (
        ["check", "rules", "frontdoor-alerts.yml"],
        ["test", "rules", "frontdoor-alerts-test.yml"],
    ):
        said = subprocess.run(
            [promtool, *command], cwd=FOLDER, capture_output=True, text=True, check=False
        )
        assert said.returncode == 0, said.stdout + said.stderr
