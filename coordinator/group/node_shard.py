"""What belongs to the node and to no group, in the form of a shard: its own partition of the log.

Topics, rules of access, users and quotas lie there. None of them knows another: each says which
records and requests are its own, and this hands them on.

What a change of topics means for groups is not decided here: `take_changes` tells the shards of
groups (see `maintenance`), and when each of them has removed a deleted topic's offsets, the topic
is forgotten (`forget`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from coordinator.group import acls, facts, quotas, registry, users
from coordinator.group.core import NOBODY, Caller, Handlers, Now, Outcome, Step
from coordinator.group.node_records import NodeRecord
from coordinator.group.registry import HardRegistry, Registry
from coordinator.group.topics import Topics
from protocol.messages import Request


class Subject(Protocol):
    """One of the things that lie in the node's partition."""

    handlers: Handlers

    def replay(self, record: Any) -> object:
        """Apply one record of its own."""

    def loaded(self) -> None:
        """Start to serve what was replayed."""

    def reset(self) -> None:
        """Forget everything."""


class HardNode(NamedTuple):
    """What a crash leaves of the node's partition."""

    topics: HardRegistry
    rules: tuple[acls.Rule, ...]
    users: tuple[users.CredentialSet, ...]
    quotas: tuple[quotas.QuotaSet, ...]


class NodeShard:
    """The same shape as `GroupShard` for whoever runs it: `replay`, `loaded`, then the rest.

    Attributes:
        registry: The topics, as groups ask for them.
        rules: The rules of access.
        users: Those who can log in with a password.
        quotas: How much each may take.
        describe: See `Topics.describe`; likewise ``length``.
        take_changes: See `Topics.take_changes`.
        topic_facts: See `facts.topic_end_facts`.
        storage_full: Whether only what removes goes on.
    """

    def __init__(self, registry_: Registry) -> None:
        self.registry = registry_
        self.rules = acls.Rules()
        self.users = users.Users()
        totals = registry_.totals
        self.quotas = quotas.Quotas(totals.quotas_changed)
        totals.quota = self.quotas.limit
        self.storage_full = False
        self._topics = topics = Topics(registry_)
        self.describe = topics.describe
        self.length = topics.length
        self.take_changes = topics.take_changes
        self.topic_facts = partial(facts.topic_end_facts, registry_)
        self._end_offset = 0
        self._latest: Outcome | None = None  # The decision in the making, see `interrupted`.
        of_subject: Final[Mapping[Subject, Iterable[type]]] = {
            topics: registry.WRITERS,
            self.rules: acls.WRITERS,
            self.users: users.WRITERS,
            self.quotas: quotas.WRITERS,
        }
        self._subjects = tuple(of_subject)
        self._replay: dict[type, Callable[[Any], object]] = {
            type_: subject.replay for subject, types in of_subject.items() for type_ in types
        }
        self._handlers = {
            type_: handler for subject in of_subject for type_, handler in subject.handlers.items()
        }

    # --- life -------------------------------------------------------------------------------

    def begin_replay(self, now: Now) -> None:
        """Note when what comes is replayed."""
        self.registry.now_ms = (now.mono_ms, now.wall_ms)

    def replay(self, record: NodeRecord) -> None:
        """Apply one record of the log."""
        self._replay[type(record)](record)

    def caught_up(self) -> None:
        """Let groups, and whoever asks who may do what, look at what was replayed."""
        for subject in self._subjects:
            subject.loaded()

    def loaded(self, now: Now) -> list[Outcome]:  # noqa: ARG002  the shape of a shard
        """Start to serve."""
        self.caught_up()
        return []

    def finish_load(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
        """Do the same, in the form of a shard of groups."""
        yield self.loaded(now())

    def unload(self, now: Now) -> list[Outcome]:  # noqa: ARG002  as above
        """Stop serving and forget everything."""
        for subject in self._subjects:
            subject.reset()
        return []

    def rest(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:  # noqa: ARG002  as above
        """Stop serving; groups go on looking at what is there."""
        return iter(())

    def hard_state(self) -> HardNode:
        """Return what a crash would leave."""
        return HardNode(
            self.registry.hard_state(),
            self.rules.hard_state(),
            self.users.hard_state(),
            self.quotas.hard_state(),
        )

    def next_deadline_ms(self) -> int | None:
        """Return None: nothing here waits for the time."""
        return None

    def shift_deadlines(self, by_ms: int) -> None:
        """Do nothing, as there are no deadlines."""

    def expire(self, now: Now) -> list[Outcome]:  # noqa: ARG002  as above
        """Return nothing, as there are no deadlines."""
        return []

    def released(self, member: object, now: Now) -> None:
        """Do nothing: no reply of this shard belongs to a member."""

    def kept(self, group_id: str, end_offset: int) -> None:  # noqa: ARG002  as above
        """Note that what was decided is in the log, up to *end_offset*."""
        self._end_offset = end_offset
        self._topics.kept(end_offset)

    def end_offset(self, group_id: str) -> int:  # noqa: ARG002  as above
        """Return the end offset of the last entry: what is known waits for that."""
        return self._end_offset

    def withdraw(self, token: object, now: Now) -> Outcome | None:  # noqa: ARG002  as above
        """Return None: no request is ever parked here."""
        return None

    @property
    def has_parked(self) -> bool:
        """Return False, likewise."""
        return False

    def interrupted(self) -> Outcome | None:
        """Return what a `handle` or `forget` that raised had decided, if it had begun."""
        return self._latest

    # --- deciding ---------------------------------------------------------------------------

    def handle(self, request: Request, token: object, caller: Caller, now: Now) -> Outcome:
        """Decide one request; its reply is gated.

        Raises:
            KeyError: It is none that changes topics, rules, users or quotas.
        """
        self._latest = None
        handler = self._handlers[type(request)]
        step = self._step(now, caller)
        step.outcome.replies.append((token, handler(request, step), None, True, None))
        return step.outcome

    def forget(self, purged: Iterable[str]) -> Outcome:
        """Forget deleted topics that no group has offsets of any more."""
        step = self._step(Now(0, 0), NOBODY)  # It asks for neither.
        self._topics.forget(purged, step)
        return step.outcome

    def _step(self, now: Now, caller: Caller) -> Step:
        self._latest = outcome = Outcome("")
        return Step(now, caller, self.storage_full, outcome)
