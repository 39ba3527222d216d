"""Settings of the daemon in one table, `Settings`, with Kafka's names and defaults where possible.

``--set name=value`` wins over the environment (``GROUP_COORDINATOR_`` + upper case, dots as
``_``), which wins over the TOML file (flat, quoted keys). An unknown name or an invalid value
prevents the start; the error names the setting and the reason. Variables that Kubernetes sets for
a service called ``group-coordinator`` have the same prefix and are ignored.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinator.names import did_you_mean, quoted
from protocol.acls import principal_problem, user_name_error
from protocol.fields import REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, SYNC_REQUEST_BYTES_MAX
from protocol.partition import INT32_MAX

ENV_PREFIX: Final = "GROUP_COORDINATOR_"

_IP: Final = "[0-9a-fA-F.:]+"
_URL: Final = "(?:tcp|udp|sctp)://.+"
_PORT: Final = "PORT_[0-9]+_(?:TCP|UDP|SCTP)"
# Variables (without the prefix) that Kubernetes sets in each pod for the services of its namespace.
# Services with longer names, such as group-coordinator-1, have the same prefix. The value must
# match, too: GROUP_COORDINATOR_PORT=9310 isn't Kubernetes' but a user's mistake, and is refused.
_OF_A_SERVICE: Final = re.compile(
    "(?:[A-Z0-9_]+_)?(?:"
    f"SERVICE_HOST={_IP}|SERVICE_PORT(?:_[A-Z0-9_]+)?=[0-9]+|PORT={_URL}|{_PORT}={_URL}"
    f"|{_PORT}_PROTO=(?:tcp|udp|sctp)|{_PORT}_PORT=[0-9]+|{_PORT}_ADDR={_IP})"
)


class ConfigError(Exception):
    """A setting is unknown or invalid; the message names the setting and the reason."""


def _setting(
    default: Any, doc: str, *, low: float = 0, high: float = INT32_MAX, live: bool = False
) -> Any:
    """Declare a setting; *low* and *high* are inclusive bounds, for numbers only.

    A *live* setting may change while the daemon runs.
    """
    metadata = {"default": default, "doc": doc, "low": low, "high": high, "live": live}
    return field(default=default, metadata=metadata)


_MIB: Final = 1024 * 1024
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("auto", "json", "text")
CLIENT_AUTHS: Final = ("none", "requested", "required")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# Schemes of an address, before its "://". The first one is the default.
_NATIVE_SCHEMES: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_HTTP_SCHEMES: Final = ("http", "https")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings, each with name (dots for underscores), type, default, meaning and bounds.

    `adopt` may change live settings: code that uses one must read it each time.

    Raises:
        ConfigError: The values contradict each other, or one is invalid.
    """

    listeners: str = _setting(
        "127.0.0.1:9310",
        "Addresses to listen on, comma-separated: SSL://host:port with TLS, "
        "PLAINTEXT://host:port or host:port without; SASL_SSL:// and SASL_PLAINTEXT:// where "
        "clients have to log in.",
    )
    advertised_listeners: str = _setting(
        "",
        "Addresses that clients are told instead of those they came by, comma-separated, one a "
        "scheme of listeners: SASL_SSL://host:port; host:port alone is for the scheme of the first "
        "listener. Needed where a listener is a wildcard.",
    )
    node_id: int = _setting(1, "This node's number, kept in the data folder.")
    cluster_id: str = _setting(
        "",
        "22 characters of URL-safe base64: the cluster whose data folder it must be, and what a "
        "new one gets; empty = any, and random.",
    )
    cluster_zookeeper: str = _setting(
        "",
        "The ZooKeeper ensemble that keeps the log of a cluster, as host:port,host:port/chroot; "
        "empty = no cluster: this node alone, with its data folder.",
    )
    cluster_create: bool = _setting(
        False,
        "Make the cluster at the start if cluster.zookeeper has none. Data that ZooKeeper has lost "
        "is then replaced by an empty cluster without a question.",
    )
    cluster_journals: int = _setting(
        6,
        "Logs that the nodes of a cluster share among them; fixed when the cluster is made.",
        low=1,
        high=1_000,
    )
    cluster_nodes: int = _setting(
        0,
        "Nodes that the cluster should have: with fewer, cluster status and an alert say so; "
        "0 = not said.",
        high=1_000,
        live=True,
    )
    cluster_session_timeout_ms: int = _setting(
        6_000,
        "After so long without a word from a node others take over what it leads.",
        low=2_000,
        high=120_000,
    )
    cluster_state_max_bytes: int = _setting(
        300 * _MIB,
        "Snapshots and logs in ZooKeeper at which new data is refused; its heap has to be about "
        "twice as large.",
        low=_MIB,
        high=2**62,
        live=True,
    )
    cluster_tail_bytes: int = _setting(
        0,
        "So much of each log is kept behind its snapshot at least, for those who read the changes.",
        high=2**62,
    )
    cluster_snapshot_bytes: int = _setting(
        16 * _MIB,
        "With so much of a log behind its snapshot, the next one is made.",
        low=64 * 1024,
        high=2**62,
    )
    cluster_snapshot_entries: int = _setting(
        4_096,
        "The same, in entries: each takes about 450 bytes of ZooKeeper's heap, whatever is in it.",
        low=16,
        high=1_000_000,
    )
    cluster_zookeeper_ssl_client_enable: bool = _setting(False, "Speak TLS to ZooKeeper.")
    cluster_zookeeper_ssl_truststore_location: str = _setting(
        "",
        "PEM file of the authorities that ZooKeeper's certificates are trusted by; empty = the "
        "system's.",
    )
    cluster_zookeeper_ssl_keystore_location: str = _setting(
        "", "PEM file of the key and certificate that ZooKeeper is shown; empty = none."
    )
    cluster_zookeeper_ssl_key_password_file: str = _setting(
        "", "File with the password of that key; empty = it is not encrypted."
    )
    cluster_zookeeper_sasl_username: str = _setting(
        "", "Who logs in to ZooKeeper, by DIGEST-MD5; empty = nobody."
    )
    cluster_zookeeper_sasl_password_file: str = _setting(
        "", "File whose first line is the password of cluster.zookeeper.sasl.username."
    )
    cluster_zookeeper_set_acl: bool = _setting(
        False, "Give the rights on what is made in ZooKeeper to us alone."
    )
    allow_plaintext_remote: bool = _setting(
        False, "Listen off loopback where nothing is encrypted."
    )
    ssl_keystore_location: str = _setting(
        "", "PEM file of this daemon's private key, its certificate and the chain behind it."
    )
    ssl_key_password_file: str = _setting(
        "", "File with the password of that key; empty = it is not encrypted."
    )
    ssl_truststore_location: str = _setting(
        "", "PEM file of the authorities whose client certificates are accepted."
    )
    ssl_client_auth: str = _setting(
        "none",
        "Client certificates: none, requested (who has one shows it), or required of everybody.",
    )
    ssl_enabled_protocols: str = _setting(
        "TLSv1.2,TLSv1.3", "Versions of TLS, comma-separated; none is older than TLSv1.2."
    )
    ssl_cipher_suites: str = _setting(
        "",
        "Suites of TLSv1.2 by OpenSSL's names, comma-separated; empty = ECDHE with AES-GCM or "
        "ChaCha20. Those of TLSv1.3 are all good.",
    )
    ssl_principal_mapping_rules: str = _setting(
        "",
        "RULE:pattern/replacement/[LU] and DEFAULT, comma-separated: who a client certificate is, "
        "by its subject; empty = its first URI, DNS name or mail address, else its subject.",
    )
    sasl_enabled_mechanisms: str = _setting(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "How clients may log in, comma-separated: SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    )
    sasl_bootstrap_user: str = _setting(
        "", "The first administrator, who is in no log and may do everything; empty = none."
    )
    sasl_bootstrap_password_file: str = _setting(
        "", "File whose first line is the password of sasl.bootstrap.user."
    )
    sasl_tokens_file: str = _setting(
        "",
        "File of bearer tokens: a name, the SHA-256 of its token in hex, and when that ends if it "
        "does, one a line.",
    )
    sasl_oauthbearer_jwks_file: str = _setting(
        "", "File with the public keys (JWKS) of who signs bearer tokens."
    )
    sasl_oauthbearer_expected_issuer: str = _setting(
        "", "The issuer that a signed token must name; empty = any."
    )
    sasl_oauthbearer_expected_audience: str = _setting(
        "", "Audiences, comma-separated, of which a signed token must name one; empty = any."
    )
    sasl_oauthbearer_sub_claim_name: str = _setting(
        "sub", "The claim of a signed token that names the principal."
    )
    sasl_oauthbearer_clock_skew_seconds: int = _setting(
        30, "How much the clock of the issuer may differ.", high=3_600
    )
    connections_max_reauth_ms: int = _setting(
        0, "How long a log-in is good for at most, then it is done again; 0 = as long as it lasts."
    )
    super_users: str = _setting(
        "", "Principals who may do everything, such as User:alice, parted by semicolons."
    )
    allow_everyone_if_no_acl_found: bool = _setting(
        False, "Allow everybody everything with groups and topics that no rule is about."
    )
    group_min_session_timeout_ms: int = _setting(
        6_000, "Shortest session a member may ask for.", low=1
    )
    group_max_session_timeout_ms: int = _setting(1_800_000, "Longest session, likewise.", low=1)
    group_max_rebalance_timeout_ms: int = _setting(
        3_600_000,
        "Longest time that a group waits for a member, whatever rebalance timeout it asks for.",
        low=1,
    )
    group_initial_rebalance_delay_ms: int = _setting(
        3_000, "How long the first join phase of an empty group waits for more members."
    )
    group_max_size: int = _setting(10_000, "Members of one group, ids given out included.", low=1)
    group_max_offsets: int = _setting(100_000, "Committed offsets of one group.", low=1)
    group_commit_ownership_check: bool = _setting(
        True, "Refuse a commit for a partition that the member doesn't own in this generation."
    )
    offset_metadata_max_bytes: int = _setting(4_096, "UTF-8 bytes of one offset's metadata.")
    offsets_retention_minutes: int = _setting(
        10_080, "How long offsets are kept once nobody uses them; -1 = for ever.", low=-1
    )
    offsets_retention_check_interval_ms: int = _setting(
        600_000, "How often expired offsets are looked for.", low=1
    )
    offsets_topic_num_partitions: int = _setting(
        50, "Offsets partitions; fixed when the data folder is made.", low=1, high=0xFFFE
    )
    offsets_topic_segment_bytes: int = _setting(
        100 * _MIB, "Size at which a log segment is sealed.", low=4096, high=1024 * _MIB
    )
    log_cleaner_enable: bool = _setting(True, "Compact the offsets log whenever that is worth it.")
    log_cleaner_min_cleanable_ratio: float = _setting(
        0.5,
        "What share of the sealed segments must be new since the last compaction for another.",
        low=0,
        high=1,
    )
    log_cleaner_delete_retention_ms: int = _setting(
        86_400_000,
        "How long the log keeps what was removed, for those who read the changes.",
        low=0,
        high=2**62,
    )
    offsets_commit_timeout_ms: int = _setting(
        5_000, "After this long without fsync a waiting answer is OUTCOME_UNKNOWN.", low=1
    )
    storage_reserve_bytes: int = _setting(
        -1,
        "Free disk below which new data is refused; -1 = the larger of 5 % of the disk and "
        "the log's live data plus two segments.",
        low=-1,
        high=2**62,
        live=True,
    )
    partition_reload_min_interval_ms: int = _setting(
        60_000,
        "How long a partition that was loaded again is served before ReloadPartition may "
        "interrupt it once more.",
        live=True,
    )
    max_groups: int = _setting(1_000_000, "Groups; no further one is made.", low=1, live=True)
    max_members: int = _setting(
        200_000, "Members of all groups, ids given out included.", low=1, live=True
    )
    max_offsets: int = _setting(
        5_000_000, "Committed offsets of all groups.", low=1, high=2**62, live=True
    )
    max_topics: int = _setting(
        100_000, "Registered topics, deleted ones not yet forgotten included.", low=1, live=True
    )
    max_topic_partitions: int = _setting(
        2_000_000, "Partitions of all registered topics.", low=1, live=True
    )
    max_topic_host_bytes: int = _setting(
        64 * _MIB, "Names of hosts of all registered topics.", low=0, high=2**62, live=True
    )
    max_log_bytes: int = _setting(
        64 * 1024 * _MIB,
        "Size of the offsets log at which new data is refused, as below storage.reserve.bytes.",
        low=1,
        high=2**62,
        live=True,
    )
    max_connections: int = _setting(
        10_000, "Open connections; more are closed at once.", low=1, live=True
    )
    max_connections_per_ip: int = _setting(
        5_000,
        "Open connections of one address, and three quarters of all at most; likewise.",
        low=1,
        live=True,
    )
    # Both bounds must leave room in a batch of the log (32 MiB): a commit's batch repeats group and
    # topic for each entry, and a group's record holds all assignments in addition to its members.
    socket_request_max_bytes: int = _setting(
        REQUEST_BYTES_MAX, "Largest request frame.", low=1024, high=16 * _MIB
    )
    sync_request_max_bytes: int = _setting(
        SYNC_REQUEST_BYTES_MAX, "Largest SyncGroup.", low=1024, high=16 * _MIB
    )
    response_max_bytes: int = _setting(
        RESPONSE_BYTES_MAX, "Largest response frame.", low=65_536, high=256 * _MIB
    )
    max_in_flight_requests: int = _setting(
        64, "Unanswered requests of one connection before its socket is no longer read.", low=1
    )
    max_parked_requests: int = _setting(
        20_000,
        "JoinGroups and SyncGroups that wait for other members; a further JoinGroup is refused.",
        low=1,
    )
    queued_max_parked_bytes: int = _setting(
        64 * _MIB, "The size of these JoinGroups, likewise.", low=1024, high=2**62
    )
    queued_max_request_bytes: int = _setting(
        64 * _MIB,
        "Requests that are not answered or half read, of all connections, before no more is read.",
        low=1024,
        high=2**62,
    )
    queued_max_response_bytes: int = _setting(
        256 * _MIB,
        "Answers that were not taken, of all connections; beyond it who holds the most is closed.",
        low=1024,
        high=2**62,
    )
    send_buffer_max_bytes: int = _setting(
        _MIB, "Unsent answers of one connection, likewise.", low=1024
    )
    connections_max_idle_ms: int = _setting(
        600_000, "A silent connection is closed after this.", low=1
    )
    first_request_timeout_ms: int = _setting(
        10_000,
        "A new connection must ask something in this, and have logged in where it has to.",
        low=1,
    )
    request_read_timeout_ms: int = _setting(
        10_000, "A begun frame must be whole in this, or come at 64 KiB a second.", low=1
    )
    send_timeout_ms: int = _setting(
        10_000, "Answers must be taken in this, or at 64 KiB a second.", low=1
    )
    shutdown_timeout_ms: int = _setting(10_000, "Longest drain after SIGTERM.")
    http_listeners: str = _setting(
        "",
        "Addresses for metrics, health and the page, comma-separated: https://host:port with TLS, "
        "http://host:port or host:port without; empty = none.",
    )
    http_allowed_hosts: str = _setting(
        "", "More host names that an HTTP request may ask for; *. in front: all below.", live=True
    )
    http_max_connections: int = _setting(
        1_500, "Open HTTP connections; more are closed at once.", low=1
    )
    http_max_event_streams: int = _setting(1_000, "Pages that are told what changes.")
    http_session_idle_timeout_ms: int = _setting(
        1_800_000, "A log-in of the page that nobody uses ends after this.", low=1
    )
    http_metrics_anonymous: bool = _setting(
        False, "Answer /metrics to everybody, also where there is authentication."
    )
    metrics_max_series: int = _setting(
        50_000, "Series of groups and topics in one scrape, the worst groups first.", live=True
    )
    log_level: str = _setting(
        "info", "The least that is logged: debug, info, warning or error.", live=True
    )
    log_format: str = _setting(
        "auto", "How lines are written: json, text, or auto: text on a terminal.", live=True
    )
    log_file: str = _setting(
        "", "Where lines go instead of standard output; reopened at SIGHUP.", live=True
    )
    # Not a setting: name with dots -> source, for each setting that isn't left at its default.
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check the settings that need more than bounds, alone and against each other."""
        low, high = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        if low > high:
            raise ConfigError(
                f"group.min.session.timeout.ms ({low}) is above group.max.session.timeout.ms"
                f" ({high})"
            )
        if self.cluster_id and not is_cluster_id(self.cluster_id):
            raise ConfigError(
                f"cluster.id: {self.cluster_id!r} is not 22 characters of URL-safe base64"
            )
        if self.offsets_retention_minutes == 0:
            raise ConfigError(
                "offsets.retention.minutes: 0 is neither -1 (for ever) nor at least 1"
            )
        _check_choice("log.level", self.log_level, LOG_LEVELS)
        _check_choice("log.format", self.log_format, LOG_FORMATS)
        self._check_addresses()
        self._check_tls()
        self._check_log_ins()
        self._check_cluster()
        for name in map(str.strip, self.http_allowed_hosts.split(",")):
            if name and not _HOST_NAME.fullmatch(name) and _ip(name) is None:
                raise ConfigError(
                    f"http.allowed.hosts: {quoted(name)} is not a host name, which has no port; "
                    "*. in front stands for all names below"
                )

    def _check_addresses(self) -> None:
        self._check_advertised()
        for setting, addresses in (
            ("listeners", self.listener_addresses()),
            ("http.listeners", self.http_addresses()),
        ):
            for address in addresses:
                if not (address.is_loopback or address.is_tls or self.allow_plaintext_remote):
                    raise ConfigError(
                        f"{setting}: {address} is not a loopback address and nothing on the "
                        "connection is encrypted; set allow.plaintext.remote=true if you mean it"
                    )

    def _check_advertised(self) -> None:
        schemes = {address.scheme for address in self.listener_addresses()}
        for address in self.advertised_addresses():
            if address.is_wildcard or not address.port or set(address.host) & set(" /"):
                raise ConfigError(
                    f"advertised.listeners: {str(address)!r} is no host:port that clients can "
                    "connect to"
                )
            if address.scheme not in schemes:
                raise ConfigError(
                    f"advertised.listeners: {address.scheme}://{address} is for nobody: none of "
                    f"listeners begins with {address.scheme}://"
                )
            if [one.scheme for one in self.advertised_addresses()].count(address.scheme) > 1:
                raise ConfigError(
                    f"advertised.listeners: there is more than one address for {address.scheme}://"
                )
        for address in self.addresses_told():
            if address.is_wildcard:
                raise ConfigError(
                    f"listeners: {address} is a wildcard, which clients can't connect to; set "
                    f"advertised.listeners to the {address.scheme}://host:port that they can"
                )

    def _check_tls(self) -> None:
        _check_choice("ssl.client.auth", self.ssl_client_auth, CLIENT_AUTHS)
        for version in self.tls_versions():
            _check_choice("ssl.enabled.protocols", version, TLS_VERSIONS)
        if not self.has_tls:
            return
        if not self.ssl_keystore_location:
            raise ConfigError(
                "a listener with TLS needs ssl.keystore.location, a PEM file of the private key, "
                "the certificate and its chain"
            )
        if self.ssl_client_auth != "none" and not self.ssl_truststore_location:
            raise ConfigError(
                f"ssl.client.auth={self.ssl_client_auth} needs ssl.truststore.location, a PEM file "
                "of the authorities whose certificates are accepted"
            )

    def _check_log_ins(self) -> None:
        for mechanism in self.mechanisms():
            _check_choice("sasl.enabled.mechanisms", mechanism, MECHANISMS)
        has_tokens = bool(self.sasl_tokens_file or self.sasl_oauthbearer_jwks_file)
        if not has_tokens and "OAUTHBEARER" in self.mechanisms():
            raise ConfigError(
                "sasl.enabled.mechanisms: OAUTHBEARER needs sasl.tokens.file, or "
                "sasl.oauthbearer.jwks.file, to know tokens by"
            )
        if has_tokens and "OAUTHBEARER" not in self.mechanisms():
            raise ConfigError(
                "sasl.enabled.mechanisms has no OAUTHBEARER: nobody could show a token of "
                "sasl.tokens.file or sasl.oauthbearer.jwks.file"
            )
        if bool(self.sasl_bootstrap_user) != bool(self.sasl_bootstrap_password_file):
            raise ConfigError(
                "sasl.bootstrap.user and sasl.bootstrap.password.file belong together: set both, "
                "or neither"
            )
        bootstrap = self.sasl_bootstrap_user
        why = user_name_error(bootstrap) if bootstrap else None
        if why is not None:
            raise ConfigError(f"sasl.bootstrap.user: {quoted(bootstrap)} is no name: {why}")
        for principal in self.super_user_names():
            if principal_problem(principal) is not None:
                raise ConfigError(
                    f"super.users: {quoted(principal)} is no principal such as User:alice; "
                    "semicolons part them"
                )
        if self.has_authentication and not (
            self.super_user_names() or self.allow_everyone_if_no_acl_found
        ):
            raise ConfigError(
                "clients have to say who they are, and nobody may do anything before there are "
                "rules: name an administrator in super.users, or in sasl.bootstrap.user with "
                "sasl.bootstrap.password.file"
            )

    def _check_cluster(self) -> None:
        self.zookeeper()
        if self.cluster_zookeeper and not self.cluster_zookeeper_ssl_client_enable:
            for name, value in (
                ("truststore.location", self.cluster_zookeeper_ssl_truststore_location),
                ("keystore.location", self.cluster_zookeeper_ssl_keystore_location),
            ):
                if value:
                    raise ConfigError(
                        f"cluster.zookeeper.ssl.{name} is for nothing: "
                        "cluster.zookeeper.ssl.client.enable is false"
                    )
        user = self.cluster_zookeeper_sasl_username
        if bool(user) != bool(self.cluster_zookeeper_sasl_password_file):
            raise ConfigError(
                "cluster.zookeeper.sasl.username and cluster.zookeeper.sasl.password.file belong "
                "together: set both, or neither"
            )
        if self.cluster_zookeeper_set_acl and not (
            user or self.cluster_zookeeper_ssl_keystore_location
        ):
            raise ConfigError(
                "cluster.zookeeper.set.acl: ZooKeeper has to know who we are; set "
                "cluster.zookeeper.sasl.username, or cluster.zookeeper.ssl.keystore.location"
            )
        if (
            self.cluster_zookeeper
            and self.offsets_topic_num_partitions > PARTITIONS_PER_JOURNAL * self.cluster_journals
        ):
            raise ConfigError(
                f"offsets.topic.num.partitions: a cluster has {PARTITIONS_PER_JOURNAL} for each of "
                f"cluster.journals at most"
            )

    def zookeeper(self) -> "Ensemble | None":
        """Return the ZooKeeper ensemble of the cluster; None without a cluster.

        Raises:
            ConfigError: The setting is invalid.
        """
        text = self.cluster_zookeeper
        if not text:
            return None
        hosts, slash, path = text.partition("/")
        chroot = slash + path
        if chroot and not _CHROOT.fullmatch(chroot):
            raise ConfigError(
                f"cluster.zookeeper: {quoted(chroot)} is no path to keep a cluster under, "
                "such as /group-coordinator"
            )
        servers = [Address.parse("cluster.zookeeper", one) for one in hosts.split(",")]
        return Ensemble(tuple(servers), chroot)

    @property
    def has_authentication(self) -> bool:
        """Whether any listener authenticates clients; if so, every right needs an access rule."""
        by_certificate = self.has_tls and self.ssl_client_auth != "none"
        return by_certificate or any(address.has_log_in for address in self.listener_addresses())

    def mechanisms(self) -> tuple[str, ...]:
        """Return the SASL mechanisms that clients may use."""
        return tuple(name.strip() for name in self.sasl_enabled_mechanisms.split(","))

    def super_user_names(self) -> tuple[str, ...]:
        """Return the principals with all rights, including the bootstrap user."""
        named = [name.strip() for name in self.super_users.split(";") if name.strip()]
        bootstrap = [f"User:{self.sasl_bootstrap_user}"] if self.sasl_bootstrap_user else []
        return (*named, *bootstrap)

    def unused(self) -> tuple[str, ...]:
        """Return the names of settings that were set and have no effect.

        In a cluster these are settings of a data folder, otherwise settings of a cluster.
        """
        if self.cluster_zookeeper:
            return tuple(sorted(_OF_A_FOLDER & self.origins.keys()))
        of_cluster = {one for one in self.origins if one.startswith("cluster.")}
        return tuple(sorted(of_cluster - {"cluster.id", "cluster.zookeeper"}))

    def adopt(self, newer: "Settings") -> "Adopted":
        """Take over the live settings of *newer*; the others keep their values."""
        differing = [
            one for one in SETTINGS if getattr(self, one.attribute) != getattr(newer, one.attribute)
        ]
        origins = dict(self.origins)
        for one in differing:
            if one.live:
                object.__setattr__(self, one.attribute, getattr(newer, one.attribute))
                origins.pop(one.name, None)
                if one.name in newer.origins:
                    origins[one.name] = newer.origins[one.name]
        object.__setattr__(self, "origins", origins)
        return Adopted(
            tuple(one.name for one in differing if one.live),
            tuple(one.name for one in differing if not one.live),
        )

    def listener_addresses(self) -> tuple["Address", ...]:
        """Return the addresses to listen on for clients."""
        return Address.parse_all("listeners", self.listeners, _NATIVE_SCHEMES)

    def advertised_addresses(self) -> tuple["Address", ...]:
        """Return the addresses in ``advertised.listeners``; () if not set."""
        if not self.advertised_listeners:
            return ()
        # An address without a scheme belongs to the first listener, whatever its scheme is.
        first = self.listener_addresses()[0].scheme
        schemes = (first, *_NATIVE_SCHEMES)
        return Address.parse_all("advertised.listeners", self.advertised_listeners, schemes)

    def addresses_told(self) -> tuple["Address", ...]:
        """Return the address announced to the clients of each listener, in the listeners' order.

        A listener without an advertised address of its scheme announces its own.
        """
        advertised = {address.scheme: address for address in self.advertised_addresses()}
        return tuple(advertised.get(one.scheme, one) for one in self.listener_addresses())

    def http_addresses(self) -> tuple["Address", ...]:
        """Return the addresses of the HTTP listeners; () by default."""
        if not self.http_listeners:
            return ()
        return Address.parse_all("http.listeners", self.http_listeners, _HTTP_SCHEMES)

    @property
    def has_tls(self) -> bool:
        """Whether any listener uses TLS."""
        return any(a.is_tls for a in (*self.listener_addresses(), *self.http_addresses()))

    def tls_versions(self) -> tuple[str, ...]:
        """Return the versions of TLS that are allowed."""
        return tuple(version.strip() for version in self.ssl_enabled_protocols.split(","))


class Ensemble(NamedTuple):
    """Servers of a ZooKeeper ensemble, and the prefix of all paths in it; "" for none."""

    servers: tuple["Address", ...]
    chroot: str


class Adopted(NamedTuple):
    """Names of settings that `adopt` has changed, and of changed ones that need a restart."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


# Settings without effect in a cluster, as they are for a data folder only.
_OF_A_FOLDER: Final = frozenset(
    {
        "log.cleaner.delete.retention.ms",
        "log.cleaner.enable",
        "log.cleaner.min.cleanable.ratio",
        "max.log.bytes",
        "offsets.topic.segment.bytes",
        "partition.reload.min.interval.ms",
        "storage.reserve.bytes",
    }
)
# Upper bound of partitions per journal in a cluster: a node that becomes the leader of a journal
# sets the states of all its partitions in one ZooKeeper transaction.
PARTITIONS_PER_JOURNAL: Final = 1_000
# A path of ZooKeeper, which reserves /zookeeper and rejects the names "." and "..".
_CHROOT: Final = re.compile(r"(?!/zookeeper(/|$))(/(?!\.{1,2}(/|$))[!-+.0-~-]+)+")
_HOST_NAME: Final = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


def _check_choice(setting: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(choices[:-1])
        raise ConfigError(f"{setting}: {quoted(value)} is not {listed} or {choices[-1]}")


def is_cluster_id(text: str) -> bool:
    """Return whether *text* has the form of a cluster id."""
    return re.fullmatch("[A-Za-z0-9_-]{22}", text) is not None


class Address(NamedTuple):
    """Host, port and scheme. In text, an IPv6 host is in brackets; `host` has none.

    Attributes:
        scheme: Protocol of a listener: TLS or not, log-in or not; or http, https.
    """

    host: str
    port: int
    scheme: str = _NATIVE_SCHEMES[0]

    @classmethod
    def parse(cls, setting: str, text: str) -> "Address":
        """Return the address in *text*, such as ``127.0.0.1:9310`` or ``[::1]:0``.

        Raises:
            ConfigError: *text* is no address; the message names *setting*.
        """
        host, colon, port = text.strip().rpartition(":")
        is_address = colon and _is_host(host) and port.isdecimal() and int(port) <= 0xFFFF
        if not is_address:
            raise ConfigError(f"{setting}: {quoted(text.strip())} is not host:port")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @classmethod
    def parse_all(cls, setting: str, text: str, schemes: Sequence[str]) -> tuple["Address", ...]:
        """Return the comma-separated addresses in *text*; see `parse`.

        Each address may begin with one of the *schemes*; the first of these is the default.
        """
        return tuple(cls._parse_one(setting, part.strip(), schemes) for part in text.split(","))

    @classmethod
    def _parse_one(cls, setting: str, text: str, schemes: Sequence[str]) -> "Address":
        scheme, separator, rest = text.rpartition("://")
        if separator and scheme not in schemes:
            choices = " nor ".join(f"{one}://" for one in dict.fromkeys(schemes))
            raise ConfigError(f"{setting}: {quoted(text)} begins with neither {choices}")
        return cls.parse(setting, rest)._replace(scheme=scheme or schemes[0])

    @property
    def is_tls(self) -> bool:
        """Whether the scheme is one with TLS."""
        return self.scheme in {"SSL", "SASL_SSL", "https"}

    @property
    def has_log_in(self) -> bool:
        """Whether the scheme requires clients to log in."""
        return self.scheme.startswith("SASL_")

    @property
    def is_wildcard(self) -> bool:
        """Whether the host stands for every address of the machine."""
        number = _ip(self.host)
        # getaddrinfo takes a bare 0 for 0.0.0.0.
        return self.host in {"*", "0"} or (number is not None and number.is_unspecified)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        number = _ip(self.host)
        return self.host == "localhost" or (number is not None and number.is_loopback)

    def __str__(self) -> str:
        """Return ``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(host: str) -> bool:
    """Return whether *host* is well-formed; the name isn't looked up."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


class Setting(NamedTuple):
    """Declaration of one setting, as parsers and printers use it."""

    name: str
    attribute: str
    default: float | str | bool
    doc: str
    low: float
    high: float
    live: bool


SETTINGS: Final = tuple(
    Setting(f.name.replace("_", "."), f.name, **f.metadata) for f in fields(Settings) if f.metadata
)
_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
_BY_ENV: Final = {setting.attribute.upper(): setting.name for setting in SETTINGS}


class SettingInForce(NamedTuple):
    """Current value of one setting as text, and its source."""

    name: str
    value: str
    default: str
    origin: str


def settings_in_force(settings: Settings) -> list[SettingInForce]:
    """Return all *settings* with values and sources, in the order of the table."""
    return [
        SettingInForce(
            one.name,
            text_of(getattr(settings, one.attribute)),
            text_of(one.default),
            settings.origins.get(one.name, "default"),
        )
        for one in SETTINGS
    ]


def text_of(value: float | str | bool) -> str:
    """Return the value of a setting as text, as ``--set`` accepts it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_settings(
    *,
    toml_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    listen: Iterable[str] = (),
) -> Settings:
    """Return the settings from file, environment and command line; later sources win.

    The source of each setting is kept; see `settings_in_force`.

    Args:
        toml_path: Path in ``--config``.
        environ: The environment; names without `ENV_PREFIX` are ignored.
        overrides: ``--set`` arguments, ``name=value``.
        listen: ``--listen`` arguments, which replace ``listeners``.

    Raises:
        ConfigError: A name is unknown or a value invalid.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if toml_path is not None:
        for name, raw in _read_toml(toml_path).items():
            values[name] = _value(name, raw, f"in {toml_path}")
            origins[name] = f"file {toml_path.absolute()}"
    for variable, text in sorted((environ or {}).items()):
        upper_name = variable.removeprefix(ENV_PREFIX)
        if upper_name == variable or _OF_A_SERVICE.fullmatch(f"{upper_name}={text}"):
            continue
        if upper_name not in _BY_ENV:
            hint = did_you_mean(upper_name, _BY_ENV, lambda name: quoted(ENV_PREFIX + name))
            raise ConfigError(f"the environment has {quoted(variable)}, which is no setting.{hint}")
        env_name = _BY_ENV[upper_name]
        values[env_name] = _value(env_name, _parse(env_name, text), "in the environment")
        origins[env_name] = f"environment {variable}"
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {quoted(override)}: expected NAME=VALUE")
        values[name] = _value(name, _parse(name, text), "in --set")
        origins[name] = "command line --set"
    addresses = list(listen)
    if addresses:
        values["listeners"] = ",".join(addresses)
        origins["listeners"] = "command line --listen"
    by_attribute = {_BY_NAME[name].attribute: value for name, value in values.items()}
    return Settings(**by_attribute, origins=origins)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as exc:
        raise ConfigError(f"--config {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--config {path}: {exc}") from exc


def setting_named(name: str) -> Setting:
    """Return the declaration of the setting called *name*.

    Raises:
        ConfigError: There is no such setting; the message suggests similar names.
    """
    if name not in _BY_NAME:
        hint = did_you_mean(name, _BY_NAME)
        is_beginning = any(one.startswith(f"{name}.") for one in _BY_NAME)
        if "." not in name and (is_beginning or not hint):
            hint = " In a TOML file, write the whole name in quotes."
        raise ConfigError(f"there is no setting {quoted(name)}.{hint}")
    return _BY_NAME[name]


def _parse(name: str, text: str) -> float | str | bool:
    """Return *text* converted to the type of the setting."""
    kind = type(setting_named(name).default)
    if kind is bool:
        if text.lower() not in {"true", "false"}:
            raise ConfigError(f"{name}: {quoted(text)} is neither true nor false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name}: {quoted(text)} is not {_KINDS[kind]}") from None


def _value(name: str, value: Any, where: str) -> float | str | bool:
    setting = setting_named(name)
    if type(setting.default) is float and type(value) is int:
        value = value * 1.0
    if type(value) is not type(setting.default):
        wanted = _KINDS[type(setting.default)]
        raise ConfigError(f"{name} {where}: {value!r} is not {wanted}")
    if isinstance(value, int | float) and not setting.low <= value <= setting.high:
        raise ConfigError(
            f"{name} {where}: {value} is not between {setting.low} and {setting.high}"
        )
    checked: float | str | bool = value
    return checked
