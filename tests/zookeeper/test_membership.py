"""The machine of one consumer: what it asks for, and what its user has."""

from collections.abc import Iterable

import pytest

from client.zookeeper.membership import (
    BACKOFF_MS,
    HAND_OVER_MS,
    Answer,
    Claim,
    Config,
    ListTopics,
    Membership,
    ReadTopic,
    Register,
    Release,
    Request,
    Result,
    State,
)
from client.zookeeper.registrations import (
    Subscription,
    encode_registration,
    ids_path,
    named,
    owner_path,
    topic_path,
)
from protocol.partition import TopicPartition
from tests.fakes.registry import Ensemble, Registry

GROUP, ME = "g", "g_me"
SESSION_MS = 12_000
OWN = named({"t": 1})
T = [TopicPartition("t", number) for number in range(4)]


class Alone:
    """A machine over an ensemble that answers at once; it keeps what was asked."""

    def __init__(self, subscription: Subscription = OWN) -> None:
        self.ensemble = Ensemble()
        self.ensemble.put(topic_path("t"), b'{"partitions":{"0":[],"1":[],"2":[],"3":[]}}')
        self.registry = Registry(self.ensemble, GROUP, ME)
        self.machine = Membership(Config(GROUP, ME, subscription, 0))
        self.asked: list[Request] = []
        self.now_ms = 0
        self.do(self.machine.opened(SESSION_MS, 0))

    def do(self, requests: Iterable[Request]) -> None:
        """Have everything answered until nothing more is asked."""
        waiting = list(requests)
        while waiting:
            request = waiting.pop(0)
            self.asked.append(request)
            answer = self.registry.do(request)
            waiting += self.machine.answered(request, answer, self.now_ms)

    def let_pass(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        self.do(self.machine.tick(self.now_ms))

    def joins(self, name: str, data: bytes = encode_registration(OWN, 0)) -> None:
        """Have another consumer register, and this one be told."""
        self.ensemble.put(ids_path(GROUP, name), data, 99)
        self.asked.clear()
        self.do(self.machine.changed(self.now_ms))

    def owns(self, partition: TopicPartition) -> bool:
        """Say whether the node of a partition is this one's."""
        node = self.ensemble.owner(GROUP, partition)
        return node is not None and node.session == self.registry.session


def test_a_consumer_alone_gets_everything() -> None:
    """The first one of a group has nobody to wait for."""
    alone = Alone()

    assignment = alone.machine.take()

    assert assignment is not None
    assert (assignment.generation, assignment.partitions) == (1, tuple(T))
    assert set(assignment.threads.values()) == {f"{ME}-0"}
    assert all(map(alone.owns, T))


def test_nothing_is_released_that_stays() -> None:
    """Whoever joins or leaves, most rows are read on without a pause."""
    alone = Alone()
    alone.machine.take()
    alone.joins("g_zz")

    alone.do(alone.machine.hand_over(0))

    assert [one for one in alone.asked if isinstance(one, Release | Claim)] == [
        Release(T[2]),
        Release(T[3]),
    ]
    assignment = alone.machine.take()
    assert assignment is not None
    assert (assignment.generation, assignment.partitions) == (2, (T[0], T[1]))


def test_what_the_user_still_has_is_not_released_before_it_agrees_or_time_is_up() -> None:
    """It may be in the middle of a batch; others have no patience without end."""
    alone = Alone()
    alone.machine.take()
    alone.joins("g_zz")

    assert alone.machine.rebalance_needed
    assert alone.machine.take() is None
    assert not alone.machine.lost
    alone.let_pass(HAND_OVER_MS - 1)
    assert alone.owns(T[3])
    alone.let_pass(1)

    assert not alone.owns(T[3])
    assert alone.machine.lost
    assert set(alone.machine.usable) == {T[0], T[1]}
    assignment = alone.machine.take()
    assert assignment is not None
    assert assignment.partitions == (T[0], T[1])


def test_what_others_still_have_is_awaited_and_the_rest_is_read() -> None:
    """One who hangs on to a partition holds up nobody's others."""
    alone = Alone()
    alone.machine.expired()
    alone.ensemble.end_session(alone.registry.session)
    alone.registry = Registry(alone.ensemble, GROUP, ME)
    alone.ensemble.put(owner_path(GROUP, T[2]), b"g_dead-0", 99)
    alone.do(alone.machine.opened(SESSION_MS, 0))

    assignment = alone.machine.take()
    assert assignment is not None
    assert assignment.partitions == (T[0], T[1], T[3])
    assert assignment.awaited == (T[2],)
    assert alone.machine.next_deadline_ms() == BACKOFF_MS
    alone.ensemble.end_session(99)
    alone.let_pass(BACKOFF_MS)
    complete = alone.machine.take()
    assert complete is not None
    assert (complete.partitions, complete.awaited) == (tuple(T), ())
    assert complete.generation == assignment.generation + 1


@pytest.mark.parametrize("data", [b"g_dead-0", b"", b"\xff", b"g_me"])
def test_an_owners_node_that_stays_for_ever_is_known(data: bytes) -> None:
    """No session's end takes it away, and its consumer isn't there: somebody has to delete it."""
    alone = Alone()
    path = owner_path(GROUP, T[2])
    alone.machine.expired()
    alone.ensemble.end_session(alone.registry.session)
    alone.registry = Registry(alone.ensemble, GROUP, ME)
    alone.ensemble.put(path, data)
    alone.do(alone.machine.opened(SESSION_MS, 0))

    (words,) = alone.machine.orphans.values()
    assert words.startswith(f"{path} is persistent")
    assert "Delete it" in words
    assignment = alone.machine.take()
    assert assignment is not None
    assert assignment.awaited == (T[2],)
    alone.ensemble.delete(path)
    alone.let_pass(BACKOFF_MS)
    complete = alone.machine.take()
    assert complete is not None
    assert complete.partitions == tuple(T)
    assert not alone.machine.orphans


@pytest.mark.parametrize("session", [None, 99])
def test_an_owners_node_of_a_member_is_awaited_whatever_kind_it_is(session: int | None) -> None:
    """Some clients make it persistent, and delete it when they hand over."""
    alone = Alone()
    alone.joins("g_aa")  # It gets the first half.
    alone.do(alone.machine.hand_over(0))
    alone.ensemble.put(owner_path(GROUP, T[0]), b"g_aa-0", session)
    alone.ensemble.put(owner_path(GROUP, T[2]), b"g_aa-0", session)
    alone.machine.expired()
    alone.ensemble.end_session(alone.registry.session)
    alone.registry = Registry(alone.ensemble, GROUP, ME)
    alone.do(alone.machine.opened(SESSION_MS, 0))
    assert not alone.machine.orphans

    # Its member goes, and leaves the node behind.
    alone.ensemble.delete(ids_path(GROUP, "g_aa"))
    alone.do(alone.machine.changed(0))
    assert len(alone.machine.orphans) == (2 if session is None else 0)

    # Another one comes that gets the first half: the rest stays this one's business.
    alone.joins("g_bb")
    assert len(alone.machine.orphans) == (1 if session is None else 0)


def test_a_member_that_makes_no_sense_counts_for_none() -> None:
    """Some clients write a topic's bare name there; the others have to go on."""
    alone = Alone()
    alone.joins("g_odd", b"t")

    assignment = alone.machine.take()

    assert assignment is not None
    assert assignment.partitions == tuple(T)
    assert "g_odd" in alone.machine.unreadable["g_odd"]


def test_topics_are_listed_only_if_somebody_has_a_pattern() -> None:
    """Each new topic of a large cluster would wake every group that reads others."""
    alone = Alone()
    assert ListTopics() not in alone.asked

    alone.joins("g_pattern", b'{"subscription":{"t.*":1},"pattern":"white_list"}')

    assert ListTopics() in alone.asked


def test_a_change_while_the_group_is_read_begins_the_reading_anew() -> None:
    """Half of an old view and half of a new one give a share that nobody else computes."""
    alone = Alone()
    (request,) = alone.machine.changed(0)
    (read,) = alone.machine.answered(request, alone.registry.do(request), 0)
    assert read == ReadTopic("t")

    assert alone.machine.changed(0) == []
    assert alone.machine.answered(read, alone.registry.do(read), 0) == [request]


def test_a_lost_connection_costs_the_partitions_before_the_session_can_end() -> None:
    """Then somebody else may have them; if the session has lived on, they come back."""
    alone = Alone()
    alone.machine.take()
    alone.machine.suspended(0)
    assert alone.machine.next_deadline_ms() == 2_000
    alone.let_pass(1_999)
    assert not alone.machine.lost
    alone.let_pass(1)
    assert alone.machine.lost
    assert not alone.machine.usable

    alone.asked.clear()
    alone.do(alone.machine.resumed(SESSION_MS, 3_000))

    assert not [one for one in alone.asked if isinstance(one, Claim | Release)]
    assignment = alone.machine.take()
    assert assignment is not None
    assert (assignment.generation, assignment.partitions) == (2, tuple(T))


def test_what_the_ensemble_grants_says_when_partitions_are_lost() -> None:
    """A session may end sooner than was asked for, and with each connection another time counts."""
    for granted_ms in range(1, 60_000, 7):
        noticed_ms = granted_ms * 2 // 3  # The latest moment at which kazoo says so.
        machine = Membership(Config(GROUP, ME, OWN, 0))
        machine.opened(SESSION_MS, 0)
        machine.resumed(granted_ms, 0)
        machine._usable = {T[0]: f"{ME}-0"}
        machine.suspended(noticed_ms)
        due_ms = machine.next_deadline_ms()
        assert due_ms is not None
        assert noticed_ms <= due_ms <= granted_ms * 5 / 6


def test_a_claim_without_an_answer_is_claimed_again_or_released() -> None:
    """The node may be there, and would be nobody's for as long as the session lives."""
    machine = Membership(Config(GROUP, ME, OWN, 0))
    registry = Alone().registry
    requests = machine.opened(SESSION_MS, 0)
    while not any(isinstance(one, Claim) for one in requests):
        (request,) = requests
        requests = machine.answered(request, registry.do(request), 0)
    for claim in requests:
        registry.do(claim)
        assert machine.answered(claim, Answer(Result.UNKNOWN), 0) == []
    machine.suspended(0)
    registry.ensemble.put(ids_path(GROUP, "g_aa"), encode_registration(OWN, 0), 99)
    again: list[Request] = []
    waiting = machine.resumed(SESSION_MS, 10)
    while waiting:
        request = waiting.pop(0)
        again.append(request)
        waiting += machine.answered(request, registry.do(request), 10)

    assert [one for one in again if isinstance(one, Release | Claim)] == [
        Release(T[0]),
        Release(T[1]),
        Claim(T[2], f"{ME}-0"),
        Claim(T[3], f"{ME}-0"),
    ]


def test_an_id_that_an_earlier_session_still_has_is_waited_for() -> None:
    """The ensemble hasn't noticed the end of it yet."""
    ensemble = Ensemble()
    ensemble.put(ids_path(GROUP, ME), b"", 99)
    registry = Registry(ensemble, GROUP, ME)
    machine = Membership(Config(GROUP, ME, OWN, 0))
    (register,) = machine.opened(SESSION_MS, 0)

    assert machine.answered(register, registry.do(register), 0) == []
    assert machine.next_deadline_ms() == BACKOFF_MS
    assert machine.tick(BACKOFF_MS - 1) == []
    assert machine.tick(BACKOFF_MS) == [register]


def test_a_node_of_its_own_that_somebody_deleted_is_made_again() -> None:
    """Else all others would share out what it reads, and wait for it for ever."""
    alone = Alone()
    alone.machine.take()
    alone.ensemble.delete(ids_path(GROUP, ME))
    alone.asked.clear()

    alone.do(alone.machine.changed(0))

    assert alone.ensemble.children(ids_path(GROUP)) == (ME,)
    assert not [one for one in alone.asked if isinstance(one, Claim | Release)]
    assert not alone.machine.rebalance_needed


def test_a_refusal_ends_it() -> None:
    """No right to write there will not come by asking again."""
    machine = Membership(Config(GROUP, ME, OWN, 0))
    (register,) = machine.opened(SESSION_MS, 0)
    assert isinstance(register, Register)

    assert machine.answered(register, Answer(Result.REFUSED, why="NoAuthError"), 0) == []
    assert (machine.state, machine.failure) == (State.FAILED, "NoAuthError")
    assert machine.next_deadline_ms() is None
