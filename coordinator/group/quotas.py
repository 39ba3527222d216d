"""Quotas of principals; the default's quotas apply where a principal has none of its own.

`protocol.quotas.QUOTAS` describes what each quota limits.
"""

import bisect
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

from coordinator.group.core import Handlers, Step, shown_in_slices
from coordinator.group.records import Reader, Writer
from protocol.acls import principal_problem
from protocol.errors import ErrorCode
from protocol.fields import PRINCIPAL_BYTES_MAX
from protocol.group_ids import name_error
from protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredPrincipal,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaValue,
)
from protocol.quotas import DEFAULT, QUOTAS

QUOTA: Final = 1022
# Maximum number of principals with quotas: all of them fit one answer.
PRINCIPALS_MAX: Final = 10_000

_OK: Final = ErrorCode.NONE.value
_Refusal = tuple[ErrorCode, str]


class QuotaSet(NamedTuple):
    """The value of a quota from here on; None: it is removed."""

    principal: str  # DEFAULT: every principal without a quota of this key.
    key: str
    value: int | None


QuotaRecord = QuotaSet


class Quotas:
    """All quotas; only `replay` changes them.

    Attributes:
        version: Incremented by each change.
        handlers: Handlers of the requests that change quotas, by request type.
    """

    def __init__(self, changed: Callable[[str | None], None] = lambda _: None) -> None:
        """Begin empty; *changed* gets the principal whose quotas changed, None for all."""
        self.version = 0
        self._changed = changed
        self.handlers: Handlers = {AlterClientQuotasRequest: self._alter}
        self.reset()

    def reset(self) -> None:
        self.version += 1
        self._of: dict[str, dict[str, int]] = {}
        self._principals: list[str] = []  # The keys of `_of`, sorted.
        self._changed(None)

    def loaded(self) -> None:
        """Do nothing: quotas are in force as soon as they are replayed."""

    def replay(self, record: QuotaRecord) -> None:
        """Apply one record. Never raises."""
        self.version += 1
        principal, key, value = record
        if principal not in self._of:
            bisect.insort(self._principals, principal)
        quotas = self._of.setdefault(principal, {})
        if value is not None:
            quotas[key] = value
        else:
            quotas.pop(key, None)
        if not quotas:
            del self._of[principal]
            del self._principals[bisect.bisect_left(self._principals, principal)]
        self._changed(None if principal == DEFAULT else principal)

    def hard_state(self) -> tuple[QuotaSet, ...]:
        """Return all quotas, sorted by principal and key."""
        return tuple(
            QuotaSet(principal, key, value)
            for principal, quotas in sorted(self._of.items())
            for key, value in sorted(quotas.items())
        )

    def limit(self, principal: str, key: str) -> int | None:
        """Return the quota *key* of a principal, None if unlimited."""
        for whose in (principal, DEFAULT):
            value = self._of.get(whose, {}).get(key)
            if value is not None:
                return value
        return None

    # --- deciding ---------------------------------------------------------------------------

    def _alter(self, request: AlterClientQuotasRequest, step: Step) -> AlterClientQuotasResponse:
        results = []
        for entry in request.entries:
            refusal = self._refusal(entry, step)
            if refusal is None:
                self._apply(entry, step)
            error, message = (ErrorCode.NONE, None) if refusal is None else refusal
            results.append(AlteredQuotas(entry.principal, error.value, message))
        return AlterClientQuotasResponse(_OK, tuple(results))

    def _refusal(self, entry: AlteredPrincipal, step: Step) -> _Refusal | None:
        problem = _principal_problem(entry.principal)
        if problem is not None:
            return ErrorCode.INVALID_REQUEST, problem
        for change in entry.changes:
            if change.key not in QUOTAS:
                return ErrorCode.INVALID_REQUEST, f"there is no quota {change.key}"
            if change.value == 0:
                return ErrorCode.INVALID_REQUEST, "a quota is 1 at least"
        if len({change.key for change in entry.changes}) != len(entry.changes):
            return ErrorCode.INVALID_REQUEST, "a quota is named twice"
        if all(change.value is None for change in entry.changes):
            return None
        if step.storage_full:
            return ErrorCode.STORAGE_FULL, "the disk is nearly full"
        if entry.principal not in self._of and len(self._of) >= PRINCIPALS_MAX:
            message = f"{PRINCIPALS_MAX} principals have quotas already"
            return ErrorCode.QUOTA_EXCEEDED, message
        return None

    def _apply(self, entry: AlteredPrincipal, step: Step) -> None:
        known = self._of.get(entry.principal, {})
        changes = {c.key: c.value for c in entry.changes if known.get(c.key) != c.value}
        for key, value in changes.items():
            record = QuotaSet(entry.principal, key, value)
            step.outcome.records.append(record)
            self.replay(record)
        if changes:
            step.event(
                "quota.altered",
                principal=entry.principal or None,
                quotas=changes,
                by=step.caller.principal,
            )

    # --- reading ----------------------------------------------------------------------------

    def describe(
        self, request: DescribeClientQuotasRequest, max_bytes: int
    ) -> Generator[None, None, DescribeClientQuotasResponse | None]:
        """Return the quotas of some principals or of all, packed, in steps; None: over *max_bytes*.

        The answer has the principals that exist at its start, each with its quotas at the time when
        it is packed; principals without quotas at that time are left out.
        """
        names = self._principals.copy()
        if request.principals is not None:
            asked = frozenset(request.principals)
            names = [name for name in names if name in asked]
        entries = yield from shown_in_slices(names, self._described, max_bytes)
        return None if entries is None else DescribeClientQuotasResponse(_OK, None, entries)

    def _described(self, principal: str) -> DescribedQuotas | None:
        quotas = self._of.get(principal)
        if quotas is None:
            return None
        shown = tuple([QuotaValue(*quota) for quota in sorted(quotas.items())])
        return DescribedQuotas(principal, shown)


def _principal_problem(principal: str) -> str | None:
    if principal == DEFAULT:
        return None
    problem = name_error(principal, PRINCIPAL_BYTES_MAX)
    return principal_problem(principal) if problem is None else f"the principal: {problem}"


# --- in the log -----------------------------------------------------------------------------


def _read(_scope: str, key: Any, value: Any) -> QuotaRecord:
    principal, name = key
    limit = None
    if value is not None:
        (limit,) = value
        if type(limit) is not int or limit < 1:
            raise ValueError("that is no quota")
    if [type(principal), type(name)] != [str, str]:
        raise ValueError("the key names no quota")
    return QuotaSet(principal, name, limit)


def _write(record: QuotaRecord) -> tuple[int, int, str, object, object]:
    value = None if record.value is None else (record.value,)
    return QUOTA, 0, "", (record.principal, record.key), value


WRITERS: Final[Mapping[type, Writer]] = {QuotaSet: _write}
READERS: Final[Mapping[int, Reader]] = {QUOTA: Reader(_read)}
