"""The descriptors that clients may take: all of the process but those that it needs itself."""

import resource

import pytest
from hypothesis import given, strategies as st

from coordinator.config import ConfigError, Settings, load_settings
from coordinator.server.descriptors import (
    CLIENTS_MIN,
    Room,
    divided,
    find_room,
    open_descriptors,
)
from coordinator.server.handshakes import HANDSHAKES_MAX

TLS = "ssl.keystore.location=x"
LISTENERS = {
    "one": [],
    "tls": ["listeners=SSL://127.0.0.1:0", TLS],
    "http": ["http.listeners=http://127.0.0.1:0"],
    "six": [
        "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        "http.listeners=http://127.0.0.1:0,https://127.0.0.1:0",
        TLS,
    ],
}
KINDS = st.sampled_from(sorted(LISTENERS))


def settings_of(kind: str, *more: str) -> Settings:
    """Return the settings of a daemon with these listeners."""
    return load_settings(overrides=[*LISTENERS[kind], *more])


class Limit:
    """The limits of this process, which are only noted."""

    def __init__(self, patch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        patch.setattr(resource, "getrlimit", lambda _which: self.now)
        patch.setattr(resource, "setrlimit", self._set)

    def _set(self, _which: int, limits: tuple[int, int]) -> None:
        self.now = limits


@given(left=st.integers(CLIENTS_MIN, 100_000), kind=KINDS, http=st.integers(1, 5_000))
def test_all_that_clients_can_take_fits(left: int, kind: str, http: int) -> None:
    """The log would find none for its next segment, and all would end."""
    settings = settings_of(kind, f"http.max.connections={http}")
    room = divided(left, settings)

    assert sum(room) == left
    assert room.clients >= left // 2
    assert (room.http > 0) == bool(settings.http_listeners)
    assert (room.handshakes > 0) == settings.has_tls
    assert room.http <= http
    assert room.handshakes <= HANDSHAKES_MAX


@given(limit=st.integers(1, 20_000), kind=KINDS)
def test_every_limit_is_divided_or_refused(limit: int, kind: str) -> None:
    """No number in between begins, and then ends when strangers come."""
    with pytest.MonkeyPatch.context() as patch:
        Limit(patch, limit, limit)
        settings = settings_of(kind)
        room, refused = None, ""
        try:
            room = find_room(settings)
        except ConfigError as exc:
            refused = str(exc)
        if room is None:
            assert f"may open {limit} files (ulimit -n)" in refused
            assert limit < int(refused.rsplit(" ", 3)[1]) < open_descriptors() + 200
        else:
            listeners = len(settings.listener_addresses()) + len(settings.http_addresses())
            assert sum(room) >= CLIENTS_MIN
            assert sum(room) + open_descriptors() + listeners < limit


def test_each_listener_and_its_pollers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty-two descriptors were kept, however many of these there were."""
    Limit(monkeypatch, 1_024, 1_024)
    kept = {kind: 1_024 - sum(find_room(settings_of(kind))) for kind in LISTENERS}

    assert kept["tls"] == kept["one"] + 2  # The poller of handshakes has two.
    assert kept["http"] == kept["one"] + 4
    assert kept["six"] == kept["one"] + 14


def test_what_it_has_inherited_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that starts the daemon may leave files open."""
    Limit(monkeypatch, 1_024, 1_024)
    before = find_room(settings_of("one"))
    with open("/dev/null", "rb"):  # noqa: PTH123 - a descriptor
        assert find_room(settings_of("one")).clients == before.clients - 1


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many systems have 1,024 for programs that use select(2), and far more for those that ask."""
    limit = Limit(monkeypatch, 1_024, 16_384)

    assert find_room(settings_of("one")).clients > 16_000
    assert limit.now == (16_384, 16_384)


def test_a_limit_that_cannot_be_raised_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may forbid the call."""

    def refuse(_which: int, _limits: tuple[int, int]) -> None:
        raise PermissionError

    Limit(monkeypatch, 1_024, 16_384)
    monkeypatch.setattr(resource, "setrlimit", refuse)

    assert find_room(settings_of("one")).clients < 1_024


def test_no_limit_is_one_of_the_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then only the settings say how many may come."""
    Limit(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    settings = settings_of("six")
    room = find_room(settings)

    assert room.max_connections(settings) == settings.max_connections
    assert (room.http, room.handshakes) == (settings.http_max_connections, HANDSHAKES_MAX)


def test_a_cluster_needs_some_for_each_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start may ask all of them."""
    Limit(monkeypatch, 1_024, 1_024)
    rooms = [
        find_room(settings_of("one", f"cluster.zookeeper={servers}", "node.id=1"))
        for servers in ("a:1", "a:1,b:1,c:1")
    ]

    assert rooms[0].clients - rooms[1].clients == 6


def test_settings_say_how_many_connections_there_may_be_at_most() -> None:
    """Settings may change while the daemon runs, and the room does not."""
    room = Room(500, 100, 50)

    assert room.max_connections(settings_of("one")) == 500
    assert room.max_connections(settings_of("one", "max.connections=70")) == 70
