"""The protocol of a cluster, in random histories over the real machines."""

import os
from typing import Final

import pytest

from coordinator.log.errors import LogCorrupt
from tests.cluster.model import NODES, History

# As many as take 20 s of CPU; each night there are 20,000.
HISTORIES: Final = 4 * int(os.environ.get("SIM_SEEDS", "100"))
_CHUNK: Final = 50


def _chunks() -> list[range]:
    return [range(at, at + _CHUNK) for at in range(0, HISTORIES, _CHUNK)]


@pytest.mark.parametrize("seeds", _chunks(), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_nothing_acknowledged_is_lost_whatever_the_order(seeds: range) -> None:
    """A protocol is only known to be right in the orders of events that it was seen in."""
    worlds = [History(seed).run() for seed in seeds]

    assert sum(world.acks for world in worlds) > 20 * _CHUNK
    assert sum(world.reads for world in worlds) > _CHUNK


@pytest.mark.parametrize("seeds", _chunks()[::2], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_nodes_that_know_more_than_an_ensemble_that_was_set_back_end(seeds: range) -> None:
    """Its sessions live on, its fences fit again, and what was acknowledged behind them is gone."""
    histories = [History(seed, is_set_back=True) for seed in seeds]
    for history in histories:
        history.run()

    ended = NODES * len(seeds) - sum(len(history.hosts) for history in histories)
    assert len(seeds) < ended < NODES * len(seeds)


@pytest.mark.parametrize("seeds", _chunks()[1::4], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_nodes_end_when_their_data_is_removed_in_any_order(seeds: range) -> None:
    """Each node ends for lost data, whatever is missed first; none calls it a refused start."""
    for seed in seeds:
        history = History(seed)
        history.run()
        hosts = list(history.hosts)
        history.wipe()

        assert not history.hosts
        assert all(isinstance(host.error, LogCorrupt) for host in hosts)


def test_a_seed_repeats_its_history() -> None:
    """What is found must be there again when somebody looks at it."""
    for seed in (1, 2, 3):
        one, other = History(seed).run(), History(seed).run()
        assert one.ensemble.transactions == other.ensemble.transactions
        assert [log.entries for log in one.logs] == [log.entries for log in other.logs]
