"""The alert rules: accepted, tried out, about metrics that there are, and each with its runbook."""

import re
import shutil
from pathlib import Path
from typing import Final

import yaml

from tests.deploy.support import ALERTS, DEPLOY, ROOT, known_metrics, metrics_in, needs, rules, run

RUNBOOK: Final = ROOT / "docs/operations.md"
NAMES: Final = [rule["alert"] for rule in rules()]


def entries() -> dict[str, str]:
    """Return the runbook: the text below each alert's heading."""
    chapter = RUNBOOK.read_text(encoding="utf-8").partition("\n## Alerts\n")[2]
    chapter = chapter.partition("\n## ")[0]
    parts = re.split(r"^### (.+)$", chapter, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    """A comma too many would leave nobody watching."""
    done = run(needs("promtool"), "check", "config", str(DEPLOY / "prometheus/prometheus.yml"))

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(NAMES)} rules found" in done.stdout


def test_prometheus_takes_the_configuration_with_an_account(tmp_path: Path) -> None:
    """By a token from a file and over TLS: a token in the text would be in every backup of it."""
    name = "prometheus-secured.yml"
    for path in (DEPLOY / "prometheus" / name, ALERTS):
        shutil.copy(path, tmp_path)
    (job,) = yaml.safe_load((tmp_path / name).read_text(encoding="utf-8"))["scrape_configs"]
    command = (needs("promtool"), "check", "config", str(tmp_path / name))
    without = run(*command)
    (tmp_path / job["authorization"]["credentials_file"]).write_text("t0ken", encoding="utf-8")
    (tmp_path / job["tls_config"]["ca_file"]).write_text("", encoding="utf-8")
    done = run(*command)

    assert (job["job_name"], job["scheme"]) == ("group-coordinator", "https")
    assert "credentials" not in job["authorization"]
    assert without.returncode != 0
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(NAMES)} rules found" in done.stdout


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    """An alert that can't fire is worse than none."""
    path = DEPLOY / "prometheus/alerts_test.yml"
    done = run(needs("promtool"), "test", "rules", str(path))
    cases = yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
    evaluated = [one for case in cases for one in case["promql_expr_test"]]
    fired = set(re.findall(r'alertname="(\w+)"', str([one["exp_samples"] for one in evaluated])))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert fired == set(NAMES)
    assert any(not one["exp_samples"] for one in evaluated)


def test_the_alerts_are_about_metrics_that_there_are() -> None:
    """One that was renamed would be absent, and its alert silent for ever."""
    asked = {rule["alert"]: metrics_in(rule["expr"]) for rule in rules()}

    assert sorted(set().union(*asked.values()) - known_metrics()) == []
    assert [name for name in NAMES if not asked[name] and name != "CoordinatorDown"] == []


def test_each_alert_has_its_entry_in_the_runbook_and_each_entry_its_alert() -> None:
    """Whoever is woken at night reads one page."""
    assert list(entries()) == NAMES
    for name, text in entries().items():
        said = re.findall(r"^\*\*([A-Z][a-z]+(?: at)?)\*\*", text, flags=re.MULTILINE)
        assert said == ["Means", "Look at", "Do"], name


def test_each_alert_says_where_its_entry_is_and_how_bad_it_is() -> None:
    """The link is what a pager shows."""
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["labels"]["severity"] in {"critical", "warning"}
