"""What a run is asked for on its command line."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.command import Benchmark, Choice, command
from bench.report import Run


class FakeBench:
    """Counts its repetitions."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Mapping[str, float | None]]] = {"row": []}
        self.about: Mapping[str, str] = {"kafka": "skipped: not here"}

    def repetition(self, number: int) -> None:
        """Measure nothing."""
        self.samples["row"].append({"number": float(number)})


class Asked:
    """A benchmark of three parts and two peers; keeps what it was asked for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("QUICK", raising=False)
        self.choices: list[Choice] = []
        self.runs: list[Run] = []
        self._folder = folder

    @contextmanager
    def _make(self, folder: Path, choice: Choice) -> Iterator[FakeBench]:
        self.choices.append(choice)
        yield FakeBench()

    def _document(self, run: Run) -> dict[str, Any]:
        self.runs.append(run)
        return {}

    def __call__(self, *options: str) -> Result:
        """Run the command."""
        benchmark = Benchmark(
            module="bench.fake",
            help="Fake.",
            name="fake",
            quick_name="fake-quick",
            repetitions=3,
            make=self._make,
            settings=lambda _quick: {},
            document=self._document,
            markdown=lambda _run: "",
            tables=lambda _run: (),
            failures=lambda _samples: [],
            parts=("commit", "fetch", "load"),
            peers=("kafka", "redis"),
        )
        folders = [f"--results={self._folder}", f"--work-dir={self._folder / 'work'}"]
        return CliRunner().invoke(command(benchmark), [*folders, *options])


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A benchmark that keeps what it was asked for."""
    return Asked(tmp_path, monkeypatch)


ALL = frozenset({"commit", "fetch", "load"})


@pytest.mark.parametrize(
    ("options", "only", "peers", "repeat"),
    [
        ([], ALL, {"kafka", "redis"}, ""),
        (["--quick"], ALL, set(), " --quick"),
        (["--quick", "--peers"], ALL, {"kafka", "redis"}, " --quick --peer kafka,redis"),
        (["--quick", "--peer=redis"], ALL, {"redis"}, " --quick --peer redis"),
        (["--no-peers"], ALL, set(), " --no-peers"),
        (["--only=load,commit"], {"load", "commit"}, {"kafka", "redis"}, " --only commit,load"),
        (["--peer=redis"], ALL, {"redis"}, " --peer redis"),
    ],
)
def test_parts_and_peers_are_chosen_and_the_result_says_how_to_repeat_it(
    asked: Asked, options: list[str], only: frozenset[str] | set[str], peers: set[str], repeat: str
) -> None:
    """Somebody who is making one row faster can't wait for all; a smoke run needs no peers."""
    assert asked(*options).exit_code == 0
    (choice,) = asked.choices
    assert set(choice.only) == only
    assert set(choice.peers) == peers
    assert asked.runs[0].repeat == f"python -m bench.fake{repeat}"


def test_every_repetition_is_run_and_what_was_found_out_is_kept(asked: Asked) -> None:
    """Peers that were skipped are named in the result."""
    assert asked().exit_code == 0
    (run,) = asked.runs
    assert run.samples == {"row": [{"number": 1.0}, {"number": 2.0}, {"number": 3.0}]}
    assert run.environment["kafka"] == "skipped: not here"
    assert json.dumps(dict(run.environment))


@pytest.mark.parametrize("option", ["--only=comit", "--peer=kafka,etcd"])
def test_an_unknown_name_is_refused(asked: Asked, option: str) -> None:
    """A misspelt part would measure nothing and say that all is well."""
    result = asked(option)
    assert result.exit_code == 2
    assert "not one of" in result.output
    assert not asked.choices
