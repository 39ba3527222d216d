"""What the commands for a running coordinator share: one grammar, one wording, one set of statuses.

A command that asks is a function under `asks`. It gets a `Coordinator` and an `Output` before its
own arguments, takes ``--at``, ``--timeout`` and ``--output``, and returns whether something failed:

    @groups.command("list", examples={"Which groups are there?": "groups list"})
    @asks
    def list_groups(coordinator: Coordinator, output: Output) -> None: ...

A command that changes something is a function under `asks_to_change`. It gets a `Change` besides,
takes ``--yes``, and calls ``change.confirm(question, columns, rows)`` with what it is about to do.
That returns only if it is to be done. On a terminal the rows are shown, and the question is asked;
elsewhere the rows are the result of a dry run, which ends with status 3.
One that asks no coordinator is under `changes`.

What is shown again and again with ``--watch`` is under `may_watch`, and printed by `show`.

Errors are raised: `AskFailed`, `GroupRefused` where the message names the group, `refused`,
`missing_group`, `missing_topic` and `has_members` for what is the same everywhere. The statuses: 0
is done, 1 says that some of it was refused, 2 is a wrong command line, 3 a dry run, and 69
(EX_UNAVAILABLE) that nobody answered.
"""

import functools
import math
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Self, TypeVar

import click
from click.core import ParameterSource

from coordinator.cli.grammar import PROGRAM, refuses
from coordinator.cli.output import (
    TABLE,
    Output,
    Table,
    end,
    note,
    print_table,
    prints,
    styled,
    tracked,
)
from coordinator.config import Address, ConfigError
from coordinator.names import did_you_mean, escaped, quoted
from protocol import messages as m
from protocol.connection import ClientConnection, speaks_tls
from protocol.consumer import decode_assignment
from protocol.coordinators import Key, about_partitions, key_of, next_page
from protocol.errors import ERRORS, Applied, ErrorCode, LocalProtocolError, ProtocolError
from protocol.fields import TOPIC_BYTES_MAX
from protocol.group_ids import GROUP_ID_BYTES_MAX, name_error
from protocol.messages import (
    APIS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BareError,
    Request,
    Response,
    api_of,
    first_error,
)
from protocol.partition import INT32_MAX, INT64_MAX, TopicPartition

EXIT_SOME_FAILED: Final = 1
EXIT_DRY_RUN: Final = 3
EXIT_DIFFERENT: Final = 4
EXIT_UNREACHABLE: Final = 69
TIMEOUT_S: Final = 10.0
CONFIG_VARIABLE: Final = "COORDINATOR_COMMAND_CONFIG"
WATCH_S: Final = 2.0
# A question is asked below so many rows at most.
_ROWS_ASKED_ABOUT: Final = 100
TOPICS_PER_PAGE: Final = 1_000
# Of one request; with the longest names they stay below the largest request.
PARTITIONS_PER_REQUEST: Final = 2_000
# So much is sent before answers are read: any socket takes it, whether or not the other end reads.
_BYTES_AT_ONCE: Final = 64 * 1024
_GROUPS_AT_ONCE: Final = 32
# One of several nodes that hasn't said who it is after so long hangs: the next one is asked.
_GREETING_S_MAX: Final = 5.0
# While nobody leads what is asked about, or it is being loaded: a session's end takes some seconds.
LEADER_POLL_S: Final = 0.2
_NOT_YET: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
# To these nothing but 16 is no answer: to try again would be to do it again.
_ONCE: Final = (m.MoveJournalRequest, m.ReloadPartitionRequest)
FOR_EVER: Final = -1
_MAYBE_TLS: Final = (
    "maybe its listener is one for TLS: security.protocol in a file for --command-config"
)
_MAYBE_STARTING: Final = "or it is a node that starts, and has yet to reach ZooKeeper"
_CONSUMER: Final = "consumer"

_IN_DOUBT: Final = {code for code, info in ERRORS.items() if info.applied is Applied.UNKNOWN}
_UNITS_MS: Final = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_TIME: Final = re.compile(r"([0-9]{1,19})(ms|[smhdw])")
# "t", "t:" or "t:0,1"; a name may have colons of its own.
_TOPIC: Final = re.compile(r"(.+?)(?::((?:[0-9]{1,10}(?:,[0-9]{1,10})*)?))?", re.DOTALL)

F = TypeVar("F", bound=Callable[..., Any])
Scope = dict[str, set[int] | None]  # Topics with some of their partitions, None for all.
_Place = tuple[int, Address]  # A node, by its id and the address that it tells.


class AskFailed(Exception):
    """There is no useful answer; the message says why.

    Attributes:
        code: The coordinator's, 0 where it said none.
    """

    def __init__(self, message: str, code: int = ErrorCode.NONE) -> None:
        super().__init__(message)
        self.code = code


class GroupRefused(AskFailed):
    """One group can't be served; the message names it."""


class InDoubt(AskFailed):
    """The coordinator answered that it doesn't know what became of the request."""


class Unreachable(AskFailed):
    """Nobody answered, or somebody who is no coordinator."""


class DryRun(Exception):
    """Nothing is to be changed; the message says what that depends on.

    Attributes:
        failed: Some of what was asked for can't be done at all.
    """

    def __init__(self, message: str, *, failed: bool) -> None:
        super().__init__(message)
        self.failed = failed


class Coordinator:
    """Where the questions go: one node, or all of a cluster.

    It is connected at the first one, and anew after a failure. Any node is asked; where that
    isn't the one to ask (16, so nothing was done), the one that is. While there is none, or it
    was killed, or loads what it is asked about, it is asked again: in all for as long as it has
    for an answer, and ten seconds at most, until somebody is there.
    """

    def __init__(
        self, addresses: Sequence[Address], *, timeout_s: float, config: str | None = None
    ) -> None:
        """Take who is asked, and the file that says how to be sure of it, if there is one."""
        self._known = tuple(addresses)  # The first one that is there is asked.
        self._timeout_s = timeout_s
        self._config = config
        self._patience = _Patience(timeout_s)
        self._link_to: dict[Address, Link] = {}
        self._coordinators: dict[Key, _Place] = {}

    def __enter__(self) -> Self:
        """Return it; nothing is connected yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        for link in self._link_to.values():
            link.close()

    def elsewhere(self, address: Address) -> "Coordinator":
        """Return another one, which is reached in the same way."""
        return Coordinator((address,), timeout_s=self._timeout_s, config=self._config)

    def ask(self, request: Request) -> Any:
        """Return the answer to *request*.

        Raises:
            AskFailed: The coordinator refuses the request as a whole, or it can't be sent.
            InDoubt: It may have been applied.
            Unreachable: It can't be reached or doesn't answer in time.
        """
        (answer,) = self.ask_all([request])
        if isinstance(answer, AskFailed):
            raise answer
        return answer

    def ask_all(self, requests: Sequence[Request]) -> list[Any]:
        """Return the answers to *requests*, which don't wait for each other.

        In the place of an answer there may be an `AskFailed`, or an `InDoubt`.

        Raises:
            Unreachable: It can't be reached or doesn't answer in time.
        """
        answers = self._exchange_all(requests, range(len(requests)))
        late = [number for number in answers if _is_not_yet(requests[number], answers[number])]
        has_waited = False
        while late:
            answers |= self._exchange_all(requests, self._find(requests, late, answers))
            late = [number for number in late if _is_not_yet(requests[number], answers[number])]
            if late and not (has_waited := self._patience.wait()):
                break
        if has_waited:
            self._patience.renew()
        for answer in answers.values():
            if isinstance(answer, Unreachable):
                raise answer
        return [_checked(answers[number]) for number in range(len(requests))]

    def ask_leaders(self, request: Request) -> list[Any]:
        """Return what all nodes answer that lead something, page after page.

        Each is asked about the offsets partitions that it leads, where *request* may name them.

        Raises:
            As `ask`.
        """
        while True:
            try:
                answers = self._ask_leaders(request)
            except AskFailed as exc:
                # Or somebody else has begun to lead: all over again.
                if exc.code not in _NOT_YET or not self._patience.wait():
                    raise
            else:
                self._patience.renew()
                return answers

    def ask_nodes(self, *requests: Request) -> dict[_Place, Any]:
        """Return what each node answers to *requests*, all asked at a time: one may hang.

        They are the nodes that are there, and those that were to be asked. Who doesn't say who he
        is, and of whom nobody knows by now, has the id -1. In the place of a node's answers there
        may be the `AskFailed` of all of them, in that of an answer its own.

        Raises:
            As `ask`.
        """
        told: m.DescribeClusterResponse = self.ask(m.DescribeClusterRequest())
        link_to = {one: self._link(*one) for one in map(_place, told.nodes)}
        others = {one: self._link_at(one) for one in self._known}
        answers = _ask_each({*link_to.values(), *others.values()}, requests)
        # Under another name, one of them may be a node that is there.
        seen = {*link_to.values()}
        ids = {node_id for node_id, _ in link_to}
        for address, link in others.items():
            if link not in seen and link.node_id not in ids:
                link_to[link.node_id, address] = link
        return {one: answers[link] for one, link in link_to.items()}

    def _ask_leaders(self, request: Request) -> list[Any]:
        found = self.ask(m.FindCoordinatorRequest(m.KEY_TYPE_PARTITION, ())).coordinators
        led: dict[_Place, list[int]] = {}
        for one in found:
            if one.error:
                raise AskFailed(describe_error(one.error, one.message), one.error)
            led.setdefault(_place(one), []).append(one.offsets_partition)
        if not led:  # An older release names nobody.
            return list(_pages(self.ask, request))
        answers: list[Any] = []
        for place, partitions in led.items():
            link = self._link(*place)
            _greet(link)
            answers += _pages(link.ask, about_partitions(request, partitions))
        return answers

    def _exchange_all(
        self, requests: Sequence[Request], numbers: Iterable[int]
    ) -> dict[int, Response | AskFailed]:
        """Return the answers by the number of their request, of those that have these."""
        answers: dict[int, Response | AskFailed] = {}
        of_link: dict[Link, list[int]] = {}
        for number in numbers:
            key = key_of(requests[number])
            place = None if key is None else self._coordinators.get(key)
            link = self._any_link() if place is None else self._link(*place)
            of_link.setdefault(link, []).append(number)
        for link, mine in of_link.items():
            try:
                _greet(link)
            except Unreachable as exc:
                answers |= dict.fromkeys(mine, exc)
                continue
            try:
                found = link.exchange([requests[number] for number in mine])
            except Unreachable:
                self._coordinators.clear()  # Whoever tries again finds out who is there now.
                raise
            answers |= zip(mine, found, strict=True)
        return answers

    def _find(
        self,
        requests: Sequence[Request],
        numbers: Sequence[int],
        answers: dict[int, Response | AskFailed],
    ) -> list[int]:
        """Find the coordinators of these requests; return those that have one, or need none.

        In *answers* it stands why the others have none.
        """
        asked: dict[Key, list[int]] = {}
        found = []
        for number in numbers:
            key = key_of(requests[number])
            if key is None:
                found.append(number)
            else:
                asked.setdefault(key, []).append(number)
        for key_type in {key.type for key in asked}:
            names = sorted(key.name for key in asked if key.type == key_type)
            request = m.FindCoordinatorRequest(key_type, tuple(names))
            (answer,) = self._any_link().exchange([request])
            for one in getattr(answer, "coordinators", ()):
                key = Key(key_type, one.group_id)
                if one.error:
                    failure = AskFailed(describe_error(one.error, one.message), one.error)
                    answers |= dict.fromkeys(asked[key], failure)
                else:
                    self._coordinators[key] = _place(one)
                    found += asked[key]
        return found

    def _link(self, node_id: int, address: Address) -> "Link":
        """Return the connection to a node, which may be known by another address than its own."""
        for link in self._link_to.values():
            if link.node_id == node_id:
                return link
        return self._link_at(address)

    def _link_at(self, address: Address) -> "Link":
        link = self._link_to.get(address)
        if link is None:
            link = self._link_to[address] = Link(address, self._timeout_s, self._config)
        return link

    def _any_link(self) -> "Link":
        """Return a connection to the first node that answers.

        Raises:
            Unreachable: None does.
        """
        failures = []
        patience_s = self._timeout_s
        if len(self._known) > 1:
            patience_s = min(patience_s / len(self._known), _GREETING_S_MAX)
        for address in self._known:
            link = self._link_at(address)
            try:
                link.open(patience_s)
            except Unreachable as exc:
                failures.append(exc)
            else:
                self._known = (address, *(one for one in self._known if one != address))
                return link
        raise failures[0] if len(failures) == 1 else Unreachable(" ".join(map(str, failures)))


class _Patience:
    """How long a command asks again for what nobody can answer yet: in all, until somebody does."""

    def __init__(self, timeout_s: float) -> None:
        self._total_s = min(timeout_s, TIMEOUT_S)
        self._since_s: float | None = None

    def wait(self) -> bool:
        """Wait a little; return False at once when it has been long enough."""
        if self._since_s is None:
            self._since_s = time.monotonic()
        is_left = time.monotonic() - self._since_s < self._total_s
        if is_left:
            time.sleep(LEADER_POLL_S)
        return is_left

    def renew(self) -> None:
        """Have as much again: what was waited for is there."""
        self._since_s = None


def _greet(link: "Link") -> None:
    """Connect to a node that leads, as others say.

    Raises:
        Unreachable: With code 15, as nothing was asked of it: if it was killed, the others find out
            in time.
    """
    try:
        link.open(_GREETING_S_MAX)
    except Unreachable as exc:
        raise Unreachable(str(exc), ErrorCode.COORDINATOR_NOT_AVAILABLE) from exc


def _place(one: m.CoordinatorOfGroup | m.ClusterNode) -> _Place:
    return one.node_id, Address(one.host, one.port)


def _pages(ask: Callable[[Request], Any], request: Request) -> Iterator[Any]:
    """Yield the answer to *request*, all pages of it."""
    page: Request | None = request
    while page is not None:
        answer = ask(page)
        if isinstance(answer, AskFailed):
            raise answer
        yield answer
        page = next_page(page, answer)


def _ask_each(links: Collection["Link"], requests: Sequence[Request]) -> dict["Link", Any]:
    """Return what each of *links* answers to *requests*, or why it doesn't."""
    answers: dict[Link, Any] = {}

    def ask(link: Link) -> None:
        try:
            link.open(_GREETING_S_MAX)
            answers[link] = [_checked(answer) for answer in link.exchange(requests)]
        except AskFailed as exc:
            answers[link] = exc

    # Nobody waits for them after Ctrl-C.
    threads = [threading.Thread(target=ask, args=(link,), daemon=True) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


class Link:
    """A connection to one node, made when it is wanted.

    Attributes:
        node_id: Of the node, as it said; -1 before.
    """

    def __init__(self, address: Address, timeout_s: float, config: str | None) -> None:
        self.node_id = -1
        self._address = address
        self._config = config
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._unsaid = b""  # What tells who asks.
        self._may_speak_tls = False  # We don't, and nothing has come yet.
        self._newest: dict[int, int] = {}  # By API, the version that the node answers.
        self._protocol = ClientConnection()

    def exchange(self, requests: Sequence[Request]) -> list[Response | AskFailed]:
        """Return the answers to *requests*, which don't wait for each other.

        Raises:
            Unreachable: It can't be reached or doesn't answer in time.
        """
        with self._failing():
            return list(self._exchange(requests))

    def ask(self, request: Request) -> Any:
        """Return the answer to *request*, or the `AskFailed` in the place of that.

        Raises:
            Unreachable: It can't be reached or doesn't answer in time.
        """
        (answer,) = self.exchange([request])
        return _checked(answer)

    def open(self, patience_s: float) -> None:
        """Connect, if it isn't yet, and hear who is there: who hangs lets anybody connect.

        Raises:
            Unreachable: It doesn't answer in that time.
        """
        if self._socket is None:
            timeout_s, self._timeout_s = self._timeout_s, min(self._timeout_s, patience_s)
            try:
                self.exchange([ApiVersionsRequest(PROGRAM, PROGRAM, "")])
            finally:
                self._timeout_s = timeout_s

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ProtocolError) as exc:
            self.close()
            why = self._words(exc)
            raise Unreachable(f"No coordinator answers at {self._address}: {why}") from exc
        except BaseException:
            self.close()
            raise

    def _words(self, exc: Exception) -> str:
        if isinstance(exc, TimeoutError):
            return f"nothing came within {round(self._timeout_s, 1):g} s"
        if isinstance(exc, ProtocolError):
            maybe = f" ({_MAYBE_TLS})" if self._may_speak_tls else ""
            return f"what is there is no coordinator ({exc}){maybe}"
        return getattr(exc, "strerror", None) or str(exc)

    def _exchange(self, requests: Sequence[Request]) -> Iterator[Response | AskFailed]:
        """Yield an answer for each request, in their order."""
        if self._socket is None:
            self._connect()
        if [type(one) for one in requests] == [ApiVersionsRequest]:
            self._unsaid = b""
        sent: list[int | AskFailed] = []
        data = b""
        for number, request in enumerate(requests, 1):
            try:
                wanted, frame = self._protocol.send(request, self._version(request))
            except LocalProtocolError as exc:
                sent.append(AskFailed(str(exc)))
            else:
                sent.append(wanted)
                data += frame
            if len(data) >= _BYTES_AT_ONCE or number == len(requests):
                yield from self._answered(data, sent)
                data, sent = b"", []

    def _version(self, request: Request) -> int:
        """Return the newest version that both sides know; a node may be of an older release."""
        key = api_of(request)
        return min(APIS[key].max_version, self._newest.get(key, APIS[key].max_version))

    def _answered(
        self, data: bytes, sent: Sequence[int | AskFailed]
    ) -> Iterator[Response | AskFailed]:
        answers: Mapping[int, Response] = {}
        if data:
            assert self._socket is not None
            hello, self._unsaid = self._unsaid, b""
            self._socket.settimeout(self._timeout_s)  # It was less for the first words.
            self._socket.sendall(hello + data)
            answers = self._answers(self._socket, [one for one in sent if isinstance(one, int)])
        for one in sent:
            yield answers[one] if isinstance(one, int) else one

    def _connect(self) -> None:
        """Connect, encrypted and logged in if need be; who asks is said with the first request."""
        where = (self._address.host, self._address.port)
        self._protocol = ClientConnection()
        self._may_speak_tls = False
        sock = self._socket = socket.create_connection(where, timeout=self._timeout_s)
        self._may_speak_tls = True
        _, hello = self._protocol.send(ApiVersionsRequest(PROGRAM, PROGRAM, ""))
        self._unsaid = hello if self._config is None else self._secured(sock, hello)

    def _secured(self, sock: socket.socket, hello: bytes) -> bytes:
        """Encrypt it and log in; return *hello* if it is still unsaid."""
        # It brings trio, which commands that need none of this don't wait for.
        from client import security as s  # noqa: PLC0415 - as above
        from client.exceptions import AuthenticationFailed  # noqa: PLC0415 - as above

        name = str(self._address)
        try:
            security = s.Security.of(self._config)
            if security.uses_tls:
                self._may_speak_tls = False
                context = security.context()
                sock = context.wrap_socket(sock, server_hostname=self._address.host)
                self._socket = sock
            if not security.logs_in:
                return hello
            sock.sendall(hello)
            steps = security.log_in(name)
            request = next(steps)
            while True:
                wanted, frame = self._protocol.send(request)
                sock.sendall(frame)
                request = steps.send(self._answers(sock, [wanted])[wanted])
        except StopIteration:
            return b""
        except ssl.SSLError as exc:  # Before ValueError, which some of them are, too.
            refusal = s.tls_refusal(exc, name)
            if refusal is None:
                raise OSError(s.CLOSED_IN_HANDSHAKE) from exc
            raise AskFailed(str(refusal)) from exc
        except (AuthenticationFailed, ValueError, s.NotNow) as exc:
            raise AskFailed(str(exc)) from exc

    def _answers(self, sock: socket.socket, wanted: Collection[int]) -> dict[int, Response]:
        """Return the answers by correlation id, once all are there that are wanted."""
        found: dict[int, Response] = {}
        while not found.keys() >= set(wanted):
            if not (data := sock.recv(65536)):
                maybe = f" ({_MAYBE_TLS}; {_MAYBE_STARTING})" if self._may_speak_tls else ""
                raise ConnectionResetError(f"it closed the connection without an answer{maybe}")
            self._may_speak_tls = self._may_speak_tls and speaks_tls(data)
            for event in self._protocol.receive(data):
                found[event.correlation_id] = event.response
                if isinstance(event.response, ApiVersionsResponse):
                    self.node_id = event.response.node_id
                    self._newest = {one.api_key: one.max_version for one in event.response.apis}
        return found

    def close(self) -> None:
        """Close it; it may be opened again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _checked(response: Response | AskFailed) -> Response | AskFailed:
    if isinstance(response, AskFailed):
        return response
    error = getattr(response, "error", 0)
    if type(response) is BareError or error:
        text = describe_error(error, getattr(response, "message", None))
        return InDoubt(text, error) if error in _IN_DOUBT else AskFailed(text, error)
    return response


def _is_not_yet(request: Request, answer: Response | AskFailed) -> bool:
    code = answer.code if isinstance(answer, AskFailed) else first_error(answer)
    codes = {ErrorCode.NOT_COORDINATOR} if isinstance(request, _ONCE) else _NOT_YET
    return code in codes


def describe_error(error: int, message: str | None = None) -> str:
    """Return *error* in words: the server's own, or what the code means."""
    try:
        code = ErrorCode(error)
    except ValueError:
        return f"error {error}"
    return f"{message or ERRORS[code].meaning} ({code.name})"


def refused(name: str, error: int, message: str | None = None) -> AskFailed:
    """Return the error about one of what was asked for, by its name."""
    return AskFailed(f"{quoted(name)}: {describe_error(error, message)}")


class Seconds(click.FloatRange):
    """Some time, as a socket takes it: neither none at all nor for ever."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0.001, 3_600)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds; "nan" is none, though no bound says so."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no time.", param, ctx)
        return seconds


class _AddressesType(click.ParamType[tuple[Address, ...]]):
    name = "addresses"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Address, ...]:
        if isinstance(value, tuple):
            return value
        found = []
        for text in value.split(","):
            try:
                found.append(Address.parse("HOST:PORT", text))
            except ConfigError:
                self.fail(f"{quoted(text)} is not HOST:PORT.", param, ctx)
        return tuple(found)


ADDRESSES: Final = _AddressesType()


class NameType(click.ParamType[str]):
    """A name as the coordinator takes it; what it would refuse isn't asked for."""

    def __init__(
        self, name: str, max_bytes: int, problem: Callable[[str], str | None] = lambda _text: None
    ) -> None:
        """Make it.

        Args:
            name: Of what it is, such as "group".
            max_bytes: How long it may be, in UTF-8.
            problem: Returns what else is wrong with a name, None if nothing is.
        """
        self.name = name
        self._max_bytes = max_bytes
        self._problem = problem

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is."""
        text = str(value)
        if why := name_error(text, self._max_bytes) or self._problem(text):
            self.fail(f"the {self.name} {quoted(text)} is not legal: {why}.", param, ctx)
        return text


GROUP: Final = NameType("group", GROUP_ID_BYTES_MAX)
TOPIC: Final = NameType("topic", TOPIC_BYTES_MAX)


class Change:
    """What a command is about to change."""

    def __init__(self, output: Output, *, yes: bool) -> None:
        self._output = output
        self._yes = yes

    def confirm(
        self,
        question: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        failed: bool = False,
    ) -> None:
        """Return if the change that *rows* tell of is to be made.

        Args:
            question: For a person, such as "Delete 2 groups?".
            columns: Of the rows.
            rows: What is there, and what it will be. Without any, there is nothing to ask.
            failed: Some of what was asked for can't be done, which has been told.

        Raises:
            DryRun: It isn't. `changes` ends the command.
        """
        if self._yes or not rows:
            return
        if not _is_somebody_there():
            self._output.show(columns, rows)
            raise DryRun("Dry run: nothing was changed; --yes does it.", failed=failed)
        print_table(Table(columns, rows[:_ROWS_ASKED_ABOUT]), sys.stderr)
        if len(rows) > _ROWS_ASKED_ABOUT:
            note(f"and {len(rows) - _ROWS_ASKED_ABOUT} more")
        try:
            is_wanted = click.confirm(escaped(question), err=True)
        except click.Abort:  # Ctrl-C, or the end of the input.
            note("")
            is_wanted = False
        if not is_wanted:
            raise DryRun("Nothing was changed.", failed=failed)


def _is_somebody_there() -> bool:
    """Say whether a person can be asked: notes are seen, and an answer can be typed."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def asks(
    command: Callable[..., bool | None], *, timeout_s: float = TIMEOUT_S
) -> Callable[..., None]:
    """Give *command* a `Coordinator` and an `Output`; it returns whether something failed."""

    @click.option(
        "--at",
        default="127.0.0.1:9310",
        type=ADDRESSES,
        metavar="HOST:PORT,…",
        help="The coordinator; of a cluster any nodes, of which one is asked that is there. "
        "Without it, bootstrap.servers in the file of --command-config counts.",
        show_default=True,
    )
    @click.option(
        "--timeout",
        "timeout_s",
        default=timeout_s,
        type=Seconds(),
        metavar="SECONDS",
        help="How long to wait for each answer.",
        show_default=True,
    )
    @click.option(
        "--command-config",
        "config",
        envvar=CONFIG_VARIABLE,
        type=click.Path(),
        metavar="FILE",
        help="Properties such as security.protocol, sasl.*, ssl.* and bootstrap.servers; also by "
        f"the variable {CONFIG_VARIABLE}.",
    )
    @refuses("--bootstrap-server", "The coordinator is named by --at HOST:PORT.")
    @prints
    @functools.wraps(command)
    def asking(
        output: Output,
        *arguments: Any,
        at: tuple[Address, ...],
        timeout_s: float,
        config: str | None,
        **options: Any,
    ) -> None:
        failed: bool | None = None
        try:
            if config is not None and not is_given("at"):
                at = _bootstrap_servers(config) or at
            with Coordinator(at, timeout_s=timeout_s, config=config) as coordinator:
                failed = command(coordinator, output, *arguments, **options)
        except Unreachable as exc:
            end(str(exc), EXIT_UNREACHABLE)
        except AskFailed as exc:
            end(str(exc), EXIT_SOME_FAILED)
        if failed:
            sys.exit(EXIT_SOME_FAILED)

    return asking


def is_given(name: str) -> bool:
    """Say whether an option stands on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def _bootstrap_servers(config: str) -> tuple[Address, ...]:
    """Return the addresses that a file of properties names, if any. Raises AskFailed."""
    from client import security as s  # noqa: PLC0415 - as in `Link._secured`

    try:
        text = s.read_properties(config).get(s.BOOTSTRAP_SERVERS, "")
        return tuple(Address.parse(s.BOOTSTRAP_SERVERS, one) for one in text.split(",") if text)
    except (ConfigError, ValueError) as exc:
        raise AskFailed(str(exc)) from exc


def asks_to_change(command: Callable[..., bool | None]) -> Callable[..., None]:
    """Give *command* a `Coordinator`, an `Output` and a `Change`; otherwise it is as `asks`."""
    return changes(command, asks)


def changes(
    command: Callable[..., bool | None],
    gives: Callable[[Callable[..., bool | None]], Callable[..., None]] = prints,
) -> Callable[..., None]:
    """Take ``--yes``, and give *command* a `Change` behind what *gives* does, an `Output` last."""

    @functools.wraps(command)
    def changing(*given: Any, yes: bool, **options: Any) -> bool | None:
        try:
            return command(*given, Change(given[-1], yes=yes), **options)
        except DryRun as exc:
            end(str(exc), EXIT_SOME_FAILED if exc.failed else EXIT_DRY_RUN)

    help_text = "Do it without asking. Without it, and without a terminal, it is a dry run."
    return click.option("--yes", "-y", is_flag=True, help=help_text)(gives(changing))


def may_watch(command: F) -> F:
    """Take ``--watch`` and ``--every``; *command* gets ``every_s``, None without ``--watch``."""

    @click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
    @click.option(
        "--every",
        "every_s",
        default=WATCH_S,
        type=Seconds(),
        metavar="SECONDS",
        help="How often, with --watch.",
        show_default=True,
    )
    @functools.wraps(command)
    def watching(*arguments: Any, watch: bool, every_s: float, **options: Any) -> Any:
        return command(*arguments, every_s=every_s if watch else None, **options)

    return watching  # type: ignore[return-value]  # it takes two options besides


def show(output: Output, look: Callable[[], Table], every_s: float | None) -> None:
    """Print what *look* returns, once or every so many seconds until Ctrl-C.

    On a terminal it is drawn over what was there, as many rows as fit. Elsewhere each look follows
    the one before, behind an empty line.

    Raises:
        AskFailed: The first look failed. Later ones that fail are told, and tried again.
    """
    table = look()
    if every_s is None:
        output.show(*table)
        return
    try:
        if output.form == TABLE and _can_redraw():
            _redraw(table, look, every_s)
        else:
            _repeat(output, table, look, every_s)
    except KeyboardInterrupt:
        return


def _can_redraw() -> bool:
    """Say whether the terminal can be drawn over; where it can't, rich shows only the end."""
    if not sys.stdout.isatty():
        return False
    from rich.console import Console  # noqa: PLC0415  # Slow to import, for terminals only.

    return not Console().is_dumb_terminal


def _repeat(output: Output, table: Table, look: Callable[[], Table], every_s: float) -> None:
    told = ""
    output.show(*table)
    while True:
        sys.stdout.flush()
        time.sleep(every_s)
        try:
            table = look()
        except AskFailed as exc:
            if told != (told := str(exc)):
                note(told)
            continue
        told = ""
        if output.form == TABLE:
            click.echo()
        output.show(*table)


def _redraw(table: Table, look: Callable[[], Table], every_s: float) -> None:
    from rich.console import Group  # noqa: PLC0415  # Slow to import, for terminals only.
    from rich.live import Live  # noqa: PLC0415  # likewise
    from rich.text import Text  # noqa: PLC0415  # likewise

    with Live(auto_refresh=False) as live:

        def drawn() -> Any:
            return styled(table, live.console.width)

        live.update(drawn(), refresh=True)
        while True:
            time.sleep(every_s)
            try:
                table = look()
            except AskFailed as exc:
                # On top, as the lines at the end may not fit.
                live.update(Group(Text(escaped(str(exc))), drawn()), refresh=True)
            else:
                live.update(drawn(), refresh=True)


def several_groups(command: F) -> F:
    """Take groups by name, or all; for `groups_asked_for`."""
    all_groups = click.option("--all-groups", is_flag=True, help="All groups that are there.")
    command = refuses("--group", "Name groups without an option, or say --all-groups.")(command)
    groups = click.argument("group_ids", nargs=-1, metavar="GROUP...", type=GROUP)
    return groups(all_groups(command))


def groups_asked_for(
    coordinator: Coordinator, group_ids: tuple[str, ...], *, all_groups: bool
) -> list[str]:
    """Return the groups of the command line, each once.

    Raises:
        click.UsageError: None are named, or some beside all.
    """
    if bool(group_ids) == all_groups:
        raise click.UsageError("Name groups, or say --all-groups.")
    if all_groups:
        return groups_there(coordinator)
    return list(dict.fromkeys(group_ids))


def for_each(group_ids: Iterable[str], work: Callable[[str], None], what: str = "Looking") -> bool:
    """Do *work* for each group; tell which ones failed, and return whether any did.

    On a terminal a bar shows how far it is, with *what* it does in front.

    Raises:
        Unreachable: Nobody answers any more; the groups that follow were not tried.
    """
    failed = False
    for group_id in tracked(list(group_ids), what):
        try:
            work(group_id)
        except Unreachable as exc:
            raise Unreachable(f"{group_id}: {exc}") from exc
        except AskFailed as exc:
            note(str(exc) if isinstance(exc, GroupRefused) else f"{group_id}: {exc}")
            failed = True
    return failed


# Yields requests, and is sent the answers; what was refused is raised in it.
Talk = Generator[Request, Any, None]


def talk_about_each(
    coordinator: Coordinator,
    group_ids: Iterable[str],
    talk: Callable[[str], Talk],
    what: str = "Looking",
) -> bool:
    """Do as `for_each` does, with many groups at a time: each has a talk of its own.

    Raises:
        Unreachable: Nobody answers any more; the talks that go on end there.
    """
    failed = False
    going_on: dict[str, tuple[Talk, Request]] = {}

    def go_on(group_id: str, one: Talk, step: Callable[[], Request]) -> None:
        nonlocal failed
        try:
            going_on[group_id] = one, step()
        except StopIteration:
            return
        except AskFailed as exc:
            note(f"{group_id}: {exc}")
            failed = True

    left = tracked(list(group_ids), what)
    while True:
        # One that has nothing to ask is over at once; those behind it have their turn, too.
        while len(going_on) < _GROUPS_AT_ONCE and (group_id := next(left, None)) is not None:
            one = talk(group_id)
            go_on(group_id, one, partial(next, one))
        if not going_on:
            return failed
        asked = list(going_on.items())
        going_on.clear()
        try:
            answers = coordinator.ask_all([request for _, (_, request) in asked])
        except Unreachable as exc:
            for _, (one, _) in asked:
                one.close()
            raise Unreachable(f"{asked[0][0]}: {exc}") from exc
        for (group_id, (one, _)), answer in zip(asked, answers, strict=True):
            is_refused = isinstance(answer, AskFailed)
            go_on(group_id, one, partial(one.throw if is_refused else one.send, answer))


def described(coordinator: Coordinator, group_id: str) -> m.DescribedGroup:
    """Return a group that is there.

    Raises:
        GroupRefused: It isn't.
        AskFailed: It can't be described.
    """
    found = described_or_dead(coordinator, group_id)
    if found.error:
        raise missing_group(coordinator, group_id)
    return found


def missing_group(coordinator: Coordinator, group_id: str) -> GroupRefused:
    """Return the error about a group that isn't there, with the names that are near."""
    hint = hint_for(group_id, lambda: groups_there(coordinator))
    return GroupRefused(f"Consumer group {quoted(group_id)} does not exist.{hint}")


def missing_topic(coordinator: Coordinator, topic: str) -> AskFailed:
    """Return the error about a topic that nobody registered, with the names that are near."""
    hint = hint_for(topic, lambda: (known.topic for known in registered_topics(coordinator)))
    return AskFailed(f"Topic {quoted(topic)} is not registered.{hint}")


def hint_for(name: str, ask_for_known: Callable[[], Iterable[str]]) -> str:
    """Return `did_you_mean`, empty where the known names can't be asked for."""
    try:
        return did_you_mean(name, ask_for_known())
    except AskFailed:  # It was a help only.
        return ""


def has_members(group: m.DescribedGroup) -> GroupRefused:
    """Return the error about a group that must have no members to be changed."""
    where = f"has members, and is {group.state}"
    return GroupRefused(f"Consumer group {quoted(group.group_id)} {where}: stop them first.")


def groups_there(coordinator: Coordinator) -> list[str]:
    """Return the names of all groups, sorted.

    Raises:
        AskFailed: They can't be listed.
    """
    answers: list[m.ListGroupsResponse] = coordinator.ask_leaders(m.ListGroupsRequest((), ()))
    return sorted(group.group_id for answer in answers for group in answer.groups)


def registered_topics(
    coordinator: Coordinator, pattern: str | None = None
) -> Iterator[m.DescribedTopic]:
    """Yield the registered topics, of these only those whose name matches *pattern*.

    Raises:
        AskFailed: They can't be listed.
    """
    after, has_more = "", True
    while has_more:
        request = m.DescribeTopicsRequest(None, pattern, True, after, TOPICS_PER_PAGE)
        answer: m.DescribeTopicsResponse = coordinator.ask(request)
        yield from answer.topics
        has_more = answer.has_more and bool(answer.topics)
        after = answer.topics[-1].topic if answer.topics else ""


def described_topic(
    coordinator: Coordinator, topic: str, *, with_ends: bool = False
) -> m.DescribedTopic:
    """Return a topic, one that isn't registered with error 3; its ends only if they are wanted.

    Raises:
        AskFailed: It can't be asked for.
    """
    request = m.DescribeTopicsRequest((topic,), None, with_ends, "", 1)
    answer: m.DescribeTopicsResponse = coordinator.ask(request)
    (found,) = answer.topics
    return found


def described_or_dead(coordinator: Coordinator, group_id: str) -> m.DescribedGroup:
    """Return a group, one that isn't there as Dead with error 69.

    Raises:
        AskFailed: It can't be described.
    """
    return or_dead(coordinator.ask(m.DescribeGroupsRequest((group_id,))))


def or_dead(answer: m.DescribeGroupsResponse) -> m.DescribedGroup:
    """Return the group that was asked for, one that isn't there as Dead with error 69.

    Raises:
        AskFailed: It can't be described.
    """
    (found,) = answer.groups
    if found.error not in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
        raise AskFailed(describe_error(found.error, found.message))
    return found


def topic_scope(texts: Iterable[str]) -> Scope:
    """Return the topics of ``--topic t`` and ``--topic t:0,1``, given any number of times.

    A name that itself ends in a colon and digits is written with a colon behind it.

    Raises:
        click.BadParameter: A partition is out of range, or a name is empty.
    """
    scope: Scope = {}
    for text in texts:
        match = _TOPIC.fullmatch(text)
        if match is None:
            raise click.BadParameter(f"{text!r} names no topic; t or t:0,1", param_hint="--topic")
        topic, listed = match.groups()
        TOPIC.convert(topic, None, None)
        partitions = {int(p) for p in listed.split(",")} if listed else None
        if partitions and max(partitions) > INT32_MAX:
            raise click.BadParameter(f"{text!r} is no partition", param_hint="--topic")
        known = scope.get(topic, set())
        scope[topic] = None if partitions is None or known is None else known | partitions
    return scope


def retention_ms(text: str) -> int:
    """Return for how long offsets are kept by *text*, in milliseconds; -1 for "never".

    Raises:
        ValueError: It is neither, or no time at all.
    """
    if text == "never":
        return FOR_EVER
    match = _TIME.fullmatch(text)
    kept_ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 0 < kept_ms <= INT64_MAX:
        raise ValueError(f"{text!r} is none of 14d, 36h, 90m (also w, s, ms), never, default")
    return kept_ms


def retention_text(kept_ms: int) -> str:
    """Return such a time in the largest unit that gives a whole number; a week stays 7d."""
    if kept_ms < 0:
        return "never"
    if kept_ms:
        for unit in ("d", "h", "m", "s"):
            if kept_ms % _UNITS_MS[unit] == 0:
                return f"{kept_ms // _UNITS_MS[unit]}{unit}"
    return f"{kept_ms}ms"


def committed_offsets(coordinator: Coordinator, group_id: str) -> dict[TopicPartition, int]:
    """Return what the group has committed; nothing for one that isn't there.

    Raises:
        AskFailed: They can't be read.
    """
    request = m.OffsetFetchRequest((m.GroupFetch(group_id, None),), False)
    (found,) = coordinator.ask(request).groups
    if found.error:
        raise AskFailed(describe_error(found.error))
    return {
        TopicPartition(topic.topic, p.partition): p.offset
        for topic in found.topics
        for p in topic.partitions
    }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return partitions by topic, in the order given."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


def as_topics(partitions: Iterable[TopicPartition]) -> tuple[m.TopicPartitions, ...]:
    """Return partitions by topic as requests name them, in the order given."""
    return tuple(m.TopicPartitions(t, tuple(p)) for t, p in by_topic(partitions).items())


def assignment_of(
    group: m.DescribedGroup, member: m.DescribedMember
) -> dict[str, list[int]] | None:
    """Return a member's partitions by topic, None where the bytes can't be read."""
    if group.protocol_type != _CONSUMER and member.assignment:
        return None
    assignment = decode_assignment(member.assignment)
    return None if assignment is None else by_topic(sorted(assignment.partitions))


def partition_count(assigned: dict[str, list[int]] | None) -> int | None:
    """Return how many partitions an assignment has, None for one that can't be read."""
    return None if assigned is None else sum(map(len, assigned.values()))
