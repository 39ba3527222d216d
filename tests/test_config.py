"""Settings: who wins, what is refused, and what the refusal says."""

from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from coordinator.cli.main import main
from coordinator.config import (
    _OF_A_SERVICE,
    ENV_PREFIX,
    SETTINGS,
    Address,
    ConfigError,
    Setting,
    Settings,
    load_settings,
    settings_in_force,
)
from coordinator.server.run import group_config

ENV = ENV_PREFIX + "GROUP_MAX_SIZE"


def toml(folder: Path, text: str) -> Path:
    """Write a settings file."""
    path = folder / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_setting_has_its_default_and_a_meaning() -> None:
    """The table is also the documentation."""
    settings = load_settings()

    for setting in SETTINGS:
        assert getattr(settings, setting.attribute) == setting.default
        assert setting.doc.endswith(".")
    assert {s.attribute for s in SETTINGS} == {f.name for f in fields(Settings) if f.metadata}


def test_defaults_are_those_of_kafka_where_kafka_has_the_setting() -> None:
    """Operators know these numbers."""
    settings = load_settings()

    assert settings.group_min_session_timeout_ms == 6_000
    assert settings.group_max_session_timeout_ms == 1_800_000
    assert settings.group_initial_rebalance_delay_ms == 3_000
    assert settings.offset_metadata_max_bytes == 4_096
    assert settings.offsets_topic_num_partitions == 50
    assert settings.offsets_topic_segment_bytes == 104_857_600
    assert settings.offsets_commit_timeout_ms == 5_000
    assert settings.connections_max_idle_ms == 600_000
    assert settings.log_cleaner_enable is True
    assert settings.log_cleaner_min_cleanable_ratio == 0.5
    assert settings.log_cleaner_delete_retention_ms == 86_400_000


def test_set_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    """The nearer to the command, the stronger."""
    path = toml(tmp_path, '"group.max.size" = 1\n"node.id" = 7\n')
    environ = {ENV: "2", ENV_PREFIX + "MAX_CONNECTIONS": "5", "HOME": "x"}

    file_only = load_settings(toml_path=path)
    with_environment = load_settings(toml_path=path, environ=environ)
    with_all = load_settings(toml_path=path, environ=environ, overrides=["group.max.size=3"])
    assert (file_only.group_max_size, file_only.node_id) == (1, 7)
    assert with_environment.group_max_size == 2
    assert with_all.group_max_size == 3
    assert (with_all.node_id, with_all.max_connections) == (7, 5)


def test_each_setting_knows_where_it_comes_from(tmp_path: Path) -> None:
    """Why isn't it as I set it? What won is named."""
    path = toml(tmp_path, '"group.max.size" = 1\n"node.id" = 7\n"log.cleaner.enable" = false\n')
    settings = load_settings(
        toml_path=path,
        environ={ENV: "2", "HOME": "x"},
        overrides=["node.id=3", "listeners=127.0.0.1:1"],
        listen=["127.0.0.1:2"],
    )
    found = {one.name: one for one in settings_in_force(settings)}

    assert list(found) == [setting.name for setting in SETTINGS]
    assert {name: one[1:] for name, one in found.items() if one.origin != "default"} == {
        "group.max.size": ("2", "10000", f"environment {ENV}"),
        "node.id": ("3", "1", "command line --set"),
        "log.cleaner.enable": ("false", "true", f"file {path}"),
        "listeners": ("127.0.0.1:2", "127.0.0.1:9310", "command line --listen"),
    }
    assert found["log.cleaner.min.cleanable.ratio"][1:] == ("0.5", "0.5", "default")


def test_a_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks a daemon doesn't know where it was started."""
    path = toml(tmp_path, '"node.id" = 7\n')
    monkeypatch.chdir(tmp_path)

    assert load_settings(toml_path=Path(path.name)).origins == {"node.id": f"file {path}"}


def test_no_setting_is_a_secret() -> None:
    """`config show` tells all of them to whoever asks: a secret must be in a file."""
    words = ("password", "secret", "token")
    suspicious = [s.name for s in SETTINGS if any(w in s.name for w in words)]

    assert [name for name in suspicious if not name.endswith(".file")] == []


def test_the_last_of_two_overrides_wins() -> None:
    """As everywhere on command lines."""
    settings = load_settings(overrides=["node.id=1", "node.id=2"])

    assert settings.node_id == 2


def test_listen_replaces_the_listeners() -> None:
    """`--listen` is the short form, and may be given several times."""
    settings = load_settings(overrides=["listeners=127.0.0.1:1"], listen=["127.0.0.1:2", "[::1]:3"])

    assert settings.listener_addresses() == (Address("127.0.0.1", 2), Address("::1", 3))


@pytest.mark.parametrize("text", ["true", "True", "TRUE"])
def test_booleans_are_words(text: str) -> None:
    """In the environment everything is text."""
    settings = load_settings(environ={ENV_PREFIX + "ALLOW_PLAINTEXT_REMOTE": text})

    assert settings.allow_plaintext_remote is True


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("group.max.sise=5", "no setting 'group.max.sise'. Did you mean 'group.max.size'"),
        ("group_max_size=5", "Did you mean 'group.max.size'"),
        ("group.max.size", "expected NAME=VALUE"),
        ("group.max.size=", "not a whole number"),
        ("group.max.size=1.5", "not a whole number"),
        ("group.max.size=0", "0 is not between 1 and"),
        ("group.max.size=2147483648", "is not between"),
        ("offsets.retention.minutes=0", "neither -1 (for ever) nor at least 1"),
        ("offsets.retention.minutes=-2", "is not between -1"),
        ("offsets.retention.check.interval.ms=0", "is not between 1"),
        ("max.parked.requests=0", "is not between 1"),
        ("queued.max.request.bytes=-1", "is not between"),
        ("offsets.topic.num.partitions=65535", "is not between 1 and 65534"),
        ("offsets.topic.segment.bytes=100", "is not between"),
        ("storage.reserve.bytes=-2", "is not between -1"),
        ("allow.plaintext.remote=1", "neither true nor false"),
        ("group.commit.ownership.check=yes", "neither true nor false"),
        ("group.min.session.timeout.ms=1800001", "is above group.max.session.timeout.ms"),
        ("listeners=", "is not host:port"),
        ("listeners=localhost", "is not host:port"),
        ("listeners=127.0.0.1:65536", "is not host:port"),
        ("listeners=127.0.0.1:1,", "is not host:port"),
        ("listeners=127.0.0.1:-1", "is not host:port"),
        ("listeners=0.0.0.0:9310", "wildcard"),
        ("listeners=[::]:9310", "wildcard"),
        ("listeners=192.0.2.1:9310", "allow.plaintext.remote=true"),
        ("listeners=TLS://127.0.0.1:1", "begins with neither PLAINTEXT:// nor SSL://"),
        ("listeners=://127.0.0.1:1", "begins with neither PLAINTEXT:// nor SSL://"),
        ("listeners=PLAINTEXT://192.0.2.1:9310", "allow.plaintext.remote=true"),
        ("listeners=SSL://192.0.2.1:9310", "a listener with TLS needs ssl.keystore.location"),
        ("http.listeners=https://127.0.0.1:0", "a listener with TLS needs ssl.keystore.location"),
        ("http.listeners=SSL://127.0.0.1:0", "begins with neither http:// nor https://"),
        ("http.listeners=http://192.0.2.1:9310", "allow.plaintext.remote=true"),
        ("ssl.client.auth=yes", "'yes' is not none, requested or required"),
        ("ssl.enabled.protocols=TLSv1.1", "'TLSv1.1' is not TLSv1.2 or TLSv1.3"),
        ("ssl.enabled.protocols=", "'' is not TLSv1.2 or TLSv1.3"),
        ("advertised.listeners=SSL://here:1", "none of listeners begins with SSL://"),
        ("advertised.listeners=SASL://here:1", "begins with neither PLAINTEXT:// nor SSL:// nor"),
        ("advertised.listeners=a:1,PLAINTEXT://b:2", "more than one address for PLAINTEXT://"),
        ("advertised.listeners=0.0.0.0:1", "'0.0.0.0:1' is no host:port that clients"),
        ("advertised.listeners=here:0", "'here:0' is no host:port that clients"),
        ("advertised.listeners=he re:1", "'he re:1' is no host:port that clients"),
        ("advertised.listeners=here", "advertised.listeners: 'here' is not host:port"),
        ("cluster.zookeeper=localhost", "cluster.zookeeper: 'localhost' is not host:port"),
        ("cluster.zookeeper=a:1,b/gc", "cluster.zookeeper: 'b' is not host:port"),
        ("cluster.zookeeper=a:1/", "'/' is no path to keep a cluster under"),
        ("cluster.zookeeper=a:1/gc/", "'/gc/' is no path to keep a cluster under"),
        ("cluster.zookeeper=a:1/a//b", "'/a//b' is no path to keep a cluster under"),
        ("cluster.zookeeper=a:1/../b", "'/../b' is no path to keep a cluster under"),
        ("cluster.zookeeper=a:1/gc,b:1/gc", "'/gc,b:1/gc' is no path to keep a cluster under"),
        ("cluster.zookeeper=a:1/zookeeper/x", "'/zookeeper/x' is no path to keep a cluster under"),
        ("cluster.journals=0", "is not between 1"),
        ("cluster.session.timeout.ms=1999", "is not between 2000"),
        ("cluster.zookeeper.set.acl=true", "ZooKeeper has to know who we are"),
        ("cluster.zookeeper.sasl.username=a", "belong together: set both, or neither"),
        ("http.allowed.hosts=a.example:9311", "http.allowed.hosts: 'a.example:9311' is not a host"),
        ("http.allowed.hosts=a.example b.example", "'a.example b.example' is not a host name"),
        ("http.allowed.hosts=a.example,http://b.example", "'http://b.example' is not a host name"),
        ("http.allowed.hosts=*", "'*' is not a host name"),
        ("http.allowed.hosts=a.*.example", "'a.*.example' is not a host name"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(override: str, words: str) -> None:
    """Starting with another value than was asked for would be found out much later."""
    with pytest.raises(ConfigError) as refused:
        load_settings(overrides=[override])

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "unused"),
    [
        (["max.log.bytes=5", "node.id=2"], ()),
        (["cluster.zookeeper=a:1/gc", "cluster.journals=3", "node.id=2"], ()),
        (["cluster.zookeeper=a:1/gc", "max.log.bytes=5"], ("max.log.bytes",)),
        (["cluster.journals=6", "cluster.zookeeper="], ("cluster.journals",)),
        (["cluster.create=true"], ("cluster.create",)),
    ],
)
def test_what_is_set_for_nothing_is_named(overrides: list[str], unused: tuple[str, ...]) -> None:
    """Whoever has set it, even to the default, believes that something comes of it."""
    assert unused == load_settings(overrides=overrides).unused()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"group.max.sise" = 5', "there is no setting 'group.max.sise'"),
        ("group.max.size = 5", "write the whole name in quotes"),
        ('"group.max.size" = "5"', "'5' is not a whole number"),
        ('"group.max.size" = true', "True is not a whole number"),
        ('"group.max.size" = 5.0', "5.0 is not a whole number"),
        ('"allow.plaintext.remote" = 1', "1 is not true or false"),
        ('"listeners" = 9310', "9310 is not text"),
        ('"group.max.size" = ', "settings.toml"),
        ('"group.max.size" = 1\n"group.max.size" = 2', "settings.toml"),
        ('"group.max.size" = 0', "is not between"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """TOML has types, and they are meant."""
    with pytest.raises(ConfigError) as refused:
        load_settings(toml_path=toml(tmp_path, text))

    assert words in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A typing mistake in a path must not mean all defaults."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_settings(toml_path=tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("GROUP_MAX_SISE", "5", "GROUP_COORDINATOR_GROUP_MAX_SISE"),
        ("group_max_size", "5", "which is no setting"),
        ("GROUP_MAX_SIZE", "x", "group.max.size: 'x' is not a whole number"),
        ("GROUP_MAX_SIZE", "0", "in the environment"),
    ],
)
def test_an_environment_with_a_mistake_is_refused(name: str, value: str, words: str) -> None:
    """Only names with the prefix are looked at, and those must be right."""
    with pytest.raises(ConfigError) as refused:
        load_settings(environ={ENV_PREFIX + name: value})

    assert words in str(refused.value)


def variables_of(service: str, ports: dict[str, tuple[int, str]], ip: str) -> dict[str, str]:
    """Return what Kubernetes tells each pod of a service; its ports have names, or ""."""
    name = service.upper().replace("-", "_")
    (first, protocol), *_ = ports.values()
    found = {
        f"{name}_SERVICE_HOST": ip,
        f"{name}_SERVICE_PORT": str(first),
        f"{name}_PORT": f"{protocol}://{ip}:{first}",
    }
    for port_name, (port, protocol) in ports.items():
        if port_name:
            found[f"{name}_SERVICE_PORT_{port_name.upper().replace('-', '_')}"] = str(port)
        prefix = f"{name}_PORT_{port}_{protocol.upper()}"
        found[prefix] = f"{protocol}://{ip}:{port}"
        found[f"{prefix}_PROTO"] = protocol
        found[f"{prefix}_PORT"] = str(port)
        found[f"{prefix}_ADDR"] = ip
    return found


PORTS = st.dictionaries(
    st.from_regex("([a-z]([-a-z0-9]{0,8}[a-z0-9])?)?", fullmatch=True),
    st.tuples(st.integers(1, 65_535), st.sampled_from(["tcp", "udp", "sctp"])),
    min_size=1,
    max_size=3,
)


@given(
    st.from_regex("group-coordinator(-[a-z0-9]{1,8}){0,2}", fullmatch=True),
    PORTS,
    st.ip_addresses().map(str),
)
def test_the_variables_of_a_kubernetes_service_are_none_of_ours(
    service: str, ports: dict[str, tuple[int, str]], ip: str
) -> None:
    """Every pod of the namespace gets them, whoever wants them or not."""
    environ = variables_of(service, ports, ip)

    assert all(name.startswith(ENV_PREFIX) for name in environ)
    assert load_settings(environ=environ | {ENV: "5"}).group_max_size == 5


@pytest.mark.parametrize("value", ["10.0.0.1", "9310", "tcp", "tcp://10.0.0.1:9310", "x"])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_no_setting_is_taken_for_a_variable_of_a_service(setting: Setting, value: str) -> None:
    """It would be left out in silence."""
    assert _OF_A_SERVICE.fullmatch(f"{setting.attribute.upper()}={value}") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "9310"),
        ("PORT_9310_TCP", "9310"),
        ("SERVICE_HOST", "coordinator.example"),
        ("SERVICE_PORT", "many"),
        ("PORT_9310_TCP_PROTO", "http"),
        ("SERVICE", "tcp://10.0.0.1:9310"),
        ("PORTS", "tcp://10.0.0.1:9310"),
        ("GROUP_MAX_SISE", "10.0.0.1"),
    ],
)
def test_what_only_looks_like_a_variable_of_a_service_is_refused(name: str, value: str) -> None:
    """Somebody wrote it, and believes that it works."""
    with pytest.raises(ConfigError, match=f"{ENV_PREFIX}{name}', which is no setting"):
        load_settings(environ={ENV_PREFIX + name: value})


def test_a_misspelt_variable_is_answered_with_the_one_that_was_meant() -> None:
    """With the prefix, so that it can be copied."""
    with pytest.raises(ConfigError, match=f"Did you mean '{ENV}'"):
        load_settings(environ={ENV_PREFIX + "GROUP_MAX_SISE": "5"})


@pytest.mark.parametrize(
    ("minutes", "retention_ms"), [(10_080, 604_800_000), (1, 60_000), (-1, -1)]
)
def test_retention_reaches_the_groups(minutes: int, retention_ms: int) -> None:
    """A factor of 60 here would delete a week's offsets in hours; -1 must stay for ever."""
    settings = load_settings(overrides=[f"offsets.retention.minutes={minutes}"])

    assert group_config(settings).offsets_retention_ms == retention_ms


def test_remote_listeners_need_the_operators_word() -> None:
    """Nothing is encrypted, so a mistake would put offsets on the network in the clear."""
    settings = load_settings(
        overrides=["allow.plaintext.remote=true", "advertised.listeners=coordinator.example:9310"],
        listen=["0.0.0.0:9310"],
    )

    (address,) = settings.listener_addresses()
    assert address.is_wildcard
    assert not address.is_loopback


def test_listeners_with_tls_may_be_anywhere() -> None:
    """That is what it is for; what is in the clear stays on loopback."""
    settings = load_settings(
        overrides=[
            "ssl.keystore.location=server.pem",
            "listeners=SSL://192.0.2.1:9310, PLAINTEXT://127.0.0.1:9311,[::1]:0",
            "http.listeners=https://192.0.2.1:9312,http://127.0.0.1:9313",
        ]
    )

    assert settings.has_tls
    assert settings.listener_addresses() == (
        Address("192.0.2.1", 9310, "SSL"),
        Address("127.0.0.1", 9311),
        Address("::1", 0),
    )
    assert settings.http_addresses() == (
        Address("192.0.2.1", 9312, "https"),
        Address("127.0.0.1", 9313, "http"),
    )


@pytest.mark.parametrize(
    ("advertised", "told"),
    [
        ("", "192.0.2.1:9310 127.0.0.1:9311 [::1]:0"),
        ("a.example:1", "a.example:1 127.0.0.1:9311 [::1]:0"),
        ("PLAINTEXT://b.example:2", "192.0.2.1:9310 b.example:2 b.example:2"),
        ("PLAINTEXT://b.example:2, a.example:1", "a.example:1 b.example:2 b.example:2"),
        ("SSL://a.example:1,PLAINTEXT://b.example:2", "a.example:1 b.example:2 b.example:2"),
    ],
)
def test_clients_are_told_an_address_of_their_own_scheme(advertised: str, told: str) -> None:
    """At another one they would fail; what has no scheme is of the first listener's."""
    settings = load_settings(
        overrides=[
            "ssl.keystore.location=server.pem",
            "listeners=SSL://192.0.2.1:9310,PLAINTEXT://127.0.0.1:9311,[::1]:0",
            f"advertised.listeners={advertised}",
        ]
    )
    assert " ".join(str(address) for address in settings.addresses_told()) == told


def test_each_wildcard_needs_an_address_of_its_scheme() -> None:
    """One for somebody else is no help to who came by it."""
    with pytest.raises(
        ConfigError, match=r"0\.0\.0\.0:9311 is a wildcard.* the PLAINTEXT://host:port"
    ):
        load_settings(
            overrides=[
                "allow.plaintext.remote=true",
                "ssl.keystore.location=server.pem",
                "listeners=SSL://0.0.0.0:9310,PLAINTEXT://0.0.0.0:9311",
                "advertised.listeners=SSL://a.example:9310",
            ]
        )


def test_http_alone_may_ask_who_somebody_is() -> None:
    """Else a certificate would be verified there and nothing be made of it."""
    options = [
        "http.listeners=https://127.0.0.1:0",
        "ssl.keystore.location=server.pem",
        "ssl.truststore.location=ca.pem",
    ]
    assert not load_settings(overrides=options).has_authentication
    options.append("ssl.client.auth=requested")
    with pytest.raises(ConfigError, match="name an administrator"):
        load_settings(overrides=options)
    assert load_settings(overrides=[*options, "super.users=User:a"]).has_authentication


def test_an_ensemble_is_its_servers_and_a_path() -> None:
    """All of it in one setting, as ZooKeeper's own clients take it."""
    alone = load_settings(overrides=["cluster.zookeeper=a:1"]).zookeeper()
    several = load_settings(overrides=["cluster.zookeeper=a:1, [::1]:2/teams/gc"]).zookeeper()

    assert load_settings().zookeeper() is None
    assert alone == ((Address("a", 1),), "")
    assert several == ((Address("a", 1), Address("::1", 2)), "/teams/gc")


def test_a_cluster_has_no_more_partitions_than_a_leader_can_tell_of() -> None:
    """He would say who leads all of them in one transaction, which ZooKeeper refuses."""
    with pytest.raises(ConfigError, match=r"a cluster has 1000 for each of cluster\.journals"):
        load_settings(
            overrides=[
                "cluster.zookeeper=a:1",
                "cluster.journals=3",
                "offsets.topic.num.partitions=3001",
            ]
        )


def test_stores_without_tls_are_refused() -> None:
    """Whoever names a certificate means to be encrypted."""
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location is for nothing"):
        load_settings(
            overrides=["cluster.zookeeper=a:1", "cluster.zookeeper.ssl.keystore.location=a.pem"]
        )


def test_client_certificates_need_somebody_to_trust() -> None:
    """Without authorities nobody could come in."""
    with pytest.raises(ConfigError, match=r"needs ssl\.truststore\.location"):
        load_settings(
            overrides=[
                "listeners=SSL://127.0.0.1:0",
                "ssl.keystore.location=server.pem",
                "ssl.client.auth=required",
            ]
        )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:1", Address("localhost", 1)),
        (" 127.0.0.1:0 ", Address("127.0.0.1", 0)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_addresses_are_read_and_written(text: str, address: Address) -> None:
    """An IPv6 host stands in brackets."""
    assert Address.parse("listeners", text) == address
    assert Address.parse("listeners", str(address)) == address
    assert address.is_loopback


def test_the_command_prints_every_setting() -> None:
    """The reference that is always there."""
    printed = CliRunner().invoke(main, ["settings"])

    assert printed.exit_code == 0
    for setting in SETTINGS:
        assert f"{setting.name} = " in printed.output
        assert setting.doc in printed.output


def test_the_command_refuses_a_bad_setting_with_78(tmp_path: Path) -> None:
    """A supervisor must not restart it for ever."""
    folder = tmp_path / "data"
    arguments = ["serve", "--data-dir", str(folder), "--set", "group.max.sise=1"]
    refused = CliRunner().invoke(main, arguments)

    assert refused.exit_code == 78
    assert "group.max.sise" in refused.output
    assert not folder.exists()


@pytest.mark.parametrize(
    "arguments", [["serve"], ["ping", "--at", "nowhere"], ["ping", "--timeout", "nan"], ["dance"]]
)
def test_a_command_line_that_cannot_be_is_refused_with_2(arguments: list[str]) -> None:
    """What every tool answers."""
    assert CliRunner().invoke(main, arguments).exit_code == 2


@pytest.mark.parametrize("text", ["0.25", "1", "0", "1e-3"])
def test_a_share_may_be_written_as_any_number(text: str, tmp_path: Path) -> None:
    """TOML tells 1 from 1.0, and an operator need not."""
    name = "log.cleaner.min.cleanable.ratio"
    path = toml(tmp_path, f'"{name}" = {text}\n')

    for settings in (load_settings(overrides=[f"{name}={text}"]), load_settings(toml_path=path)):
        assert type(settings.log_cleaner_min_cleanable_ratio) is float
        assert settings.log_cleaner_min_cleanable_ratio == float(text)


@pytest.mark.parametrize("text", ["1.5", "-0.1", "nan", "half", "true", ""])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    """It would compact for ever, or never."""
    with pytest.raises(ConfigError, match=r"log\.cleaner\.min\.cleanable\.ratio"):
        load_settings(overrides=[f"log.cleaner.min.cleanable.ratio={text}"])


@pytest.mark.parametrize("text", ["", "a", "a.example., *.B.example ,", "a_b-1.example", "::1"])
def test_names_that_browsers_may_ask_for_are_taken(text: str) -> None:
    """What is refused could never be what a Host header says."""
    assert load_settings(overrides=[f"http.allowed.hosts={text}"]).http_allowed_hosts == text
