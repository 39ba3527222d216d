"""The node's own partition of the log, with the interface of a shard: topics, rules, users, quotas.

Each of these subjects is independent, and names its own types of records and requests, which are
dispatched here.

Effects of topic changes on groups are decided elsewhere: `take_changes` returns the changes for the
group shards (see `maintenance`). A deleted topic is forgotten (`forget`) once every shard has
removed its offsets.
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
    """One kind of state in the node's partition."""

    handlers: Handlers

    def replay(self, record: Any) -> object:
        """Apply one record of this subject."""

    def loaded(self) -> None:
        """Start to serve the replayed state."""

    def reset(self) -> None:
        """Remove all state."""


class HardNode(NamedTuple):
    """Hard state of the node's partition: what survives a crash."""

    topics: HardRegistry
    rules: tuple[acls.Rule, ...]
    users: tuple[users.CredentialSet, ...]
    quotas: tuple[quotas.QuotaSet, ...]


class NodeShard:
    """The node's own partition, used like a `GroupShard`: `replay`, `loaded`, then the rest.

    Attributes:
        registry: The topics, for lookups by groups.
        rules: The rules of access.
        users: The users with a password.
        quotas: The quotas of principals.
        describe: See `Topics.describe`; likewise ``length``.
        take_changes: See `Topics.take_changes`.
        topic_facts: See `facts.topic_end_facts`.
        storage_full: Whether only requests that remove something succeed.
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
        self._latest: Outcome | None = None  # The current decision, see `interrupted`.
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
        """Set the time of the replay."""
        self.registry.now_ms = (now.mono_ms, now.wall_ms)

    def replay(self, record: NodeRecord) -> None:
        self._replay[type(record)](record)

    def caught_up(self) -> None:
        """Make the replayed state visible to groups and to authorization."""
        for subject in self._subjects:
            subject.loaded()

    def loaded(self, now: Now) -> list[Outcome]:  # noqa: ARG002  the shape of a shard
        """Start to serve."""
        self.caught_up()
        return []

    def finish_load(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
        """Call `loaded`, in the form of a shard of groups."""
        yield self.loaded(now())

    def unload(self, now: Now) -> list[Outcome]:  # noqa: ARG002  as above
        """Stop serving and remove all state."""
        for subject in self._subjects:
            subject.reset()
        return []

    def rest(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:  # noqa: ARG002  as above
        """Stop serving; groups continue to read the state."""
        return iter(())

    def hard_state(self) -> HardNode:
        return HardNode(
            self.registry.hard_state(),
            self.rules.hard_state(),
            self.users.hard_state(),
            self.quotas.hard_state(),
        )

    def next_deadline_ms(self) -> int | None:
        """Return None: there are no deadlines."""
        return None

    def shift_deadlines(self, by_ms: int) -> None:
        """Do nothing: there are no deadlines."""

    def expire(self, now: Now) -> list[Outcome]:  # noqa: ARG002  as above
        """Return nothing: there are no deadlines."""
        return []

    def released(self, member: object, now: Now) -> None:
        """Do nothing: no reply of this shard belongs to a member."""

    def kept(self, group_id: str, end_offset: int) -> None:  # noqa: ARG002  as above
        """Note that the decisions so far are in the log, up to *end_offset*."""
        self._end_offset = end_offset
        self._topics.kept(end_offset)

    def end_offset(self, group_id: str) -> int:  # noqa: ARG002  as above
        """Return the end offset of the last entry: replies wait for it."""
        return self._end_offset

    def withdraw(self, token: object, now: Now) -> Outcome | None:  # noqa: ARG002  as above
        """Return None: no request is ever parked here."""
        return None

    @property
    def has_parked(self) -> bool:
        """Return False: no request is ever parked here."""
        return False

    def interrupted(self) -> Outcome | None:
        """Return the outcome of a `handle` or `forget` that raised, None if it had not begun."""
        return self._latest

    # --- deciding ---------------------------------------------------------------------------

    def handle(self, request: Request, token: object, caller: Caller, now: Now) -> Outcome:
        """Decide one request; its reply is gated.

        Raises:
            KeyError: The request doesn't change topics, rules, users or quotas.
        """
        self._latest = None
        handler = self._handlers[type(request)]
        step = self._step(now, caller)
        step.outcome.replies.append((token, handler(request, step), None, True, None))
        return step.outcome

    def forget(self, purged: Iterable[str]) -> Outcome:
        """Forget deleted topics without any remaining offsets of groups."""
        step = self._step(Now(0, 0), NOBODY)  # Neither time nor caller is used.
        self._topics.forget(purged, step)
        return step.outcome

    def _step(self, now: Now, caller: Caller) -> Step:
        self._latest = outcome = Outcome("")
        return Step(now, caller, self.storage_full, outcome)
