"""The JSON API: read-only, by page, with ETags. docs/http.md says what it shows.

Everything is shown as its viewer may see it. Whether he may is decided by rules and names alone,
before anything is looked at, so neither answer nor time tells what else there is.
"""

import base64
import binascii
import bisect
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from coordinator.group.core import Now
from coordinator.group.facts import GroupFacts, PartitionFacts, TopicEndFacts
from coordinator.group.lag import Turn
from coordinator.group.lag_samples import MINUTE_MS, SAMPLES_KEPT
from coordinator.group.shard import GroupShard
from coordinator.group.states import GroupState
from coordinator.http import views
from coordinator.http.ask import Asker
from coordinator.http.node_view import NodeView
from coordinator.http.openapi import CURSOR, Operation, Parameter, Query, document
from coordinator.http.overview import ORDERS, PAGES_MAX, Overview, Snapshot
from coordinator.http.routes import Answer, HttpRequest, Pause, Refused
from coordinator.http.turns import in_turns, sorted_in_turns
from coordinator.http.viewer import Viewer
from coordinator.runtime.node import Node
from protocol.messages import DescribeRebalancesRequest

T = TypeVar("T")

LIMIT_MAX: Final = 2_000
REBALANCES_MAX: Final = 100
# What of a minute passes until its sample of everything is surely there.
SAMPLING_MS: Final = 2_000
_DIGEST_BYTES: Final = 12
_TURN_ROWS: Final = 50
_TURN_NAMES: Final = 2_000

_LIMIT: Final = Parameter("limit", "how many at most", 200, 1, LIMIT_MAX)
_Q: Final = Parameter("q", "part of the name, in any case")
_STATES: Final = tuple(state.value for state in GroupState)
_GROUP: Final = Parameter("group", "its id", is_required=True)
_GROUPS: Final = (
    Parameter("sort", "what comes first", "lag", choices=tuple(ORDERS)),
    _Q,
    Parameter("state", "in this state; again for more", choices=_STATES, many=True),
    _LIMIT,
    CURSOR,
    Parameter("samples", "lags of so many minutes", SAMPLES_KEPT, 0, SAMPLES_KEPT),
)
_PARTITIONS: Final = (
    _GROUP,
    Parameter("topic", "of this topic alone"),
    Parameter("sort", "what comes first", "id", choices=("id", "lag")),
    _LIMIT,
    CURSOR,
    Parameter("samples", "lags of so many minutes", 0, 0, SAMPLES_KEPT),
)
_REBALANCES: Final = (_GROUP, Parameter("limit", "how many at most", 20, 1, REBALANCES_MAX))
_TOPIC: Final = Parameter("topic", "its name", is_required=True)
_TOPICS: Final = (_Q, _LIMIT, CURSOR)

# What stands in the cursor of a list: the snapshot (0 for none), and the key of the last item.
_CURSORS: Final = {
    "lag": tuple[int, int, str],
    "lag_seconds": tuple[int, float, int, str],
    "members": tuple[int, int, str],
    "id": tuple[int, str],
    "partition": tuple[int, str, int],
    "partition_lag": tuple[int, int, str, int],
    "topic": tuple[int, str],
}


def sampled_minute(now: Now) -> int:
    """Return the last minute of which there is a sample of everything."""
    return (now.mono_ms - SAMPLING_MS) // MINUTE_MS


def write_cursor(*where: Any) -> str:
    """Return *where* as it stands in a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(where)).rstrip(b"=").decode()


def read_cursor(text: str, kind: str) -> tuple[Any, ...] | None:
    """Return what `write_cursor` wrote, None for an empty *text*.

    Raises:
        Refused: It is none of a list of this *kind*.
    """
    if not text:
        return None
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        read: tuple[Any, ...] = msgspec.json.decode(packed, type=_CURSORS[kind])
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise Refused(400, "cursor: it is none that came with this list") from None
    return read


def known_already(request: HttpRequest, etag: str) -> bool:
    """Say whether the peer has what has this *etag*, so that it need not be made."""
    return request.headers.get("if-none-match") == etag


def answer_of(parts: Sequence[bytes]) -> Answer:
    """Return an answer whose tag is read off what it says."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return Answer(body=parts, etag=f'"{digest.hexdigest()}"')


def next_path(request: HttpRequest, cursor: str) -> str:
    """Return the path of the page behind the one that *request* asks for."""
    given = {name: values for name, values in request.query.items() if name != CURSOR.name}
    return replace(request, query={**given, CURSOR.name: [cursor]}).target


def page_of(
    request: HttpRequest,
    limit: int,
    rows: Sequence[T],
    key: Callable[[T], tuple[Any, ...]],
    cursor: tuple[Any, ...] | None,
    snapshot: int = 0,
) -> tuple[Sequence[T], str | None]:
    """Return the page of *rows* behind *cursor*, and the path of the next one, if there is any.

    Args:
        request: What asks for it.
        limit: How long it may be.
        rows: All of the list, in the order of their *key*.
        key: Stands in the cursor for the last row of a page.
        cursor: As read; None is the first page.
        snapshot: The number of that which the rows are of.
    """
    at = 0 if cursor is None else bisect.bisect_right(rows, cursor[1:], key=key)
    shown = rows[at : at + limit]
    if at + len(shown) >= len(rows):
        return shown, None
    return shown, next_path(request, write_cursor(snapshot, *key(shown[-1])))


class Api:
    """Answers what is asked of one node."""

    def __init__(
        self, node: Node, overview: Overview, node_view: NodeView, asker: Asker, pause: Pause
    ) -> None:
        self._node = node
        self._overview = overview
        self._node_view = node_view
        self._asker = asker
        self._pause = pause

    def operations(self) -> tuple[Operation, ...]:
        """Return everything that can be asked, but for the events."""
        group, named = "/api/v1/group", "/api/v1/groups/{group}"
        return (
            Operation("/api/v1/node", "The node", self.node, views.Node),
            Operation("/api/v1/groups", "All groups", self.groups, views.Groups, _GROUPS),
            Operation(group, "One group", self.group, views.GroupAlone, (_GROUP,), named=named),
            Operation(
                f"{group}/partitions",
                "The partitions of a group",
                self.partitions,
                views.Partitions,
                _PARTITIONS,
                named=f"{named}/partitions",
            ),
            Operation(
                f"{group}/rebalances",
                "Why a group rebalanced, the newest first",
                self.rebalances,
                views.Rebalances,
                _REBALANCES,
                named=f"{named}/rebalances",
            ),
            Operation("/api/v1/topics", "All topics, by name", self.topics, views.Topics, _TOPICS),
            Operation(
                "/api/v1/topic",
                "One topic",
                self.topic,
                views.TopicAlone,
                (_TOPIC,),
                named="/api/v1/topics/{topic}",
            ),
        )

    # --- the node -----------------------------------------------------------------------

    async def node(self, request: HttpRequest, _query: Query) -> Answer:
        """Answer /api/v1/node, also while the node loads."""
        request.need_cluster()
        return answer_of([views.encode(await self.show_node(with_samples=True))])

    async def show_node(self, *, with_samples: bool) -> views.Node:
        """Return the node."""
        try:
            states = (await self._overview.current()).states
        except Refused:
            states = {}
        return self._node_view.show(states, with_samples=with_samples)

    # --- groups -------------------------------------------------------------------------

    async def groups(self, request: HttpRequest, query: Query) -> Answer:
        """Answer /api/v1/groups."""
        order = query.text("sort")
        cursor = read_cursor(query.text("cursor"), order)
        kept = None if cursor is None else self._overview.kept(cursor[0])
        snapshot = kept or await self._overview.current()
        minute = sampled_minute(self._node.now())
        sight = None if request.viewer.sees_cluster else request.viewer.sight
        # Weak: a lag in seconds that has only grown with time is no other answer. Whoever doesn't
        # see all groups has it read off what he sees: others change unseen.
        etag = f'W/"{self._overview.boot}-{snapshot.version}-{minute}"' if sight is None else None
        if etag is not None and known_already(request, etag):
            return Answer(etag=etag)
        shown = sorted(request.query.items())
        asked = (sight, minute, request.path, *((k, *v) for k, v in shown))
        async with snapshot.encoding:
            parts = snapshot.pages.pop(asked, None)
            if parts is None:
                parts = await self._groups(request, query, snapshot, cursor, minute)
            snapshot.pages[asked] = parts
            if len(snapshot.pages) > PAGES_MAX:
                del snapshot.pages[next(iter(snapshot.pages))]
        return answer_of(parts) if etag is None else Answer(body=parts, etag=etag)

    async def _groups(
        self,
        request: HttpRequest,
        query: Query,
        snapshot: Snapshot,
        cursor: tuple[Any, ...] | None,
        minute: int,
    ) -> list[bytes]:
        order = query.text("sort")
        rows = await snapshot.in_order(order, self._pause)
        viewer = request.viewer
        if not viewer.sees_cluster:
            rows = await self._filtered(rows, lambda row: viewer.sees_group(row.group_id))
        part, states = query.text("q").casefold(), frozenset(query.many("state"))
        if part or states:
            rows = await self._filtered(
                rows,
                lambda row: part in row.group_id.casefold() and (not states or row.state in states),
            )
        limit = query.number("limit")
        shown, following = page_of(request, limit, rows, ORDERS[order], cursor, snapshot.number)
        if following is not None:
            self._overview.keep(snapshot)
        show = partial(self._show_group, query.number("samples"), minute)
        as_of = views.encode(views.moment(snapshot.at.wall_ms))
        return await self._list(shown, show, len(rows), following, b'{"as_of":' + as_of + b",")

    def _show_group(self, count: int, minute: int, row: GroupFacts) -> views.Group:
        samples: Sequence[int] = ()
        if count:
            core = self._node.shard_of(row.group_id).core
            samples = core.group_curve(row.group_id, minute + 1)[-count:]
        return views.group(row, samples, self._sampled_ms(minute))

    def _sampled_ms(self, minute: int) -> int:
        """Return the wall clock's time at a monotonic *minute*."""
        now = self._node.now()
        return now.wall_ms - (now.mono_ms - minute * MINUTE_MS)

    async def group(self, request: HttpRequest, query: Query) -> Answer:
        """Answer /api/v1/group."""
        shown = await self.show_group(await self._named(request, query), request.viewer)
        members = await self._encoded(shown.members, _as_it_is)
        # The first that is not within quotes: in a text they have a backslash.
        data = views.encode(structs.replace(shown, members=[]))
        head, key, tail = data.partition(b'"members":[')
        parts = [head + key, *members, tail]
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for part in parts:
            digest.update(part)
            await self._pause()
        return Answer(body=parts, etag=f'"{digest.hexdigest()}"')

    async def outline(self, group_id: str) -> GroupFacts | None:
        """Return the numbers of one group but those that time changes, None if there is none."""
        walk = self._core_of(group_id).facts_of(group_id, self._node.now().mono_ms, Turn())
        for row in await in_turns(walk, self._pause):
            return row._replace(lag_seconds=0, earlier_ms=0)
        return None

    async def _named(self, request: HttpRequest, query: Query) -> str:
        """Return the group that is asked for. Raises Refused if the viewer may not see it."""
        group_id, viewer = query.text("group"), request.viewer
        request.need_group(group_id)
        if not viewer.sees_group(group_id):
            raise await self._asker.no_group(group_id, viewer)
        return group_id

    async def show_group(self, group_id: str, viewer: Viewer) -> views.GroupAlone:
        """Return one group with everything but its partitions. Raises Refused."""
        core = self._core_of(group_id)
        now = self._node.now()
        turn = Turn()
        # Nothing pauses within a turn, so a group of ordinary size is seen at one moment.
        topics = await in_turns(core.topic_facts(group_id, now.mono_ms, turn), self._pause)
        members = await in_turns(core.member_facts(group_id, now.mono_ms, turn), self._pause)
        rows = await in_turns(core.facts_of(group_id, now.mono_ms, turn), self._pause)
        if not rows:
            await self._asker.group(group_id, lambda _core: None, viewer)
            return await self.show_group(group_id, viewer)  # It came while nobody looked.
        row = rows[0]
        minute = sampled_minute(now)
        shown_members = await self._shown(members, views.member)
        if not viewer.sees_all:
            topics = await self._filtered(topics, lambda row: viewer.sees_topic(row.topic))
        shown_topics = await self._shown(topics, views.topic_of_group)

        def look(core: GroupShard) -> views.GroupAlone:
            group = core.groups[group_id]
            running = core.running(group_id, self._node.now().mono_ms)
            samples = core.group_curve(group_id, minute + 1)
            return views.GroupAlone(
                members=shown_members,
                samples=[views.known(lag) for lag in samples],
                sampled_at=views.moment(self._sampled_ms(minute)) if samples else None,
                generation=row.generation,
                protocol=row.protocol or None,
                leader=group.leader,
                retention_ms=group.retention_ms,
                topics=shown_topics,
                rebalance=None if running is None else views.running(running),
                **views.group_fields(row),
            )

        return await self._asker.group(group_id, look, viewer)

    def _core_of(self, group_id: str) -> GroupShard:
        return self._asker.shard_of(group_id).core

    async def partitions(self, request: HttpRequest, query: Query) -> Answer:
        """Answer /api/v1/group/partitions."""
        group_id, topic = await self._named(request, query), query.text("topic") or None
        viewer = request.viewer
        core = self._core_of(group_id)
        now = self._node.now()
        is_by_lag = query.text("sort") == "lag"
        cursor = read_cursor(query.text("cursor"), "partition_lag" if is_by_lag else "partition")
        turn = Turn()
        walk = core.partition_facts(group_id, now.mono_ms, turn, topic=topic)
        rows = await in_turns(walk, self._pause)
        if not viewer.sees_all:
            rows = await self._filtered(rows, lambda row: viewer.sees_topic(row.topic))
        key = _by_lag if is_by_lag else _by_name
        if is_by_lag:
            rows = await sorted_in_turns(rows, key, self._pause)
        shown, following = page_of(request, query.number("limit"), rows, key, cursor)
        minute, count = sampled_minute(now), query.number("samples")

        def show(row: PartitionFacts) -> views.Partition:
            samples: Sequence[int] = ()
            if count:
                samples = core.curve(group_id, row.topic, row.partition, minute + 1)[-count:]
            return views.partition(row, samples)

        parts = await self._list(shown, show, len(rows), following)
        # Empty-handed: what was seen before is on disk when this comes back.
        await self._asker.group(group_id, lambda _core: None, viewer)
        return answer_of(parts)

    async def rebalances(self, request: HttpRequest, query: Query) -> Answer:
        """Answer /api/v1/group/rebalances."""
        asked = DescribeRebalancesRequest(await self._named(request, query), REBALANCES_MAX)
        found = await self._asker.group(
            asked.group_id,
            lambda core: core.describe_rebalances(asked).rebalances,
            request.viewer,
        )
        shown = found[: query.number("limit")]
        return answer_of(await self._list(shown, views.rebalance, len(found), None))

    # --- topics -------------------------------------------------------------------------

    async def topics(self, request: HttpRequest, query: Query) -> Answer:
        """Answer /api/v1/topics."""
        cursor = read_cursor(query.text("cursor"), "topic")
        core = self._node.registry.core
        rows = await in_turns(core.topic_facts(self._node.now(), Turn()), self._pause)
        viewer = request.viewer
        if not viewer.sees_all:
            rows = await self._filtered(rows, lambda row: viewer.sees_topic(row.topic))
        part = query.text("q").casefold()
        if part:
            rows = await self._filtered(rows, lambda row: part in row.topic.casefold())
        shown, following = page_of(request, query.number("limit"), rows, _by_topic, cursor)
        parts = await self._list(shown, _show_topic, len(rows), following)
        await self._asker.topics(lambda _core: None)
        return answer_of(parts)

    async def topic(self, request: HttpRequest, query: Query) -> Answer:
        """Answer /api/v1/topic."""
        name, viewer = query.text("topic"), request.viewer
        if not viewer.sees_topic(name):
            raise await self._asker.no_topic(name, viewer)
        registry = self._node.registry.core.registry
        known, ends = await self._asker.topics(
            lambda _core: (registry.topics.get(name), dict(registry.ends_of(name)))
        )
        if known is None or known.is_deleted:
            raise await self._asker.no_topic(name, viewer)
        hosts = {item.partition: list(item.hosts) for item in known.hosts}
        history, now = registry.ends_history.of(name), self._node.now()
        ages: list[int] = []

        def show(partition: int) -> views.PartitionOfTopic:
            end = ends.get(partition)
            if end is None:
                return views.PartitionOfTopic(partition, hosts.get(partition, []), None, None)
            ages.append(history.age_ms(end, now.mono_ms, now.wall_ms))
            told = views.time_of(history.told_ms(end))
            return views.PartitionOfTopic(partition, hosts.get(partition, []), end.end_offset, told)

        rows = await self._encoded(range(known.partition_count), show)
        end_sum = sum([end.end_offset for end in ends.values()]) if ends else -1
        count, age_ms = known.partition_count, max(ages, default=-1)
        facts = TopicEndFacts(name, count, count - len(ends), end_sum, age_ms)
        head = views.encode(_show_topic(facts))
        return answer_of([head[:-1] + b',"partitions":[', *rows, b"]}"])

    # --- lists --------------------------------------------------------------------------

    async def _filtered(self, rows: Sequence[T], is_wanted: Callable[[T], bool]) -> list[T]:
        found: list[T] = []
        for at in range(0, len(rows), _TURN_NAMES):
            found += filter(is_wanted, rows[at : at + _TURN_NAMES])
            await self._pause()
        return found

    async def _shown(self, rows: Sequence[T], show: Callable[[T], Any]) -> list[Any]:
        """Return *rows* as they are shown; pauses where there are many."""
        shown: list[Any] = []
        for at in range(0, len(rows), _TURN_NAMES):
            if at:
                await self._pause()
            shown += map(show, rows[at : at + _TURN_NAMES])
        return shown

    async def _encoded(self, rows: Sequence[T], show: Callable[[T], Any]) -> list[bytes]:
        """Return *rows* in JSON with commas in between, without brackets."""
        parts = []
        for at in range(0, len(rows), _TURN_ROWS):
            some = views.encode(list(map(show, rows[at : at + _TURN_ROWS])))[1:-1]
            parts.append(b"," + some if at else some)
            await self._pause()
        return parts

    async def _list(
        self,
        rows: Sequence[T],
        show: Callable[[T], Any],
        total: int,
        following: str | None,
        head: bytes = b"{",
    ) -> list[bytes]:
        items = await self._encoded(rows, show)
        tail = b'],"total":%d,"next":%s}' % (total, views.encode(following))
        return [head + b'"items":[', *items, tail]


def _as_it_is(shown: T) -> T:
    return shown


def _by_name(row: PartitionFacts) -> tuple[Any, ...]:
    return row.topic, row.partition


def _by_lag(row: PartitionFacts) -> tuple[Any, ...]:
    return -row.lag, row.topic, row.partition


def _by_topic(row: TopicEndFacts) -> tuple[Any, ...]:
    return (row.topic,)


def _show_topic(facts: TopicEndFacts) -> views.Topic:
    end_sum, age_ms = views.known(facts.end_sum), views.known(facts.age_ms)
    return views.Topic(facts.topic, facts.partition_count, facts.unknown, end_sum, age_ms)


def openapi_operation(operations: Sequence[Operation]) -> Operation:
    """Return what answers with the OpenAPI document of *operations*, and of itself."""

    async def openapi(_request: HttpRequest, _query: Query) -> Answer:
        return answer

    summary = "This document"
    itself = Operation(
        "/api/v1/openapi.json", summary, openapi, views.OpenApi, is_quick=True, is_open=True
    )
    answer = answer_of([msgspec.json.encode(document([*operations, itself]))])
    return itself
