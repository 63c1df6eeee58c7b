"""The alert rules of the chart and the compose file: when each of them fires, and when it does not.

``make test-alerts`` provides ``promtool``; without it what needs it is skipped.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from distop.coordinator.metrics.prometheus import PrometheusMetrics
from support.processes import captured
from support.repository import ROOT

RULES = ROOT / "deploy" / "helm" / "distop" / "files" / "rules.yaml"
REPLAYED = Path(__file__).parent / "alerts.yaml"
PATH = os.pathsep.join([str(ROOT / ".venv" / "prometheus" / "bin"), os.environ.get("PATH", "")])
PROMTOOL = shutil.which("promtool", path=PATH)

pytestmark = pytest.mark.process


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def promtool(*words: str) -> None:
    said = captured([str(PROMTOOL), *words])
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.slow("needs promtool")
@pytest.mark.skipif(not PROMTOOL, reason="promtool is not there: make test-alerts")
def test_each_alert_fires_when_it_should_and_not_before() -> None:
    """D1: of rules that Prometheus takes."""
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(REPLAYED))


def test_each_alert_is_replayed_both_firing_and_silent() -> None:
    expected: dict[str, set[bool]] = {alert["alert"]: set() for alert in alerts()}
    for replay in yaml.safe_load(REPLAYED.read_text())["tests"]:
        for look in replay["alert_rule_test"]:
            expected[look["alertname"]].add(bool(look["exp_alerts"]))
    assert expected == {name: {True, False} for name in expected}


def test_rules_speak_of_metrics_that_there_are_and_that_are_documented() -> None:
    named = set(re.findall(r"\bdistop_[a-z_]+", " ".join(alert["expr"] for alert in alerts())))
    there = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in PrometheusMetrics().registry.collect()
    }
    assert named
    assert named <= there
    documented = (ROOT / "docs" / "operating.md").read_text()
    assert not {name for name in named if name not in documented}
