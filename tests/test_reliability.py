"""What the page on reliability says of the tests is so."""

import re
from pathlib import Path
from typing import Final

from tests.fuzz.episode import FRAMES
from tests.fuzz.test_fuzz import EPISODES
from tests.group.test_requests_by_state import ROWS
from tests.planted.bugs import BUGS
from tests.planted.runner import table
from tests.protocol.invalid import INVALID_REQUESTS
from tests.zookeeper.test_simulation import HISTORIES, HISTORIES_NIGHTLY

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def _number_in(file: str, pattern: str) -> int:
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return int(found)


def _nightly(name: str) -> int:
    return _number_in("../Makefile", rf"^{name} \?= (\d+)$")


def _counts() -> list[tuple[str, int, int]]:
    """Return what there is of each kind in `make test`, and in `make nightly`."""
    seeds = _number_in("sim/test_simulation.py", r'"SIM_SEEDS", "(\d+)"')
    clusters = _number_in("sim/test_cluster_simulation.py", r'"CLUSTER_SEEDS", "(\d+)"')
    per_seed = _number_in("cluster/test_model.py", r"= (\d+) \* int")
    orders = _number_in("cluster/test_model.py", r'"SIM_SEEDS", "(\d+)"')
    nightly = _nightly("SIM_SEEDS_NIGHTLY")
    kills = _number_in("integration/test_daemon.py", r"kill_loop\.run\(.*cycles=(\d+)\)")
    departures = _number_in("integration/test_departures.py", r"connections=(\d+)\)")
    return [
        ("histories of the whole system in the simulation", seeds, nightly),
        ("histories of a cluster in the simulation", clusters, _nightly("CLUSTER_SEEDS_NIGHTLY")),
        ("orders of events of a cluster's log", per_seed * orders, per_seed * nightly),
        ("hostile frames and requests", EPISODES * FRAMES, _nightly("FUZZ_FRAMES_NIGHTLY")),
        ("requests in each state of a group, with the exact answer", len(ROWS), len(ROWS)),
        ("invalid requests, with the exact verdict", len(INVALID_REQUESTS), len(INVALID_REQUESTS)),
        ("kills of a real process under load", kills, _nightly("KILL_CYCLES_NIGHTLY")),
        ("connections that end in a long answer", departures, _nightly("DEPARTURES_NIGHTLY")),
        ("histories of consumers beside old ones", HISTORIES, HISTORIES_NIGHTLY),
        ("planted bugs", 0, len(BUGS)),
    ]


def _table_of_counts() -> str:
    rows = [f"| {what} | {usual:,} | {nightly:,} |" for what, usual, nightly in _counts()]
    return (
        "\n".join(["| what | in `make test` | in `make nightly` |", "|---|---|---|", *rows]) + "\n"
    )


def test_the_page_counts_what_there_is() -> None:
    """Figures that nobody checks are those of last year."""
    assert _table_of_counts() in PAGE


def test_the_page_shows_which_test_notices_which_planted_bug() -> None:
    """`python -m tests.planted --table` prints it."""
    assert table() in PAGE


def test_every_test_that_the_page_names_is_there() -> None:
    """A bug whose test was renamed can come back unseen."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    defined = {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}

    assert set(re.findall(r"`(test_\w+)`", PAGE)) <= defined
