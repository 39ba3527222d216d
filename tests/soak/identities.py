"""What is done with certificates, users and passwords, by who may and by who may not."""

import random
import secrets
import signal
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final

import trio

from client import (
    Acl,
    AuthenticationFailed,
    Client,
    CoordinatorUnavailable,
    NotAuthorized,
    OffsetAndMetadata,
    OutcomeUnknown,
    RetriableError,
    TopicPartition,
    connect,
)
from protocol.acls import Operation, ResourceType
from protocol.connection import ClientConnection
from protocol.messages import ListGroupsRequest
from tests.sim.registers import Violation
from tests.soak.accounts import HOST, ROOT, SASL_SSL, SSL, Accounts
from tests.soak.faults import Fault
from tests.soak.node import Node

# Failures count by address, and nobody else comes from this one.
_ELSEWHERE: Final = "127.0.0.2"
_PATIENCE_S: Final = 60
# Who has a right password, and may not do what a rule keeps for somebody else.
MALLORY: Final = "mallory"
FORBIDDEN: Final = "forbidden"
_NOT_NOW: Final = (CoordinatorUnavailable, RetriableError, OutcomeUnknown)


class OnIdentities:
    """Faults of certificates and passwords, and what must hold of both all the while."""

    def __init__(self, node: Node, accounts: Accounts, rng: random.Random, pace: float) -> None:
        """*pace* is how long everything takes: 1 for long runs, less for short ones."""
        self._node = node
        self._accounts = accounts
        self._rng = rng
        self._pace = pace

    def all(self) -> dict[str, Fault]:
        """Return them by name."""
        return {
            "certificate change": Fault(self._renew),
            "bad certificate": Fault(self._spoil),
            "stranger's certificate": Fault(self._show_anothers),
            "wrong credentials": Fault(self._guess),
            "password change": Fault(self._change_password),
        }

    async def enroll(self, users: Iterable[str]) -> None:
        """Have *users* who can log in, one of them with little rights."""
        for user in (*users, MALLORY):
            password = secrets.token_hex()
            await self._set_password(user, password)
            self._accounts.hand_out(user, password)
        rule = Acl("User:nobody", Operation.READ, ResourceType.GROUP, FORBIDDEN)
        async with self._root() as root:
            await root.create_acls([rule])

    async def check(self) -> None:
        """See that all passwords of the moment are taken, and none of those before."""
        accounts = self._accounts
        for user, password in accounts.passwords.items():
            await self._expect(user, password, is_right=True)
        for user, password in accounts.past:
            await self._expect(user, password, is_right=False)
        async with self._root() as root:
            if await root.fetch_offsets(FORBIDDEN):
                self._violate("rights", "somebody committed for the forbidden group")

    # --- certificates ---------------------------------------------------------------------------

    async def _renew(self) -> None:
        await self._node.serving()
        before = self._node.count("certificate.reloaded")
        self._accounts.renew()
        await self._is_told("certificate.reloaded", before)
        await self._check_shown("a new one")

    async def _spoil(self) -> None:
        await self._node.serving()
        before = self._node.count("certificate.refused")
        what = self._accounts.spoil()
        await self._is_told("certificate.refused", before)
        await self._check_shown(f"one that is no good ({what})")
        before = self._node.count("certificate.reloaded")
        self._accounts.mend()
        await self._is_told("certificate.reloaded", before)

    async def _is_told(self, event: str, before: int) -> None:
        """Have the daemon look at its files, or wait until it does by itself."""
        if self._rng.random() >= self._pace / 2:
            (await self._node.serving()).process.send_signal(signal.SIGHUP)
        await self._node.event(event, before)

    async def _check_shown(self, after: str) -> None:
        accounts = self._accounts
        async with await trio.open_tcp_stream(HOST, self._node.ports()[SSL]) as stream:
            context = accounts.as_client("nobody", SASL_SSL)
            encrypted = trio.SSLStream(stream, context, server_hostname=HOST)
            await encrypted.do_handshake()
            if not accounts.is_shown(encrypted.getpeercert(binary_form=True)):
                self._violate("certificate", f"another one than it should be, after {after}")

    async def _show_anothers(self) -> None:
        """Nor may he speak without TLS, or before it has begun."""
        await self._node.serving()
        if await self._lets_in(SSL, self._accounts.strangers_properties()):
            self._violate("certificate", "a stranger's was taken")
        for protocol in (SSL, SASL_SSL):
            for begun in (False, True):
                if await self._answers(protocol, begins=begun):
                    self._violate("certificate", f"{protocol} answers without TLS")

    async def _answers(self, protocol: str, *, begins: bool) -> bool:
        """Say whether something comes that is no alert of TLS."""
        _, frame = ClientConnection().send(ListGroupsRequest((), ()))
        said = b"\x16\x03\x01\x02\x00\x01" + frame if begins else frame
        heard = b""
        with suppress(OSError, trio.BrokenResourceError):
            stream = await trio.open_tcp_stream(
                HOST, self._node.ports()[protocol], local_address=_ELSEWHERE
            )
            async with stream:
                await stream.send_all(said)
                with trio.move_on_after(self._pace):
                    heard = bytes(await stream.receive_some())
        return bool(heard) and heard[:1] != b"\x15"

    # --- passwords ------------------------------------------------------------------------------

    async def _guess(self) -> None:
        """A few wrong passwords; a right one, and too few rights; and nobody's request."""
        await self._node.serving()
        before = self._node.count("login.refused")
        known = self._rng.sample(sorted(self._accounts.passwords), 2)
        for user in (*known, ROOT, "no such user"):
            await self._expect(user, secrets.token_hex(), is_right=False)
        await self._node.event("login.refused", before)
        before = self._node.count("access.refused")
        await self._overreach()
        await self._node.event("access.refused", before)

    async def _overreach(self) -> None:
        mallory = self._accounts.guess(MALLORY, self._accounts.passwords[MALLORY])
        try:
            async with self._connected(SASL_SSL, mallory) as client:
                await client.commit(FORBIDDEN, {TopicPartition("t", 0): OffsetAndMetadata(1)})
        except NotAuthorized:
            return
        self._violate("rights", "who may not commit has committed")

    async def _change_password(self) -> None:
        """Its owner may know it before the daemon does, or after."""
        accounts = self._accounts
        user = self._rng.choice(sorted(accounts.passwords))
        older, newer = accounts.passwords[user], secrets.token_hex()
        await self._expect(user, older, is_right=True)
        knows_first = self._rng.random() < 0.5
        if knows_first:
            accounts.hand_out(user, newer)
            await trio.sleep(self._rng.uniform(0, 1) * self._pace)
        await self._set_password(user, newer)
        if not knows_first:
            await trio.sleep(self._rng.uniform(0, 1) * self._pace)
            accounts.hand_out(user, newer)
        await self._expect(user, older, is_right=False)
        await self._expect(user, newer, is_right=True)

    async def _set_password(self, user: str, password: str) -> None:
        """Repeat it until it is acknowledged: then only this one is right."""
        with trio.fail_after(_PATIENCE_S):
            while True:
                try:
                    async with self._root() as root:
                        await root.set_password(user, password)
                except _NOT_NOW:
                    continue
                break
        accounts = self._accounts
        if user in accounts.passwords:
            accounts.past.append((user, accounts.passwords[user]))
        accounts.passwords[user] = password

    async def _expect(self, user: str, password: str, *, is_right: bool) -> None:
        properties = self._accounts.guess(user, password)
        if await self._lets_in(SASL_SSL, properties) is not is_right:
            what = "a right password was refused" if is_right else "a wrong password was taken"
            self._violate("password", f"{what}: that of {user}")

    # --- ways to the daemon ---------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(
        self, protocol: str, properties: Mapping[str, str]
    ) -> AsyncIterator[Client]:
        async def open_stream(host: str, port: int) -> trio.SocketStream:
            return await trio.open_tcp_stream(host, port, local_address=_ELSEWHERE)

        await self._node.serving()
        address = f"{HOST}:{self._node.ports()[protocol]}"
        async with connect(address, security=properties, open_stream=open_stream) as client:
            yield client

    def _root(self) -> AbstractAsyncContextManager[Client]:
        return self._connected(SASL_SSL, self._accounts.properties(ROOT, SASL_SSL))

    async def _lets_in(self, protocol: str, properties: Mapping[str, str]) -> bool:
        try:
            async with self._connected(protocol, properties):
                return True
        except AuthenticationFailed:
            return False

    def _violate(self, invariant: str, text: str) -> None:
        self._node.violations.append(Violation(invariant, text))
