"""Exceptions of the client, one class for each reaction of the caller.

A code of the wire protocol never reaches a caller as a bare number to be compared:
the class says what to do, the message says what happened, `code` is for logs.
"""

from collections.abc import Mapping
from typing import Final

from protocol.errors import ERRORS, ErrorCode, ErrorInfo
from protocol.partition import TopicPartition
from protocol.text import some_of


class CoordinatorError(Exception):
    """Base class of the exceptions that this package raises about the coordinator.

    Attributes:
        group_code: The group's wire code in its answer to a member; None without one.
        group_message: The coordinator's message with that code; None without one.
        cause: The system's error of the last attempt once time is up, e.g. a
            ConnectionRefusedError; None without one. Kept apart from ``__cause__``, which Python
            would print as a second traceback; the message has the error in words.

    """

    def __init__(
        self,
        message: str,
        *,
        group_code: int | None = None,
        group_message: str | None = None,
        cause: OSError | None = None,
    ) -> None:
        """Take a sentence for people."""
        self.group_code = group_code
        self.group_message = group_message
        self.cause = cause
        super().__init__(message)


class RetriableError(CoordinatorError):
    """Nothing was applied. Retries ran out of time; trying again later may well succeed."""


class CoordinatorUnavailable(RetriableError):
    """No coordinator could be reached, or it was loading, until the deadline passed."""


class OutcomeUnknown(CoordinatorError):
    """The change may or may not have been applied: no definite answer came in time.

    Repeat the very same call, or read back what is stored.
    """


class Rebalanced(CoordinatorError):
    """The group moved on to another generation. Nothing was stored; call ``assignment()``."""


class MemberLost(Rebalanced):
    """The group removed this member: its partitions are somebody else's.

    Nothing was stored. ``assignment()`` joins again under a new member id.
    """


class CommitRefused(CoordinatorError):
    """Some partitions were refused; those that ``errors`` doesn't name are stored.

    Attributes:
        errors: The code per refused partition (an `ErrorCode` where it is a known one).
        maybe_stored: An earlier attempt's answer was lost, so that an OFFSET_CONFLICT may be
            this commit's own doing. Read back to find out.

    """

    def __init__(
        self,
        errors: Mapping[TopicPartition, int],
        message: str | None = None,
        *,
        maybe_stored: bool = False,
    ) -> None:
        """Take the code of each refused partition, and what the coordinator said about them."""
        self.errors = {tp: known_code(code) for tp, code in errors.items()}
        self.maybe_stored = maybe_stored
        text = f"the commit was refused for {codes_text(errors)}"
        super().__init__(f"{text} {message}" if message else text, group_message=message)

    def __reduce__(self) -> tuple[object, ...]:
        """Have pickle make it of what it was made of, not of its text."""
        return type(self), (self.errors, self.group_message), vars(self)


class FatalError(CoordinatorError):
    """Repeating it does not help: a wrong setting, a refusal, or a bug on either side.

    Attributes:
        code: The wire code, if one is behind it (an `ErrorCode` where it is a known one).

    """

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        group_code: int | None = None,
        group_message: str | None = None,
        cause: OSError | None = None,
    ) -> None:
        """Take a sentence for people, and the wire code if there is one."""
        self.code = None if code is None else known_code(code)
        super().__init__(message, group_code=group_code, group_message=group_message, cause=cause)


class AuthenticationFailed(FatalError):
    """One end isn't sure who the other is: a certificate, a password, a token, a setting of these.

    The message names the cause and the setting to check. The client never retries by itself; after
    the credentials were changed, make the same call again.
    """


class NotAuthorized(FatalError):
    """The principal may not do this: an operator has to allow it (``group-coordinator acls``)."""


class ClientClosed(CoordinatorError):
    """The client, or this member of it, was closed. Make a new one."""


_CLASSES: Final[Mapping[int, type[FatalError]]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: AuthenticationFailed,
    ErrorCode.ILLEGAL_SASL_STATE: AuthenticationFailed,
    ErrorCode.SASL_AUTHENTICATION_FAILED: AuthenticationFailed,
}


def refusal(
    message: str,
    code: int,
    *,
    group_code: int | None = None,
    group_message: str | None = None,
) -> FatalError:
    """Return the `FatalError` that *code* is, or one of its subclasses."""
    kind = _CLASSES.get(code, FatalError)
    return kind(message, code=code, group_code=group_code, group_message=group_message)


def known_code(code: int) -> int:
    """Return *code* as an `ErrorCode` where it is one, so that it prints by name."""
    try:
        return ErrorCode(code)
    except ValueError:
        return code


def error_info(code: int) -> ErrorInfo | None:
    """Return what is known of *code*; None of one that this client doesn't know."""
    known = known_code(code)
    return ERRORS[known] if isinstance(known, ErrorCode) else None


def codes_text(errors: Mapping[TopicPartition, int]) -> str:
    """Return for each code of *errors* the first partitions that have it, and how many more do."""
    partitions: dict[int, list[TopicPartition]] = {}
    for tp, code in sorted(errors.items()):
        partitions.setdefault(code, []).append(tp)
    return ", ".join(f"{some_of(tps)}: {code_text(code)}" for code, tps in partitions.items())


def code_text(code: int, message: str | None = None) -> str:
    """Return name, number and meaning of *code*, and what the coordinator said about it."""
    info = error_info(code)
    if info is None:
        text = f"unknown error code {code}"
    else:
        text = f"{ErrorCode(code).name} ({code}): {info.meaning}"
        if message is not None and message.lower() == info.meaning.rstrip(".").lower():
            return text  # The message only repeats the meaning.
    return f"{text} {message}" if message else text
