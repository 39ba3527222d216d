"""Users with a password: their SCRAM credentials.

The stored part of a password is the one that RFC 5802 needs for the check; logging in with it is
impossible. Nevertheless salt and keys never appear in an answer, event or text: only user,
mechanism and iterations do.
"""

import bisect
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

from coordinator.group.core import Handlers, Step, shown_in_slices
from coordinator.group.lag import in_order
from coordinator.group.records import Reader, Writer
from protocol.acls import user_name_error
from protocol.errors import ErrorCode
from protocol.messages import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribedUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialInfo,
    ScramDeletion,
    ScramUpsertion,
)
from protocol.scram import (
    ITERATIONS,
    KEY_BYTES,
    MECHANISMS,
    SALT_BYTES,
    Mechanism,
)

CREDENTIAL: Final = 1021
USERS_MAX: Final = 100_000
# Maximum users in one answer: it fits even with the longest names.
PAGE_USERS: Final = 10_000

_OK: Final = ErrorCode.NONE.value
_Refusal = tuple[ErrorCode, str]


class ScramCredential(NamedTuple):
    """Data that a password is checked against."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Return a text without salt and keys."""
        return f"ScramCredential(…, iterations={self.iterations})"


class CredentialSet(NamedTuple):
    """The user's password from here on."""

    user: str
    mechanism: Mechanism
    credential: ScramCredential


class CredentialRemoved(NamedTuple):
    """The user no longer has a password for this mechanism."""

    user: str
    mechanism: Mechanism


UserRecord = CredentialSet | CredentialRemoved


class Users:
    """All credentials; only `replay` changes them.

    Attributes:
        version: Incremented by each change.
        handlers: Handlers of the requests that change users, by request type.
    """

    def __init__(self) -> None:
        self.version = 0
        self.handlers: Handlers = {AlterUserScramCredentialsRequest: self._alter}
        self.reset()

    def reset(self) -> None:
        self.version += 1
        self._users: dict[str, dict[Mechanism, ScramCredential]] = {}
        self._names: list[str] | None = None  # Sorted; None before the first full listing.

    def loaded(self) -> None:
        """Do nothing: credentials are in force as soon as they are replayed."""

    def __len__(self) -> int:
        return len(self._users)

    def replay(self, record: UserRecord) -> None:
        """Apply one record. Never raises."""
        self.version += 1
        user = record.user
        names = self._names
        if type(record) is CredentialSet:
            if names is not None and user not in self._users:
                bisect.insort(names, user)
            self._users.setdefault(user, {})[record.mechanism] = record.credential
            return
        credentials = self._users.get(user, {})
        credentials.pop(record.mechanism, None)
        if not credentials and self._users.pop(user, None) is not None and names is not None:
            del names[bisect.bisect_left(names, user)]

    def hard_state(self) -> tuple[CredentialSet, ...]:
        """Return all credentials, sorted by user and mechanism."""
        return tuple(
            CredentialSet(user, mechanism, credential)
            for user, credentials in sorted(self._users.items())
            for mechanism, credential in sorted(credentials.items())
        )

    def credential(self, name: str, mechanism: str) -> ScramCredential | None:
        """Return the credential of *name* for *mechanism*, None if there is none.

        *mechanism* is SASL's name, such as "SCRAM-SHA-256".
        """
        known = MECHANISMS.get(mechanism)
        return None if known is None else self._users.get(name, {}).get(known)

    # --- deciding ---------------------------------------------------------------------------

    def _alter(
        self, request: AlterUserScramCredentialsRequest, step: Step
    ) -> AlterUserScramCredentialsResponse:
        of_user: dict[str, list[ScramDeletion | ScramUpsertion]] = {}
        every: list[ScramDeletion | ScramUpsertion] = [*request.deletions, *request.upsertions]
        for change in every:
            of_user.setdefault(change.user, []).append(change)
        results = []
        for user, changes in of_user.items():
            refusal = self._refusal(user, changes, step)
            if refusal is not None:
                results.append(AlteredUser(user, refusal[0].value, refusal[1]))
                continue
            for change in changes:
                self._apply(change, step)
            results.append(AlteredUser(user, _OK, None))
        return AlterUserScramCredentialsResponse(_OK, tuple(results))

    def _refusal(
        self, user: str, changes: list[ScramDeletion | ScramUpsertion], step: Step
    ) -> _Refusal | None:
        if len({change.mechanism for change in changes}) != len(changes):
            return ErrorCode.DUPLICATE_RESOURCE, "a credential is named twice"
        known = self._users.get(user, {})
        why = user_name_error(user)
        if why is not None and any(type(change) is ScramUpsertion for change in changes):
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"the user's name: {why}"
        for change in changes:
            if change.mechanism not in frozenset(Mechanism):
                message = f"mechanism {change.mechanism} is not known"
                return ErrorCode.UNSUPPORTED_SASL_MECHANISM, message
            mechanism = Mechanism(change.mechanism)
            if type(change) is ScramDeletion and mechanism not in known:
                return ErrorCode.RESOURCE_NOT_FOUND, f"the user has no {mechanism.sasl_name}"
            if type(change) is ScramUpsertion:
                refusal = _credential_refusal(change, mechanism)
                if refusal is not None:
                    return refusal
                if step.storage_full:
                    return ErrorCode.STORAGE_FULL, "the disk is nearly full"
                if not known and len(self._users) >= USERS_MAX:
                    return ErrorCode.QUOTA_EXCEEDED, f"there are {USERS_MAX} users already"
        return None

    def _apply(self, change: ScramDeletion | ScramUpsertion, step: Step) -> None:
        mechanism = Mechanism(change.mechanism)
        iterations = None
        record: UserRecord
        if type(change) is ScramUpsertion:
            iterations = change.iterations
            credential = ScramCredential(
                change.salt, change.stored_key, change.server_key, iterations
            )
            record = CredentialSet(change.user, mechanism, credential)
        else:
            record = CredentialRemoved(change.user, mechanism)
        step.outcome.records.append(record)
        self.replay(record)
        step.event(
            "user.altered",
            user=change.user,
            mechanism=mechanism.sasl_name,
            change="removed" if iterations is None else "set",
            iterations=iterations,
            by=step.caller.principal,
        )

    # --- reading ----------------------------------------------------------------------------

    def describe(
        self, request: DescribeUserScramCredentialsRequest, max_bytes: int
    ) -> Generator[None, None, DescribeUserScramCredentialsResponse | None]:
        """Return the given users, or a page of all, packed, in steps; None: over *max_bytes*.

        A page has the users that exist at its start, each with its state at the time when it is
        packed; users removed before that are left out.
        """
        if request.users is not None:
            names, has_more = list(dict.fromkeys(request.users)), False
            show: Callable[[str], DescribedUser | None] = self._named
        else:
            every = self._names or (yield from self._sorted())
            at = bisect.bisect_right(every, request.start_after) if request.start_after else 0
            end = at + min(request.max_users, PAGE_USERS)
            names, has_more = every[at:end], end < len(every)
            show = self._described
        shown = yield from shown_in_slices(names, show, max_bytes)
        if shown is None:
            return None
        return DescribeUserScramCredentialsResponse(_OK, None, shown, has_more)

    def _sorted(self) -> Generator[None, None, list[str]]:
        """Return the sorted names, and cache them unless a user changed while they were sorted."""
        version = self.version
        names = yield from in_order(self._users)
        if version == self.version:
            self._names = names
        return names

    def _named(self, user: str) -> DescribedUser:
        return self._described(user) or DescribedUser(user, ErrorCode.RESOURCE_NOT_FOUND.value, ())

    def _described(self, user: str) -> DescribedUser | None:
        known = self._users.get(user)
        if known is None:
            return None
        shown = tuple([ScramCredentialInfo(m, c.iterations) for m, c in sorted(known.items())])
        return DescribedUser(user, _OK, shown)


def _credential_refusal(change: ScramUpsertion, mechanism: Mechanism) -> _Refusal | None:
    if change.iterations != ITERATIONS:
        problem = f"iterations are {ITERATIONS} for every user"
    elif len(change.salt) != SALT_BYTES:
        problem = f"a salt has {SALT_BYTES} bytes for every user"
    elif {len(change.stored_key), len(change.server_key)} != {KEY_BYTES[mechanism]}:
        problem = f"the keys of {mechanism.sasl_name} have {KEY_BYTES[mechanism]} bytes"
    else:
        return None
    return ErrorCode.UNACCEPTABLE_CREDENTIAL, problem


# --- in the log -----------------------------------------------------------------------------


def _read(_scope: str, key: Any, value: Any) -> UserRecord:
    user, number = key
    mechanism = Mechanism(number)
    if type(user) is not str:
        raise ValueError("the key names no user")
    if value is None:
        return CredentialRemoved(user, mechanism)
    salt, stored_key, server_key, iterations = value
    if [*map(type, value)] != [bytes, bytes, bytes, int]:
        raise ValueError("the value is no credential")
    return CredentialSet(user, mechanism, ScramCredential(salt, stored_key, server_key, iterations))


WRITERS: Final[Mapping[type, Writer]] = {
    CredentialSet: lambda r: (CREDENTIAL, 0, "", (r.user, r.mechanism), tuple(r.credential)),
    CredentialRemoved: lambda r: (CREDENTIAL, 0, "", (r.user, r.mechanism), None),
}
READERS: Final[Mapping[int, Reader]] = {CREDENTIAL: Reader(_read)}
