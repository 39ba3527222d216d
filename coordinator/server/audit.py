"""Log lines about deletions, resets and refusals, by principal and address, at a bounded rate."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from coordinator.group.core import Caller, Now
from coordinator.names import shortened
from coordinator.server.addresses import counted_as
from protocol import messages as m
from protocol.messages import APIS

AUDIT_PERIOD_MS: Final = 1_000
# Different things of one principal and address that are told in a period.
DIFFERENT_MAX: Final = 10
_KEPT: Final = 1_000
_NAMED_MAX: Final = 3

# What takes from groups and topics that others live by. To ask for it again and again costs
# nothing where there is nothing left.
TAKES_AWAY: Final = frozenset(
    {
        m.AlterGroupRetentionRequest,
        m.AlterOffsetsRequest,
        m.DeleteGroupsRequest,
        m.DeleteTopicsRequest,
        m.DrainMemberRequest,
        m.OffsetDeleteRequest,
    }
)
_NAME_OF: Final = {api.request: api.name for api in APIS.values()}
# The fields of requests that say what is asked about.
_NAMING: Final = (
    *("group_id", "group_ids", "topics", "groups", "offsets_partition", "journal"),
    *("members", "client_id"),
)
# The fields of what is named, where that is more than a name.
_NAMES: Final = ("topic", "group_id", "member_id", "group_instance_id")


class _Period:
    """Lines of one event, principal and address within `AUDIT_PERIOD_MS`."""

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.told: set[str] = set()
        self.left_out = 0


class Audit:
    """Logs events that a client can cause at any rate, by principal and address.

    Within `AUDIT_PERIOD_MS` each event is logged for `DIFFERENT_MAX` things, once for each.
    """

    def __init__(self, emit: Callable[[str, dict[str, Any]], None]) -> None:
        self._emit = emit
        # By event, principal and address.
        self._periods: OrderedDict[tuple[str, str, str], _Period] = OrderedDict()

    def tell(
        self, event: str, principal: str, peer: str, now_ms: int, about: str = "", **fields: Any
    ) -> None:
        """Log the event, or count it for the next line; *about* names one of several things."""
        key = (event, principal, counted_as(peer))
        period = self._periods.pop(key, None)
        if period is None or now_ms - period.began_ms >= AUDIT_PERIOD_MS:
            left_out = 0 if period is None else period.left_out
            period = _Period(now_ms)
            period.left_out = left_out
        if len(self._periods) >= _KEPT:
            self._periods.popitem(last=False)
        self._periods[key] = period
        if about in period.told or len(period.told) >= DIFFERENT_MAX:
            period.left_out += 1
            return
        period.told.add(about)
        left_out, period.left_out = period.left_out, 0
        self._emit(event, {"principal": principal, "peer": peer, **fields, "left_out": left_out})

    def used(self, request: m.Request, caller: Caller, now: Now) -> None:
        """Log that *caller* took something away from groups or topics."""
        what = asked(request)
        about = f"{what['api']} {what['what']}"
        self.tell("access.used", now_ms=now.mono_ms, about=about, **asker(caller), **what)


def asker(caller: Caller) -> dict[str, str]:
    """Return principal, address and client id, as fields of an event."""
    return {
        "principal": caller.principal,
        "peer": caller.client_host,
        "client_id": caller.client_id,
    }


def asked(request: m.Request) -> dict[str, str]:
    """Return what is asked, as fields of an event."""
    return {"api": _NAME_OF[type(request)], "what": _what(request)}


def _what(request: Any) -> str:
    """Return the groups, topics and members that it names, the first ones; nothing else of it."""
    parts = []
    for field in _NAMING:
        value = getattr(request, field, None)
        if value is None:
            continue
        items = value if isinstance(value, tuple) else (value,)
        more = f" and {len(items) - _NAMED_MAX} more" if len(items) > _NAMED_MAX else ""
        parts.append(f"{field}: {', '.join(map(shortened, map(_name, items[:_NAMED_MAX])))}{more}")
    return "; ".join(parts)


def _name(item: Any) -> str:
    if isinstance(item, str | int):
        return str(item)
    return next(filter(None, (getattr(item, field, None) for field in _NAMES)), "")
