"""What changes, as server-sent events: encoded once, and sent to everybody who follows.

Theory of operation
===================

While there are streams, all groups are looked at as often as `Overview` allows, and those that the
core tells of 20 ms after it did. What is news waits in one place until it is sent, so a group that
changes twice meanwhile is told once. Frames go out one after the other, to a few streams a turn.

What all streams get has a number and is kept for a minute: a browser that comes back says the last
number that it has, and gets the rest. A group that somebody follows alone is looked at more
often, by a task of its own: at its numbers, and at everything once those are others, or a second
has passed. What it tells has no number, as the next one says all of it anew.

Whoever doesn't see everything gets frames of his own, of what he sees, which have no number: he
reads the lists again when he comes back. When rules change his stream ends, as every stream does
whose viewer is nobody any more, and a browser comes back to what holds now. While rules are loaded
he is told nothing: he could not come back before that, and of some it isn't known yet what they
deny.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import trio
from msgspec import structs

from coordinator.group.core import Now
from coordinator.group.facts import GroupFacts
from coordinator.group.lag_samples import MINUTE_MS
from coordinator.group.states import GroupState
from coordinator.http import views
from coordinator.http.api import SAMPLING_MS, Api, sampled_minute
from coordinator.http.openapi import Operation, Parameter, Query
from coordinator.http.overview import REST, Changes, Overview
from coordinator.http.routes import EventStream, HttpRequest, Pause, Refused, Streaming
from coordinator.http.viewer import EVERYBODY, Viewer
from coordinator.runtime.bulkhead import Task, attempt, attempt_async, keep_up
from coordinator.runtime.telemetry import Telemetry
from protocol.group_ids import group_id_error
from protocol.version import VERSION

HEARD_S: Final = 0.02
NODE_S: Final = 2.0
WATCHED_S: Final = 0.05
REFUSED_S: Final = 1.0
# What moves by itself is told once a second; and an age that is so much less than time has
# passed is another heartbeat's.
MOVED_MS: Final = 1_000
HEARD_AGAIN_MS: Final = 100
# How much longer than a look at the groups that were heard of is the rest before the next.
HEARD_REST: Final = 10
# Groups in one event; and with more news than so many, the lists are to be read again.
FRAME_GROUPS: Final = 64
NEWS_MAX: Final = 2_000
KEPT_MS: Final = 60_000
KEPT_BYTES: Final = 4 * 1024 * 1024
# A stream that owes 256 KiB is ended. What is longer than this is to be read, not sent: else a
# browser would come back for it again and again.
SENT_BYTES_MAX: Final = 128 * 1024
LARGE_GROUP_S: Final = 5.0

# So many surely take more than that.
SENT_MEMBERS_MAX: Final = 1_000

_STREAMS_A_TURN: Final = 4
_MEMBERS_A_TURN: Final = 50
_COSTS: Final = 8
# Who is waited for shows only in a look at everything.
_MOVING: Final = frozenset((GroupState.PREPARING, GroupState.COMPLETING))
T = TypeVar("T", bound=views.View)
_RETRY: Final = b"retry: 1000\n\n"
# For whom the node isn't shown: that the connection is there.
_BEAT: Final = b"event: beat\ndata: {}\n\n"
_GROUP: Final = Parameter("group", "tells of this group also as alone")


def frame(event: str, data: views.View, number: str = "") -> bytes:
    """Return an event; JSON has no line breaks."""
    head = f"id: {number}\nevent: {event}\n" if number else f"event: {event}\n"
    return head.encode() + b"data: " + views.encode(data) + b"\n\n"


class Journal:
    """The last frames that everybody got, by number."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._kept: deque[tuple[int, int, bytes]] = deque()  # Number, when, and the frame.
        self._bytes = 0
        self.number = 0

    @property
    def name(self) -> str:
        """The number of the last frame, as a browser says it."""
        return f"{self._boot}-{self.number}"

    def put(self, event: str, data: views.View, now_ms: int) -> bytes:
        """Make and keep a frame."""
        self.number += 1
        made = frame(event, data, self.name)
        self._kept.append((self.number, now_ms, made))
        self._bytes += len(made)
        while self._kept and (self._kept[0][1] < now_ms - KEPT_MS or self._bytes > KEPT_BYTES):
            self._bytes -= len(self._kept.popleft()[2])
        return made

    def forget(self) -> None:
        """Keep nothing: who comes back has to read the lists."""
        self.number += 1
        self._kept.clear()
        self._bytes = 0

    def since(self, name: str, now_ms: int) -> list[bytes] | None:
        """Return what came after the frame *name*, None if that isn't known, or is too long."""
        boot, _, text = name.rpartition("-")
        if boot != self._boot or not text.isdecimal() or not text.isascii():
            return None
        first = int(text) + 1
        kept = [one for one in self._kept if one[1] >= now_ms - KEPT_MS]
        if first == self.number + 1:
            return []
        if first > self.number or not kept or kept[0][0] > first:
            return None
        missed = [made for number, _, made in kept if number >= first]
        return missed if sum(map(len, missed)) <= SENT_BYTES_MAX else None


class Follower:
    """One stream, and what it is told."""

    __slots__ = ("group_id", "sight", "stream", "viewer")

    def __init__(self, stream: EventStream, viewer: Viewer, group_id: str) -> None:
        """Make it; *group_id* is the group that it follows, or empty."""
        self.stream = stream
        self.viewer = viewer
        self.group_id = group_id
        self.sight = viewer.sight

    def may_go_on(self) -> bool:
        """Say whether it is to be told now; if its viewer has lost a right, it is ended."""
        if not self.stream.is_open:
            return False
        if not self.viewer.is_known():
            self.stream.end("the log-in behind it has ended")
        elif not self.viewer.knows_rules:
            return False  # It ends when they are loaded, and the browser reads what it missed.
        elif self.viewer.sight != self.sight:
            self.stream.end("the rules of access have changed")
        return self.stream.is_open

    def tell(self, make: "Callable[[Follower], bytes | None]") -> None:
        """Send what *make* returns, if that is anything."""
        # First whether anything may be told: what is made goes by the rules of now.
        if self.may_go_on() and (made := make(self)) is not None:
            self.stream.send(made)


class Hub:
    """All streams of one node; `run` serves them."""

    def __init__(
        self,
        api: Api,
        overview: Overview,
        telemetry: Telemetry,
        *,
        now: Callable[[], Now],
        clock_s: Callable[[], float],
        pause: Pause,
    ) -> None:
        """Make it; *clock_s* measures what it works."""
        self._api = api
        self._overview = overview
        self._now = now
        self._clock_s = clock_s
        self._pause = pause
        self._journal = Journal(overview.boot)
        self._streams: dict[EventStream, Follower] = {}
        self._is_followed = trio.Event()
        self._changed: dict[str, GroupFacts] = {}
        self._removed: dict[str, None] = {}
        self._is_news = trio.Event()
        self._is_too_much = False
        self._sending = trio.Lock()
        self._watched: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._telemetry = telemetry
        overview.tell = self._take

    def operations(self) -> tuple[Operation, ...]:
        """Return what answers with a stream."""
        summary = "What changes, as server-sent events"
        return (Operation("/api/v1/events", summary, self.events, None, (_GROUP,)),)

    async def events(self, request: HttpRequest, query: Query) -> Streaming:
        """Answer /api/v1/events."""
        group_id = query.text("group")
        problem = group_id_error(group_id) if group_id else None
        if problem is not None:
            raise Refused(400, f"group: {problem}")
        last = request.headers.get("last-event-id", "")
        viewer = request.viewer
        if group_id:
            request.need_group(group_id)
        return Streaming(partial(self._begin, last, group_id, viewer), self._end)

    def _begin(self, last: str, group_id: str, viewer: Viewer, stream: EventStream) -> None:
        now = self._now()
        missed = self._journal.since(last, now.mono_ms) if viewer.sees_cluster else None
        stream.send(_RETRY)
        for made in [self._hello(viewer)] if missed is None else missed:
            stream.send(made)
        if not stream.is_open:
            return
        # Of a group that he may not see he is told as of one that there isn't: nothing.
        followed = group_id if group_id and viewer.sees_group(group_id) else ""
        follower = self._streams[stream] = Follower(stream, viewer, followed)
        self._is_followed.set()
        if not followed or self._nursery is None:
            return
        if group_id in self._watched:
            # The others were told what it is; the one that has come was not.
            self._nursery.start_soon(attempt_async, stream, self._tell_group, group_id, follower)
        else:
            self._watched.add(group_id)
            task = Task(self._telemetry, "events", partial(self._end_of_group, group_id))
            self._nursery.start_soon(attempt_async, task, self._watch, group_id)

    def _end(self, stream: EventStream) -> None:
        self._streams.pop(stream, None)
        if not self._streams:
            self._is_followed = trio.Event()

    def _hello(self, viewer: Viewer) -> bytes:
        looked_ms = self._overview.looked_ms
        hello = views.Hello(
            as_of=views.moment(self._now().wall_ms),
            version=VERSION,
            groups_as_of=None if looked_ms is None else views.moment(looked_ms),
        )
        return frame("hello", hello, self._journal.name if viewer.sees_cluster else "")

    # --- tasks --------------------------------------------------------------------------

    async def run(self) -> None:
        """Look, and tell the streams, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for task in (
                self._look_at_all,
                self._look_at_heard,
                self._send_news,
                self._tell_node,
                self._tell_minutes,
            ):
                nursery.start_soon(keep_up, Task(self._telemetry, "events", self._have_read), task)

    def _have_read(self) -> None:
        """Have the lists read anew: some news may be lost."""
        self._is_too_much = True
        self._is_news.set()

    async def _look_at_all(self) -> None:
        while True:
            await self._is_followed.wait()
            with suppress(Refused):  # It loads.
                await self._overview.current(0)
            await trio.sleep(self._overview.rest_s)

    async def _look_at_heard(self) -> None:
        while True:
            await self._is_followed.wait()
            await self._overview.is_heard.wait()
            await trio.sleep(HEARD_S)
            began_s = self._clock_s()
            await self._overview.look_again()
            await trio.sleep(HEARD_REST * (self._clock_s() - began_s))

    async def _tell_node(self) -> None:
        while True:
            await self._is_followed.wait()
            await self._send_node()
            await trio.sleep(NODE_S)

    async def _send_node(self) -> None:
        made = frame("node", await self._api.show_node(with_samples=False))
        async with self._sending:
            # Who may not go on is found here, if there is no other news.
            await self._send(lambda one: made if one.viewer.sees_cluster else _BEAT)

    async def _tell_minutes(self) -> None:
        while True:
            minute = sampled_minute(self._now()) + 1
            # A little more: in floating point, the time may read as not quite come.
            await trio.sleep_until((minute * MINUTE_MS + SAMPLING_MS) / 1000 + 0.0005)
            now = self._now()
            at_ms = now.wall_ms - (now.mono_ms - minute * MINUTE_MS)
            await self._send_kept("minute", views.Minute(views.moment(at_ms)), _all_of)

    # --- news of all groups -------------------------------------------------------------

    def _take(self, changes: Changes) -> None:
        """Add *changes* to what waits to be sent."""
        for row in changes.changed:
            self._removed.pop(row.group_id, None)
            self._changed[row.group_id] = row
        for group_id in changes.removed:
            self._changed.pop(group_id, None)
            self._removed[group_id] = None
        if len(self._changed) + len(self._removed) > NEWS_MAX:
            self._changed.clear()
            self._removed.clear()
            self._is_too_much = True
        self._is_news.set()

    async def _send_news(self) -> None:
        while True:
            await self._is_news.wait()
            self._is_news = trio.Event()
            if self._is_too_much:
                self._is_too_much = False
                async with self._sending:
                    self._journal.forget()
                    await self._send(lambda one: self._hello(one.viewer))
            while self._changed or self._removed:
                changed = _take_some(self._changed)
                removed = _take_some(self._removed)
                rows = [views.group_change(row) for _, row in changed]
                gone = [group_id for group_id, _ in removed]
                await self._send_kept("groups", views.GroupChanges(rows, gone), _seen_of)

    async def _send_kept(self, event: str, data: T, seen: Callable[[T, Viewer], T | None]) -> None:
        """Tell everybody; those who don't see all of it are told what of it is *seen*."""
        async with self._sending:
            # In one step with the list of streams: who comes meanwhile has it from the journal.
            made = self._journal.put(event, data, self._now().mono_ms)

            def seen_by(one: Follower) -> bytes | None:
                if one.viewer.sees_cluster:
                    return made
                left = seen(data, one.viewer)
                return None if left is None else frame(event, left)

            self._overview.add_cost(await self._send(seen_by))

    async def _send(
        self,
        make: Callable[[Follower], bytes | None],
        followers: Sequence[Follower] | None = None,
    ) -> float:
        """Send each his frame, if there is one for him, in turns.

        Args:
            make: Returns the frame.
            followers: Who gets it; None is everybody who is there now.

        Returns:
            How long that took, without what others did.
        """
        worked_s = 0.0
        began_s = self._clock_s()
        left = iter(list(self._streams.values()) if followers is None else followers)
        while some := list(islice(left, _STREAMS_A_TURN)):
            for one in some:
                attempt(one.stream, one.tell, make)
            worked_s += self._clock_s() - began_s
            await self._pause()
            began_s = self._clock_s()
        return worked_s

    # --- one group ----------------------------------------------------------------------

    async def _tell_group(self, group_id: str, follower: Follower) -> None:
        try:
            shown = await self._api.show_group(group_id, EVERYBODY)
        except Refused:
            return
        await self._send_group(shown, [follower])

    async def _send_group(self, shown: views.GroupAlone, followers: Sequence[Follower]) -> bool:
        """Tell each what he sees of a group; return whether all of it is too long to be sent."""
        has_too_many = len(shown.members) > SENT_MEMBERS_MAX
        whole = b"" if has_too_many else frame("group", shown)

        def seen_by(one: Follower) -> bytes:
            viewer, made = one.viewer, whole
            if has_too_many:
                return self._hello(viewer)
            if not viewer.sees_all:
                topics = [topic for topic in shown.topics if viewer.sees_topic(topic.topic)]
                made = frame("group", structs.replace(shown, topics=topics))
            return made if len(made) <= SENT_BYTES_MAX else self._hello(viewer)

        async with self._sending:
            await self._send(seen_by, followers)
        return has_too_many or len(whole) > SENT_BYTES_MAX

    async def _has_news(
        self, told: views.GroupAlone | None, shown: views.GroupAlone, past_ms: int
    ) -> bool:
        """Say whether *shown* is to be told *past_ms* after what was *told*."""
        if told is None or len(told.members) != len(shown.members) or _still(told) != _still(shown):
            return True
        is_due = past_ms >= MOVED_MS
        if is_due and told.lag_seconds != shown.lag_seconds:
            return True
        pairs = zip(told.members, shown.members, strict=True)
        while some := list(islice(pairs, _MEMBERS_A_TURN)):
            for old, new in some:
                heard = new.heartbeat_age_ms < old.heartbeat_age_ms + past_ms - HEARD_AGAIN_MS
                if (is_due and heard) or _still_member(old) != _still_member(new):
                    return True
            await self._pause()
        return False

    def _followers(self, group_id: str) -> list[Follower]:
        return [one for one in self._streams.values() if one.group_id == group_id]

    def _end_of_group(self, group_id: str) -> None:
        """End the streams that follow it, as `_watch` has failed."""
        self._watched.discard(group_id)
        for one in self._followers(group_id):
            attempt(one.stream, one.stream.end, "what it follows can't be told")

    async def _watch(self, group_id: str) -> None:
        """Tell those that follow a group of it, until nobody does."""
        told: views.GroupAlone | None = None
        told_ms = looked_ms = 0
        outline: GroupFacts | None = None
        costs: deque[float] = deque(maxlen=_COSTS)
        while followers := self._followers(group_id):
            began_s = self._clock_s()
            before, outline = outline, await self._api.outline(group_id)
            cost_s = self._clock_s() - began_s
            now_ms = self._now().mono_ms
            if outline is None:  # It may come.
                told = None
            elif outline != before or outline.state in _MOVING or now_ms - looked_ms >= MOVED_MS:
                looked_ms = now_ms
                try:
                    shown = await self._api.show_group(group_id, EVERYBODY)
                except Refused:  # Its partition is loaded, or the disk hangs.
                    await trio.sleep(REFUSED_S)
                    continue
                now_ms = self._now().mono_ms
                if await self._has_news(told, shown, now_ms - told_ms):
                    told, told_ms = shown, now_ms
                    if await self._send_group(shown, followers):
                        await trio.sleep(LARGE_GROUP_S)
                # While it waits for the disk, others work; so the least of some looks is its own.
                costs.append(self._clock_s() - began_s)
                cost_s = min(costs)
            await trio.sleep(max(WATCHED_S, REST * cost_s * len(self._watched)))
        self._watched.discard(group_id)


def _all_of(data: T, _viewer: Viewer) -> T:
    """Return what everybody is told alike."""
    return data


def _seen_of(data: views.GroupChanges, viewer: Viewer) -> views.GroupChanges | None:
    """Return what of it *viewer* sees; None if that is nothing."""
    changed = [row for row in data.changed if viewer.sees_group(row.id)]
    removed = [group_id for group_id in data.removed if viewer.sees_group(group_id)]
    return views.GroupChanges(changed, removed) if changed or removed else None


def _take_some(waiting: dict[str, Any]) -> list[tuple[str, Any]]:
    some = list(islice(waiting.items(), FRAME_GROUPS))
    for name, _ in some:
        del waiting[name]
    return some


def _still(shown: views.GroupAlone) -> views.GroupAlone:
    """Return *shown* without what moves by itself, and without its members."""
    running = shown.rebalance
    if running is not None:
        phases = [views.Phase(phase.phase, 0) for phase in running.phases]
        running = structs.replace(running, phases=phases)
    return structs.replace(
        shown,
        lag_seconds=None,
        earlier_ms=None,
        members=[],
        topics=[structs.replace(topic, lag_seconds=None) for topic in shown.topics],
        rebalance=running,
    )


def _still_member(shown: views.Member) -> views.Member:
    return structs.replace(shown, heartbeat_age_ms=0)
