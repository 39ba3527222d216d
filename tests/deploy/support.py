"""What the tests of `deploy/` share: its files as data, and the metrics that they may name."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from coordinator.http.series import CATALOGUE

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
ALERTS: Final = DEPLOY / "prometheus/alerts.yml"
DASHBOARD: Final = DEPLOY / "grafana/group-coordinator.json"

_METRIC: Final = re.compile(r"\b(?:group_coordinator|kminion|process)_[a-z_]+\b")


def needs(program: str) -> str:
    """Return the path of a program, or skip the test."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} isn't installed")
    return path


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a checking program until it ends."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def rules() -> list[dict[str, Any]]:
    """Return the alerting rules."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """Return Grafana's dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show something, those in rows, too."""
    found = []
    for panel in dashboard()["panels"]:
        found += [panel, *panel.get("panels", ())]
    return [panel for panel in found if panel["type"] != "row"]


def metrics_in(expr: str) -> set[str]:
    """Return the names of the metrics that a query is about."""
    return set(_METRIC.findall(expr))


def known_metrics() -> set[str]:
    """Return every name that a query may have: a histogram has three."""
    found = {"up"}
    for family in CATALOGUE:
        if family.kind == "histogram":
            found |= {f"{family.name}_{part}" for part in ("bucket", "count", "sum")}
        else:
            found.add(family.name)
    return found
