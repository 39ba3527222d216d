"""How the peers are started."""

from pathlib import Path

import pytest

from bench import peers
from bench.peers import (
    KAFKA,
    KAFKA_DURABLE,
    PEERS,
    PROGRAMS,
    REDIS,
    ZOOKEEPER,
    Peer,
    free_port,
    missing,
    peer_serving,
    version,
)
from bench.processes import ProcessError
from bench.rows import ROWS, Target


@pytest.fixture(autouse=True)
def no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jars need not be here."""
    monkeypatch.setattr(peers, "class_path", lambda program: f"{program}.jar")


def config_of(peer: Peer, folder: Path) -> set[str]:
    """Return the lines of the peer's configuration."""
    (folder / "logs").mkdir(exist_ok=True)  # Kafka's folder is made already.
    command = peer.start(peer, folder, 1234)
    return set(Path(command[-1]).read_text(encoding="utf-8").splitlines())


def test_kafka_is_as_it_is_by_default_but_for_being_one_node(tmp_path: Path) -> None:
    """A setting more would be a peer that nobody runs."""
    lines = {line.partition("=")[0] for line in config_of(KAFKA, tmp_path)}
    assert lines == {
        *("process.roles", "node.id", "controller.listener.names", "controller.quorum.voters"),
        *("listeners", "advertised.listeners", "log.dirs", "offsets.topic.replication.factor"),
    }


def test_the_other_kafka_waits_for_nothing_and_for_every_fsync(tmp_path: Path) -> None:
    """What our daemon promises, as far as Kafka can."""
    more = config_of(KAFKA_DURABLE, tmp_path) - config_of(KAFKA, tmp_path)
    assert {line for line in more if "127.0.0.1" not in line} == {
        "group.coordinator.append.linger.ms=0",
        "log.flush.interval.messages=1",
    }


def test_redis_syncs_every_write_and_saves_nothing_else(tmp_path: Path) -> None:
    """The snapshot of the default configuration would be written beside."""
    assert {"appendonly yes", "appendfsync always", 'save ""'} <= config_of(REDIS, tmp_path)


def test_zookeeper_takes_as_many_connections_as_the_load_has(tmp_path: Path) -> None:
    """Its default is 60 from one address."""
    assert {"maxClientCnxns=0", "clientPort=1234"} <= config_of(ZOOKEEPER, tmp_path)


def test_every_peer_listens_on_loopback_only(tmp_path: Path) -> None:
    """A benchmark opens no port to the network."""
    for peer in PEERS:
        text = "\n".join(config_of(peer, tmp_path))
        assert "127.0.0.1" in text
        assert "://:" not in text


def test_every_peer_is_measured_and_has_a_program() -> None:
    """One that is in no row would only warm the machine."""
    measured = {row.target for row in ROWS}
    assert {Target(peer.name) for peer in PEERS} <= measured
    assert {peer.program for peer in PEERS} == set(PROGRAMS)


def test_what_is_not_installed_is_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words that say what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing("redis") == "there is no redis-server on the PATH"
    assert missing("kafka") == "there is no java on the PATH"
    for name in ("java", "redis-server"):
        (tmp_path / name).touch(mode=0o755)
    assert missing("redis") is None
    assert missing("kafka") is None
    monkeypatch.setattr(peers, "class_path", lambda program: "")
    assert "python -m bench.peer_jars fetch" in (missing("kafka") or "")


def test_a_peer_that_ends_at_once_is_told_with_its_output(tmp_path: Path) -> None:
    """Instead of a wait for it."""

    def start(peer: Peer, folder: Path, port: int) -> list[str]:
        return ["sh", "-c", "echo no room; exit 3"]

    peer = REDIS._replace(start=start)
    with (
        pytest.raises(ProcessError, match=r"(?s)status 3.*no room"),
        peer_serving(peer, tmp_path / "peer", core=None),
    ):
        pass


@pytest.mark.integration
@pytest.mark.skipif(missing("redis") is not None, reason="there is no redis-server")
def test_a_real_peer_is_started_asked_and_stopped(tmp_path: Path) -> None:
    """With its data where it was told to keep them."""
    with peer_serving(REDIS, tmp_path / "redis", core=None) as server:
        assert server.port != free_port()
        assert Path(f"/proc/{server.pid}").exists()
    assert (tmp_path / "redis/appendonlydir").is_dir()
    assert version("redis")[0].isdigit()
