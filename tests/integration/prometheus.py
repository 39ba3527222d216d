"""A real Prometheus that scrapes a daemon each second, and its alerts."""

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.support import ALERTS, needs
from tests.integration.daemon import until

_SOON: Final = "1s"  # In the place of the minutes that the rules wait.
# Likewise of those that they look back, and of a gigabyte of log.
_SMALLER: Final = {"[15m]": "[10s]", "[5m]": "[10s]", "offset 5m": "offset 10s", "1e9": "1e4"}
_LISTENING: Final = re.compile(r'msg="Listening on" address=(\S+)')
LOOK_S: Final = 0.2  # It looks at the daemon, and at its rules, once a second.


class Prometheus:
    """One process, which asks the daemon at *target*."""

    def __init__(self, folder: Path, target: str) -> None:
        rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
        for group in rules["groups"]:
            for rule in group["rules"]:
                rule["for"] = _SOON
                for usual, smaller in _SMALLER.items():
                    rule["expr"] = rule["expr"].replace(usual, smaller)
        (folder / "alerts.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [
                {"job_name": "group-coordinator", "static_configs": [{"targets": [target]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    needs("prometheus"),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _address(self) -> str:
        """Return where it listens, as it says itself. Raises OSError before that."""
        found = _LISTENING.search(self._log.read_text(encoding="utf-8"))
        if found is None:
            raise ConnectionRefusedError("it does not listen yet")
        return found[1]

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://{self._address()}/api/v1/{path}?{query}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def is_ready(self) -> bool:
        """Say whether it answers, and has scraped."""
        assert self.process.poll() is None, "Prometheus has ended"
        try:
            return bool(self.value("up == 1"))
        except OSError:
            return False

    def value(self, query: str) -> list[Any]:
        """Return the result of a query now."""
        found: list[Any] = self.get("query", query=query)["result"]
        return found

    def firing(self) -> dict[str, dict[str, Any]]:
        """Return the alerts that fire, by name."""
        alerts = self.get("alerts")["alerts"]
        return {one["labels"]["alertname"]: one for one in alerts if one["state"] == "firing"}

    def wait_for(
        self, *alerts: str, meanwhile: Callable[[], object] = lambda: None
    ) -> dict[str, dict[str, Any]]:
        """Return what fires, by name, once all of *alerts* do; *meanwhile* makes them."""
        found: dict[str, dict[str, Any]] = {}

        def all_fire() -> bool:
            meanwhile()
            found.update(self.firing())
            return found.keys() >= set(alerts)

        try:
            until(all_fire, f"alerts {alerts}", pause_s=LOOK_S)
        except AssertionError as exc:
            exc.add_note(f"only {sorted(found)} fired")
            raise
        return found

    def wait_until_clear(self, *alerts: str) -> None:
        """Return once none of them fires."""
        until(
            lambda: self.firing().keys().isdisjoint(alerts),
            f"end of the alerts {alerts}",
            pause_s=LOOK_S,
        )


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Run one as long as the block lasts."""
    folder.mkdir()
    one = Prometheus(folder, target)
    try:
        until(one.is_ready, "scrape", pause_s=LOOK_S)
        yield one
    finally:
        one.process.kill()
        one.process.wait(60)
