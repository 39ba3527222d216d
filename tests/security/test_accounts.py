"""Who asks over HTTP: tokens, passwords, and the visits of those who have logged in."""

import base64
import hashlib
from contextlib import suppress
from typing import Final

import pytest

from coordinator.security.accounts import (
    VISITS_MAX,
    VISITS_OF_ONE_MAX,
    Account,
    Accounts,
    NoAccount,
    basic,
    by_certificate,
)
from coordinator.security.bearer import Bearer, StaticTokens
from coordinator.security.sasl import Authenticator, Credential, credential_of

IDLE_MS: Final = 60_000
WALL_MS: Final = 1_700_000_000_000
SHA256: Final = "SCRAM-SHA-256"
SHA512: Final = "SCRAM-SHA-512"


def tokens(*lines: tuple[str, str, str]) -> StaticTokens:
    """Return a file of tokens: name, token, and its end or nothing."""
    text = [
        f"{name} {hashlib.sha256(token.encode()).hexdigest()} {end}" for name, token, end in lines
    ]
    return StaticTokens.parse("\n".join(text))


class People:
    """Users and tokens that a test may change."""

    def __init__(self) -> None:
        self.users: dict[tuple[str, str], Credential] = {}
        self.tokens = StaticTokens()
        self.looked: list[tuple[str, str]] = []
        self._secrets = 0
        bearer = Bearer(tokens=lambda: self.tokens)
        made_up = Authenticator(
            mechanisms=(SHA256,), credential=self.credential, bearer=None, secret=b"s"
        ).made_up
        self.accounts = Accounts(
            bearer=bearer,
            credential=self.credential,
            made_up=made_up,
            mechanisms=(SHA256, SHA512),
            new_secret=self._new_secret,
            idle_ms=IDLE_MS,
        )

    def credential(self, name: str, mechanism: str) -> Credential | None:
        """Return the credential of a user."""
        self.looked.append((name, mechanism))
        return self.users.get((name, mechanism))

    def _new_secret(self) -> bytes:
        self._secrets += 1
        return self._secrets.to_bytes(16)

    def add(self, name: str, password: str, mechanism: str = SHA256) -> None:
        """Give *name* a password."""
        self.users[name, mechanism] = credential_of(password, mechanism)

    def by_password(self, name: str, password: str) -> Account:
        """Return who logs in."""
        return self.accounts.password_check(name, password)()


@pytest.fixture
def people() -> People:
    """Nobody yet."""
    return People()


# --- passwords --------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [SHA256, SHA512])
def test_a_password_is_compared_with_what_scram_keeps(people: People, mechanism: str) -> None:
    """There is one password, whatever somebody logs in by."""
    people.add("alice", "secret", mechanism)
    people.add("*", "secret", mechanism)

    assert people.by_password("alice", "secret").principal == "User:alice"
    for name, password, why in (
        ("alice", "Secret", "not that of user 'alice'"),
        ("alice", "", "not that of user 'alice'"),
        ("bob", "secret", "no such user$"),
        ("", "secret", "no such user$"),
        ("*", "secret", "not that of user"),
    ):
        with pytest.raises(NoAccount, match=why):
            people.by_password(name, password)


def test_nobody_is_let_in_by_a_made_up_credential(people: People) -> None:
    """It has a salt like a real one, and must fit no password."""
    for password in ("", "password", "made up"):
        with pytest.raises(NoAccount, match="no such user"):
            people.by_password("nobody", password)


def test_the_work_does_not_tell_what_there_is(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger must not learn from the time which users there are."""
    people.add("alice", "secret")
    asked: list[str] = []

    def counted(password: str, mechanism: str, **rest: object) -> Credential:
        asked.append(mechanism)
        return credential_of(password, mechanism, **rest)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr("coordinator.security.accounts.credential_of", counted)
    work = []
    for name, password in (("alice", "wrong"), ("nobody", "wrong"), ("alice", "secret")):
        asked.clear()
        with suppress(NoAccount):
            people.by_password(name, password)
        work.append(list(asked))

    assert work == [[SHA256, SHA512]] * 3


def test_a_password_that_was_changed_ends_what_was_got_by_the_old_one(people: People) -> None:
    """Whoever changes a password that somebody has stolen wants him out."""
    people.add("alice", "secret")
    account = people.by_password("alice", "secret")
    assert account.holds(WALL_MS)

    people.add("alice", "another")
    assert not account.holds(WALL_MS)

    again = people.by_password("alice", "another")
    people.users.clear()
    assert not again.holds(WALL_MS)


@pytest.mark.parametrize(
    "text", ["", "!!", "YWxpY2U=", base64.b64encode(b"a:" + b"x" * 2_000).decode(), "/////w=="]
)
def test_what_is_no_basic_is_refused(text: str) -> None:
    """No colon, no base64, no UTF-8, or far too long."""
    with pytest.raises(NoAccount):
        basic(text)


def test_a_password_may_have_colons() -> None:
    """Only a name may not (RFC 7617)."""
    assert basic(base64.b64encode(b"alice:a:b").decode()) == ("alice", "a:b")


# --- tokens -----------------------------------------------------------------------------


def test_a_token_says_who_asks_until_it_ends(people: People) -> None:
    """It may end while somebody follows events by it."""
    people.tokens = tokens(("prometheus", "t0ken", "2023-11-14T22:13:21Z"))

    account = people.accounts.by_token("t0ken", WALL_MS)

    assert account.principal == "User:prometheus"
    assert account.holds(WALL_MS)
    assert not account.holds(WALL_MS + 1_000)
    for token, wall_ms in (("T0ken", WALL_MS), ("t0ken", WALL_MS + 1_000)):
        with pytest.raises(NoAccount):
            people.accounts.by_token(token, wall_ms)


def test_a_token_that_was_taken_out_of_its_file_holds_no_more(people: People) -> None:
    """There is no other way to revoke one; what else changes in the file ends nothing."""
    people.tokens = tokens(("prometheus", "t0ken", ""))
    account = people.accounts.by_token("t0ken", WALL_MS)

    people.tokens = tokens(("prometheus", "t0ken", ""), ("other", "0ther", ""))
    assert account.holds(WALL_MS)
    people.tokens = tokens(("somebody", "t0ken", ""))
    assert not account.holds(WALL_MS)
    people.tokens = tokens(("other", "0ther", ""))
    assert not account.holds(WALL_MS)


# --- visits -----------------------------------------------------------------------------


def visit(people: People, secret: str, now_ms: int) -> str | None:
    """Return whose visit it is, None if there is none."""
    try:
        return people.accounts.visit(secret, now_ms, WALL_MS + now_ms).principal
    except NoAccount:
        return None


def test_a_visit_lasts_as_long_as_it_is_used(people: People) -> None:
    """A browser that was left open elsewhere must not stay logged in for ever."""
    secret = people.accounts.begin_visit(by_certificate("User:alice"), 0)

    assert visit(people, secret, IDLE_MS - 1) == "User:alice"
    assert visit(people, secret, 2 * IDLE_MS - 2) == "User:alice"
    assert visit(people, secret, 3 * IDLE_MS - 2) is None
    assert visit(people, secret, 3 * IDLE_MS - 2) is None


def test_a_visit_ends_when_its_owner_says_so(people: People) -> None:
    """What a cookie was copied to must lose it, too."""
    secret = people.accounts.begin_visit(by_certificate("User:alice"), 0)

    ended = people.accounts.end_visit(secret)

    assert ended is not None
    assert ended.principal == "User:alice"
    assert visit(people, secret, 1) is None
    assert people.accounts.end_visit(secret) is None


def test_a_visit_ends_with_its_credential(people: People) -> None:
    """As connections do."""
    people.add("alice", "secret")
    secret = people.accounts.begin_visit(people.by_password("alice", "secret"), 0)
    assert visit(people, secret, 1) == "User:alice"

    people.users.clear()

    assert visit(people, secret, 2) is None


def test_each_visit_has_128_random_bits_of_its_own(people: People) -> None:
    """Nobody guesses those, nor gets another's by a second log-in."""

    def begin() -> str:
        return people.accounts.begin_visit(by_certificate("User:a"), 0)

    one, other = begin(), begin()

    assert one != other
    assert len(base64.urlsafe_b64decode(one + "==")) == 16


def test_only_so_many_visits_are_kept(people: People) -> None:
    """One who logs in all the time pushes out his own; many, those that were not used for long."""
    first = people.accounts.begin_visit(by_certificate("User:alice"), 0)
    mine = [
        people.accounts.begin_visit(by_certificate("User:bob"), 0)
        for _ in range(VISITS_OF_ONE_MAX + 1)
    ]
    assert visit(people, mine[0], 1) is None
    assert visit(people, mine[-1], 1) == visit(people, mine[1], 1) == "User:bob"
    assert len(people.accounts) == VISITS_OF_ONE_MAX + 1

    for number in range(VISITS_MAX):
        people.accounts.begin_visit(by_certificate(f"User:{number}"), 1)

    assert visit(people, first, 2) is None
    assert len(people.accounts) == VISITS_MAX
