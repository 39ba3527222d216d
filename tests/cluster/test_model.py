"""The protocol of a cluster, in random histories over the real machines."""

import time

import pytest

from tests.cluster.model import History

CPU_S = 12.0


def test_nothing_acknowledged_is_lost_whatever_the_order() -> None:
    """As many histories as some seconds of CPU allow; at night there are 20,000."""
    until_s = time.process_time() + CPU_S
    seed = acks = reads = 0
    while time.process_time() < until_s or seed < 100:
        world = History(seed).run()
        acks += world.acks
        reads += world.reads
        seed += 1

    assert acks > 10 * seed
    assert reads > seed


@pytest.mark.parametrize("seed", [1, 7])
def test_a_seed_repeats_its_history(seed: int) -> None:
    """Else what is found could not be looked at."""
    one, other = History(seed).run(), History(seed).run()

    assert one.ensemble.transactions == other.ensemble.transactions
    assert [log.entries for log in one.logs] == [log.entries for log in other.logs]
