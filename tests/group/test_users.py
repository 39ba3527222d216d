"""Users and quotas: how they are changed and shown, and how they lie in the log."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from coordinator.group.node_records import read_item
from coordinator.group.quotas import QuotaSet
from coordinator.group.records import MalformedRecord
from coordinator.group.users import CredentialSet, ScramCredential
from protocol.acls import ANONYMOUS
from protocol.messages import (
    AlterClientQuotasRequest,
    AlteredPrincipal,
    AlterUserScramCredentialsRequest,
    DeleteTopicsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    QuotaChange,
    RegisterTopicsRequest,
    ScramDeletion,
    ScramUpsertion,
    TopicRegistration,
)
from protocol.quotas import QUOTAS
from protocol.scram import ITERATIONS, Mechanism
from tests.group.context import returned
from tests.group.node_context import NodeContext, roundtrip

MARK = b"\x5e\xc2\xe7"
SALT, KEY = MARK * 8, MARK * 10 + b"kk"


def password(user: str, mechanism: int = 1, mark: bytes = MARK) -> ScramUpsertion:
    """Return a credential to set, another one by another *mark*."""
    keys = KEY if mechanism == 1 else KEY * 2
    return ScramUpsertion(user, mechanism, ITERATIONS, mark * 8, keys, keys)


def change(context: NodeContext, *changes: ScramUpsertion | ScramDeletion) -> list[tuple[str, int]]:
    """Return users with their errors."""
    deletions = tuple(c for c in changes if isinstance(c, ScramDeletion))
    upsertions = tuple(c for c in changes if isinstance(c, ScramUpsertion))
    answer = context.ask(AlterUserScramCredentialsRequest(deletions, upsertions))
    return [(one.user, one.error) for one in answer.results]


def shown(context: NodeContext, *users: str) -> dict[str, dict[int, int]]:
    """Return the iterations of each user's credentials by mechanism."""
    request = DescribeUserScramCredentialsRequest(users or None, "", 100)
    answer = context.look(request)
    return {one.user: {c.mechanism: c.iterations for c in one.credentials} for one in answer.users}


def test_a_password_is_set_changed_and_removed() -> None:
    """And what it is checked by is found by the name that SASL has for it."""
    context = NodeContext()
    assert change(context, password("alice"), password("alice", 2)) == [("alice", 0)]
    assert change(context, password("alice", 1, b"new")) == [("alice", 0)]
    assert shown(context) == {"alice": {1: ITERATIONS, 2: ITERATIONS}}
    context.crash()

    users = context.shard.users
    known = ScramCredential(b"new" * 8, KEY, KEY, ITERATIONS)
    assert users.credential("alice", "SCRAM-SHA-256") == known
    assert users.credential("alice", "PLAIN") is users.credential("bob", "SCRAM-SHA-256") is None
    assert change(context, ScramDeletion("alice", 1), ScramDeletion("alice", 2)) == [("alice", 0)]
    assert len(users) == 0
    assert shown(context, "alice") == {"alice": {}}


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"mechanism": 3}, 33),
        ({"user": "*"}, 93),
        ({"user": "ANONYMOUS"}, 93),
        ({"iterations": 4_096}, 93),
        ({"iterations": 1_000_000}, 93),
        ({"salt": SALT[:-1]}, 93),
        ({"salt": SALT + b"x"}, 93),
        ({"stored_key": b""}, 93),
        ({"server_key": KEY * 2}, 93),
    ],
)
def test_a_credential_that_is_unlike_all_others_is_refused(
    changed: dict[str, Any], error: int
) -> None:
    """A challenge would tell strangers that there is such a user, or it could never be right."""
    context = NodeContext()
    bad = structs.replace(password("alice"), **changed)

    assert change(context, bad, password("bob")) == [(bad.user, error), ("bob", 0)]
    assert set(shown(context)) == {"bob"}


def test_all_changes_of_a_user_are_made_or_none() -> None:
    """Who replaces a credential by another one never ends with neither."""
    context = NodeContext()
    change(context, password("alice"))

    assert change(context, ScramDeletion("alice", 2), password("alice", 1, b"new")) == [
        ("alice", 91)
    ]
    assert change(context, ScramDeletion("alice", 1), password("alice", 1)) == [("alice", 92)]
    assert shown(context) == {"alice": {1: ITERATIONS}}


def test_a_full_disk_and_a_full_list_take_removals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locking somebody out must always be possible."""
    context = NodeContext()
    change(context, password("alice"))
    monkeypatch.setattr("coordinator.group.users.USERS_MAX", 1)
    assert change(context, password("bob"), password("alice", 2)) == [("bob", 1005), ("alice", 0)]
    context.shard.storage_full = True

    assert change(context, password("alice")) == [("alice", 1004)]
    assert change(context, ScramDeletion("alice", 1)) == [("alice", 0)]


def test_users_come_by_page() -> None:
    """There may be 100,000."""
    context = NodeContext()
    change(context, *(password(f"u{n}") for n in range(5)))
    seen: list[str] = []
    has_more = True
    while has_more:
        start_after = seen[-1] if seen else ""
        request = DescribeUserScramCredentialsRequest(None, start_after, 2)
        page = context.look(request)
        seen += [one.user for one in page.users]
        has_more = page.has_more

    assert seen == [f"u{n}" for n in range(5)]


def test_a_page_has_who_was_there_as_it_began_and_is_still_there() -> None:
    """It is made in slices; nobody is shown who has gone, and what changes stays in order."""
    context = NodeContext()
    change(context, *(password(f"u{n:04}") for n in range(3_000)))
    request = DescribeUserScramCredentialsRequest(None, "", 200)
    sorting = context.shard.users.describe(request, 1 << 30)
    next(sorting)
    change(context, ScramDeletion("u0001", 1), password("a"))  # While all are sorted.
    found = returned(sorting)
    assert found is not None
    assert (199, True) == (len(found.users), found.has_more)

    assert ["a", "u0000", "u0002"] == list(shown(context))[:3]
    looking = context.shard.users.describe(request, 1 << 30)
    next(looking)
    change(context, ScramDeletion("a", 1), ScramDeletion("u0199", 1), password("b"))
    found = returned(looking)
    assert found is not None
    assert 199 == len(found.users)
    assert ["b", "u0000", "u0002"] == list(shown(context))[:3]


def test_what_is_too_large_to_show_is_known_before_all_of_it_is_made() -> None:
    """An answer has a limit, and so has what is in memory of it."""
    context = NodeContext()
    change(context, *(password(f"u{n}") for n in range(200)))
    looking = context.shard.users.describe(
        DescribeUserScramCredentialsRequest(None, "", 200), max_bytes=100
    )

    assert returned(looking) is None


def test_no_text_ever_has_a_salt_or_a_key() -> None:
    """Events, answers, and whatever a traceback shows of a request or a record."""
    context = NodeContext()
    request = AlterUserScramCredentialsRequest((), (password("alice"),))
    answer = context.ask(request)
    look = context.look(DescribeUserScramCredentialsRequest(("alice",), "", 0))
    texts = map(repr, (request, answer, look, context.events, context.records))
    assert context.told("user.altered") == [
        {
            "user": "alice",
            "mechanism": "SCRAM-SHA-256",
            "change": "set",
            "iterations": ITERATIONS,
            "by": ANONYMOUS,
        }
    ]

    assert not [text for text in texts if "\\x5e" in text or "^\\xc2" in text or "5ec2e7" in text]
    assert dict(request.upsertions[0].__rich_repr__()) == {"user": "alice", "mechanism": 1}


def test_a_topic_that_is_forgotten_takes_no_user_of_its_name_along() -> None:
    """Its tombstone is for a whole scope; the context folds the compacted log after each step."""
    context = NodeContext()
    change(context, password("t"))
    context.ask(RegisterTopicsRequest((TopicRegistration("t", 1, None),)))
    context.ask(DeleteTopicsRequest(("t",)))
    context.records += context.shard.forget(["t"]).records
    change(context, password("u"))

    assert set(shown(context)) == {"t", "u"}


CREDENTIAL = CredentialSet("alice", Mechanism.SCRAM_SHA_256, ScramCredential(SALT, KEY, KEY, 4_096))


@pytest.mark.parametrize(
    ("type_", "key", "value"),
    [
        (1021, ("alice", 1), (SALT, KEY, KEY)),
        (1021, ("alice", 1), (SALT, KEY, KEY, "4096")),
        (1021, ("alice", 9), (SALT, KEY, KEY, 4_096)),
        (1021, (b"alice", 1), None),
        (1022, ("User:a", 1), (5,)),
        (1022, ("User:a", "connections"), ("5",)),
        (1022, ("User:a", "connections"), (1, 2)),
        (1022, ("User:a", "connections"), (0,)),
    ],
)
def test_what_is_no_credential_or_quota_is_not_loaded(type_: int, key: Any, value: Any) -> None:
    """And the reason shows nothing of it."""
    with pytest.raises(MalformedRecord) as caught:
        read_item((0, type_, 0, "", key, value))

    assert "x5e" not in str(caught.value)


def test_a_credential_comes_back_from_the_log_as_it_was() -> None:
    """Or nobody could log in after a restart."""
    assert roundtrip(CREDENTIAL) == CREDENTIAL


# --- quotas -------------------------------------------------------------------------------


def alter(context: NodeContext, principal: str, **quotas: int | None) -> int:
    """Change quotas; return the error."""
    changes = tuple(QuotaChange(key, value) for key, value in quotas.items())
    request = AlterClientQuotasRequest((AlteredPrincipal(principal, changes),))
    (answer,) = context.ask(request).results
    error: int = answer.error
    return error


def test_who_has_no_quota_has_the_default() -> None:
    """Key by key; and nothing limits what neither has."""
    context = NodeContext()
    assert alter(context, "", connections=5, byte_rate=9) == 0
    assert alter(context, "User:alice", connections=7) == 0
    context.crash()
    quotas = context.shard.quotas
    limits = {key: quotas.limit("User:alice", key) for key in QUOTAS}

    assert {k: v for k, v in limits.items() if v is not None} == {"connections": 7, "byte_rate": 9}
    assert quotas.limit("User:bob", "connections") == 5


def test_quotas_are_shown_of_who_has_some_as_the_look_at_them_comes_to_him() -> None:
    """It is made in slices; what is gone by then is left out."""
    context = NodeContext()
    for n in range(100):
        alter(context, f"User:u{n:02}", connections=7)
    looking = context.shard.quotas.describe(DescribeClientQuotasRequest(None), 1 << 30)
    next(looking)
    alter(context, "User:u99", connections=None)
    found = returned(looking)

    assert found is not None
    assert 99 == len(found.entries)
    entries = context.look(DescribeClientQuotasRequest(("User:u03", "User:no", "User:u01"))).entries
    assert ["User:u01", "User:u03"] == [entry.principal for entry in entries]


def test_quotas_are_removed_and_shown() -> None:
    """A principal without any is not there any more; what is so already writes nothing."""
    context = NodeContext()
    alter(context, "User:alice", connections=7, byte_rate=1)
    version, count = context.shard.quotas.version, len(context.records)
    assert alter(context, "User:alice", connections=7, request_rate=None) == 0
    assert (version, count) == (context.shard.quotas.version, len(context.records))
    (entry,) = context.look(DescribeClientQuotasRequest(None)).entries
    assert [(q.key, q.value) for q in entry.quotas] == [("byte_rate", 1), ("connections", 7)]
    context.shard.storage_full = True
    assert alter(context, "User:alice", connections=8) == 1004
    assert alter(context, "User:alice", connections=None, byte_rate=None) == 0

    assert context.look(DescribeClientQuotasRequest(("User:alice",))).entries == ()
    assert context.told("quota.altered") == [
        {"principal": "User:alice", "quotas": {"connections": 7, "byte_rate": 1}, "by": ANONYMOUS},
        {
            "principal": "User:alice",
            "quotas": {"connections": None, "byte_rate": None},
            "by": ANONYMOUS,
        },
    ]


@pytest.mark.parametrize(
    ("principal", "key"),
    [("alice", "connections"), ("User:", "connections"), ("User:a\n", "connections")],
)
def test_a_quota_is_for_a_principal(principal: str, key: str) -> None:
    """Or nobody would ever have it."""
    assert alter(NodeContext(), principal, **{key: 1}) == 42


def test_a_quota_is_one_of_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named once; and there is a bound of principals."""
    context = NodeContext()
    twice = (QuotaChange("connections", 1), QuotaChange("connections", 2))
    answer = context.ask(AlterClientQuotasRequest((AlteredPrincipal("User:a", twice),)))
    assert [one.error for one in answer.results] == [42]
    assert alter(context, "User:a", no_such=1) == 42
    assert alter(context, "User:a", request_rate=0) == 42
    assert context.records == []
    monkeypatch.setattr("coordinator.group.quotas.PRINCIPALS_MAX", 1)

    assert [alter(context, f"User:{name}", connections=1) for name in "aba"] == [0, 1005, 0]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["", "User:a", "User:b"]),
        st.sampled_from(["connections", "byte_rate"]),
        st.none() | st.integers(1, 3),
    ),
    max_size=20,
)


@given(STEPS)
def test_quotas_are_the_fold_of_their_log(steps: list[tuple[str, str, int | None]]) -> None:
    """Compacted or not (the context looks after each step)."""
    context = NodeContext()
    model: dict[tuple[str, str], int] = {}
    for principal, key, value in steps:
        alter(context, principal, **{key: value})
        model.pop((principal, key), None)
        if value is not None:
            model[principal, key] = value

    assert context.shard.quotas.hard_state() == tuple(
        QuotaSet(*names, value) for names, value in sorted(model.items())
    )


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2]), st.booleans()), max_size=20)
)
def test_users_are_the_fold_of_their_log(steps: list[tuple[str, int, bool]]) -> None:
    """Likewise."""
    context = NodeContext()
    model: dict[str, set[int]] = {}
    for user, mechanism, is_set in steps:
        there = mechanism in model.get(user, set())
        what = password(user, mechanism) if is_set else ScramDeletion(user, mechanism)
        error = 0 if is_set or there else 91
        assert change(context, what) == [(user, error)]
        model.setdefault(user, set())
        (model[user].add if is_set else model[user].discard)(mechanism)

    assert {u: set(c) for u, c in shown(context).items()} == {u: m for u, m in model.items() if m}
