"""A cluster is made once, whoever makes it at the same time, and wherever one of them stops."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, product
from typing import Any, Final, NamedTuple

import pytest

from coordinator.cluster import znodes
from coordinator.cluster.engine import (
    NO_LEADER,
    Code,
    Install,
    Leader,
    Request,
    SetLeader,
    Snapshot,
    WriteChunk,
)
from coordinator.cluster.errors import ClusterRefused
from coordinator.cluster.founding import Place
from coordinator.cluster.layout import Layout
from coordinator.cluster.zookeeper import Access
from tests.sim.ensemble import Ensemble

LAYOUT: Final = Layout(num_partitions=70, journals=2)  # More than one transaction.
ACCESS: Final = Access(hosts="a:1", chroot="/gc", session_timeout_ms=6_000)
ONE, OTHER = "A" * 22, "B" * 22


class Stopped(Exception):
    """The process has ended in the middle."""


class Visitor:
    """A session for one who waits for each answer; *before* is called with the number of each.

    If it *lags*, its server is as far behind as the session allows.
    """

    def __init__(
        self, ensemble: Ensemble, before: Callable[[int], None], *, lags: bool = False
    ) -> None:
        self._ensemble = ensemble
        self._session = ensemble.connect()
        self._before = before
        self._lags = lags
        self._numbers = count()

    def do(self, operation: znodes.Operation) -> znodes.Result:
        """Do it."""
        self._before(next(self._numbers))
        if not self._lags:
            self._ensemble.catch_up(self._session, self._ensemble.transactions)
        result = self._ensemble.do(self._session, operation, None)
        if isinstance(operation, znodes.Multi):
            self._ensemble.catch_up(self._session, self._ensemble.transactions)
        return result


class Founder(NamedTuple):
    """One that makes a cluster with this id: empty, or of the folder of a daemon."""

    cluster_id: str
    has_folder: bool

    def found(self, ensemble: Ensemble, before: Callable[[int], None] = lambda _: None) -> str:
        """Return the cluster that it found or made. Raises ClusterRefused."""
        visit: Any = Visitor(ensemble, before)
        place = Place(visit, ACCESS)
        there = place.cluster_id()
        if self.has_folder:
            if there is not None:
                raise ClusterRefused("there is one already")
            version = place.begin_anew(LAYOUT, b"folder")
            for request in self._requests():
                reply = znodes.reply(request, visit.do(znodes.operation(request)))
                if reply.code is not Code.OK:
                    raise ClusterRefused(reply.code.name)
            there = place.finish(self.cluster_id, version)
        elif there is None:
            place.begin(LAYOUT, b"secret")
            there = place.finish(self.cluster_id)
        place.check_layout(LAYOUT)
        return there

    def _requests(self) -> Iterator[Request]:
        for journal in range(LAYOUT.journals):
            yield WriteChunk(journal, self.cluster_id, 0, b"batches")
            yield Install(journal, 0, Snapshot(name=self.cluster_id, chunks=1), 0)
            leader = Leader(7, NO_LEADER, "", 0, self.cluster_id)
            yield SetLeader(journal, 0, leader, LAYOUT.partitions_of(journal), ())

    def made(self, ensemble: Ensemble) -> bool:
        """Say whether all that is there is what it makes."""
        name = self.cluster_id if self.has_folder else ""
        snapshots = [ensemble.at(f"/journals/{j}/snapshot") for j in range(LAYOUT.journals)]
        leaders = [ensemble.at(znodes.leader_path(j)) for j in range(LAYOUT.journals)]
        whole = all(ensemble.at(make.path) for make in znodes.founding(*LAYOUT))
        return (
            whole
            and [znodes.decode_snapshot(one.data).name for one in snapshots if one] == [name] * 2
            and [one.version for one in leaders if one] == [int(self.has_folder)] * 2
        )


FOUNDERS: Final = tuple(
    Founder(name, has_folder) for name, has_folder in product((ONE, OTHER), (False, True))
)
PAIRS: Final = [(one, other) for one in FOUNDERS[:2] for other in FOUNDERS]


def steps_of(founder: Founder) -> int:
    """Return how many operations it takes alone."""
    numbers: list[int] = []
    founder.found(Ensemble(), numbers.append)
    return len(numbers)


def winner(ensemble: Ensemble, founders: tuple[Founder, ...]) -> Founder | None:
    """Return who has made the cluster that is there; one must have, if there is one."""
    znode = ensemble.at(znodes.CLUSTER_ID)
    if znode is None:
        return None
    (found,) = {
        one for one in founders if one.cluster_id.encode() in znode.data and one.made(ensemble)
    }
    return found


def tried(founder: Founder, ensemble: Ensemble, told: list[str], before: Any = None) -> None:
    """Have it tried, and note which cluster it tells."""
    with suppress(ClusterRefused, Stopped):
        told.append(founder.found(ensemble, before or (lambda _: None)))


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
@pytest.mark.parametrize("stops", [False, True])
def test_one_whole_cluster_comes_of_two_foundings(
    pair: tuple[Founder, Founder], *, stops: bool
) -> None:
    """The second one happens between any two steps of the first, which goes on or has ended."""
    first, second = pair
    for at in range(steps_of(first)):
        ensemble, told = Ensemble(), list[str]()

        def interrupt(number: int, at: int = at, ensemble: Ensemble = ensemble) -> None:
            if number == at:
                tried(second, ensemble, told)  # noqa: B023 - called within this round
                if stops:
                    raise Stopped

        tried(first, ensemble, told, interrupt)
        found = winner(ensemble, pair)
        if found is None:  # Neither founder has finished: one with a folder may, or else either.
            tried(max(pair, key=lambda one: one.has_folder), ensemble, told)
            found = winner(ensemble, pair)

        assert found is not None, at
        assert set(told) <= {found.cluster_id}, at


def test_a_cluster_that_was_made_meanwhile_is_not_removed_for_a_folder() -> None:
    """The folder is compacted between the first look and the first write: that takes minutes."""
    ensemble = Ensemble()
    visit: Any = Visitor(ensemble, lambda _: None)
    place = Place(visit, ACCESS)
    assert place.cluster_id() is None
    Founder(ONE, has_folder=False).found(ensemble)
    before = ensemble.transactions

    with pytest.raises(ClusterRefused, match=f"holds the cluster {ONE} already"):
        place.begin_anew(LAYOUT, b"folder")

    assert Founder(ONE, has_folder=False).made(ensemble)
    assert not any(ensemble._steps[before:])


def test_what_is_being_filled_from_a_folder_is_not_taken_for_an_empty_cluster() -> None:
    """Half of the folder's groups would have gone on, and the others begun anew."""
    ensemble = Ensemble()
    visit: Any = Visitor(ensemble, lambda _: None)
    Place(visit, ACCESS).begin_anew(LAYOUT, b"folder")

    with pytest.raises(ClusterRefused, match=r"by `cluster init --from`.*run it again"):
        Founder(OTHER, has_folder=False).found(ensemble)


def test_a_server_that_is_behind_hides_no_cluster() -> None:
    """Right after `cluster init` a start was refused for good (78), as if there were none."""
    ensemble = Ensemble()
    visit: Any = Visitor(ensemble, lambda _: None, lags=True)
    Founder(ONE, has_folder=True).found(ensemble)

    assert Place(visit, ACCESS).cluster_id() == ONE
