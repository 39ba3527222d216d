"""Files that make a listener's certificate, good ones and others; and whose a client's is."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.config import ConfigError, load_settings
from coordinator.security.tls import Certificates, NoPrincipal, PrincipalRules
from protocol.acls import user_name_error
from protocol.codec import REQUEST_CODECS, encode
from protocol.messages import Acl, ApiKey, CreateAclsRequest
from tests.fakes.tls import HOST, NOW, NOW_MS, authority, certificate, write_key_store, write_stores

DAY_MS: Final = 86_400_000
PASSWORD: Final = b"correct horse"


class Node:
    """A daemon's certificates, the files they come from, and what it has told.

    Attributes:
        now_ms: The time of day.
    """

    def __init__(self, folder: Path, *settings: str) -> None:
        self.store = folder / "server.pem"
        self.now_ms = NOW_MS
        self.told: list[tuple[str, dict[str, Any]]] = []
        overrides = ["listeners=SSL://127.0.0.1:0", *write_stores(folder), *settings]
        self.settings = load_settings(overrides=overrides)

    def start(self) -> Certificates:
        """Load them."""
        return Certificates(
            self.settings, lambda name, facts: self.told.append((name, facts)), lambda: self.now_ms
        )

    def names(self) -> list[str]:
        """Return what was told, and forget it."""
        names = [name for name, _ in self.told]
        self.told.clear()
        return names


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """One whose files are good."""
    return Node(tmp_path)


def encrypted(leaf: trustme.LeafCert) -> bytes:
    """Return a key store whose key needs `PASSWORD`."""
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD),
    )
    return pem + leaf.cert_chain_pems[0].bytes()


def test_good_files_are_loaded_and_nothing_is_said(node: Node) -> None:
    """A start without news has no lines about it."""
    certificates = node.start()
    certificates.watch()

    assert 364 <= certificates.left_ms / DAY_MS <= 365
    assert node.names() == []


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.unlink(), "can't be read: No such file"),
        (lambda path: path.write_bytes(b"what?"), "has no certificate in PEM"),
        (
            lambda path: path.write_bytes(certificate(HOST).cert_chain_pems[0].bytes()),
            "has no private key in PEM",
        ),
        (
            lambda path: write_key_store(path, certificate(HOST), certificate("other.example")),
            "the private key is not that of the first certificate",
        ),
        (lambda path: write_key_store(path, certificate(HOST, days=-1)), "that expired at"),
        (lambda path: path.write_bytes(encrypted(certificate(HOST))), "no ssl.key.password.file"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b"\nM", b"\nA", 2)),
            "ssl.keystore.location",
        ),
    ],
)
def test_a_key_store_that_cannot_be_is_refused_with_a_reason(
    node: Node, spoil: Callable[[Path], None], reason: str
) -> None:
    """Who has mixed up two files at night reads which, and how."""
    spoil(node.store)
    with pytest.raises(ConfigError, match=reason) as refused:
        node.start()

    assert str(node.store) in str(refused.value)


def test_a_certificate_of_the_future_names_the_clock(node: Node) -> None:
    """A machine whose clock was lost would look for the mistake in the certificate."""
    node.now_ms = 0

    with pytest.raises(ConfigError, match=r"this machine's clock it is 1970-01-01"):
        node.start()


@pytest.mark.parametrize(("password", "opens"), [(PASSWORD + b"\n", True), (b"wrong", False)])
def test_an_encrypted_key_is_opened_with_the_password_of_a_file(
    tmp_path: Path, password: bytes, opens: bool
) -> None:
    """It never stands on a command line; what doesn't open it is not shown either."""
    (tmp_path / "password").write_bytes(password)
    node = Node(tmp_path, f"ssl.key.password.file={tmp_path / 'password'}")
    node.store.write_bytes(encrypted(certificate(HOST)))
    if opens:
        node.start()
        return
    with pytest.raises(ConfigError, match="can't be decrypted with the password in") as refused:
        node.start()

    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["ssl.cipher.suites=NO-SUCH"], "ssl.cipher.suites"),
        (["ssl.principal.mapping.rules=RULE:CN=(.*/x/"], "is no pattern of RE2"),
        (["ssl.principal.mapping.rules=CN"], "neither DEFAULT nor RULE"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    tmp_path: Path, settings: list[str], reason: str
) -> None:
    """Before anybody has connected."""
    with pytest.raises(ConfigError, match=reason):
        Node(tmp_path, *settings).start()


@pytest.mark.parametrize("content", [None, b"nothing"])
def test_a_trust_store_that_cannot_be_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """Without authorities nobody would get in, or everybody."""
    node = Node(tmp_path, "ssl.client.auth=required", "super.users=User:alice@example.org")
    (tmp_path / "ca.pem").unlink()
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)

    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location"):
        node.start()


def test_a_key_that_everybody_can_read_is_warned_of(node: Node) -> None:
    """Whoever copies it is this daemon."""
    os.chmod(node.store, 0o644)  # noqa: PTH101 - what is warned of
    node.start()

    assert node.names() == ["certificate.key_exposed"]


# --- while it runs --------------------------------------------------------------------------------


def test_a_new_certificate_is_in_force_once_its_file_rests(node: Node) -> None:
    """Whoever writes it may be in the middle; two looks that see the same tell."""
    certificates = node.start()
    before = certificates.context
    write_key_store(node.store, certificate(HOST, days=700, life_days=730))
    certificates.watch()
    assert (node.names(), certificates.context) == ([], before)
    certificates.watch()

    assert node.told[0][1]["days"] in {699, 700}
    assert node.names() == ["certificate.reloaded"]
    assert certificates.context is not before
    certificates.watch()
    assert node.names() == []


def test_a_bad_one_changes_nothing_and_is_told_of_once(node: Node) -> None:
    """The old one is better than none; when it is mended it is taken."""
    certificates = node.start()
    before = certificates.context
    node.store.write_bytes(b"half a")
    for _ in range(5):
        certificates.watch()
    assert node.names() == ["certificate.refused"]
    assert certificates.context is before
    write_key_store(node.store, certificate(HOST, days=700, life_days=730))
    certificates.watch()
    certificates.watch()

    assert node.names() == ["certificate.reloaded"]


def test_a_file_that_is_away_for_a_moment_is_no_news_when_it_is_back(node: Node) -> None:
    """Who replaces files moves them, one by one."""
    certificates = node.start()
    moved = node.store.rename(node.store.with_suffix(".old"))
    certificates.watch()
    moved.rename(node.store)
    certificates.watch()
    certificates.watch()

    assert node.names() == []


def test_a_signal_has_them_loaded_at_once(node: Node) -> None:
    """Whoever sends it wants to see that it worked."""
    certificates = node.start()
    certificates.reload()
    node.store.unlink()
    certificates.reload()
    certificates.watch()

    assert node.names() == ["certificate.reloaded", "certificate.refused"]


def test_another_trust_store_is_in_force_without_a_restart(tmp_path: Path) -> None:
    """An authority that is no longer trusted must not wait for the night."""
    node = Node(tmp_path, "ssl.client.auth=required", "super.users=User:alice@example.org")
    certificates = node.start()
    authority("theirs").cert_pem.write_to_path(tmp_path / "ca.pem")
    certificates.watch()
    certificates.watch()

    (trusted,) = certificates.context.get_ca_certs()
    assert "theirs" in str(trusted["subject"])


def test_an_end_that_is_near_is_told_of_once_a_day(node: Node) -> None:
    """A line every five seconds would be read by nobody."""
    certificates = node.start()
    days = []
    for hour in range(24 * 366):
        node.now_ms = NOW_MS + hour * DAY_MS // 24
        certificates.watch()
        days += [facts["days"] for _, facts in node.told]
        node.names()

    assert days == [13, *range(12, -2, -1)]


def test_a_short_life_is_near_its_end_in_its_last_quarter(node: Node) -> None:
    """Certificates of a day are replaced each day, and would always be near it."""
    write_key_store(node.store, certificate(HOST, days=3, life_days=8))
    node.start().watch()
    assert node.names() == []
    write_key_store(node.store, certificate(HOST, days=1, life_days=8))
    node.start().watch()

    assert node.names() == ["certificate.expires_soon"]


# --- whose it is ----------------------------------------------------------------------------------


def principal(rules: str, *names: str, common_name: str | None = None) -> str:
    """Return who a certificate for *names* is by *rules*."""
    leaf = authority().issue_cert(*names, common_name=common_name)
    pem = leaf.cert_chain_pems[0].bytes()
    return PrincipalRules(rules).principal_of(x509.load_pem_x509_certificate(pem))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("alice@example.org",), "User:alice@example.org"),
        (("b.example", "alice@example.org"), "User:b.example"),
        (("a.example", "b.example"), "User:a.example"),
    ],
)
def test_the_alternative_name_says_whose_it_is(names: tuple[str, ...], expected: str) -> None:
    """The common name is a habit of the past."""
    assert principal("", *names, common_name="somebody else") == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", "User:CN=Alice"),
        ("RULE:^.*CN=(.*?)(,.*)?$/$1/", "User:Alice"),
        ("RULE:^.*CN=(\\w*).*$/$1@shop/L", "User:alice@shop"),
        ("RULE:^.*CN=(\\w*).*$/$1/U", "User:ALICE"),
        ("RULE:^CN=Nobody$/x/, RULE:.*CN=(.*?)(,.*)?/$1$9/L", "User:alice"),
        ("RULE:^CN=Nobody$/x/,DEFAULT", "User:CN=Alice"),
    ],
)
def test_rules_take_the_name_from_the_subject(rules: str, expected: str) -> None:
    """They are Kafka's, so that a company's stay as they are."""
    assert principal(rules, "a.example", common_name="Alice").startswith(expected)


def test_a_certificate_that_has_ended_since_names_nobody(node: Node) -> None:
    """A session that is taken up again brings the certificate that it was begun with."""
    certificates = node.start()
    leaf = certificate("alice@example.org", days=1).cert_chain_pems[0].bytes()
    der = x509.load_pem_x509_certificate(leaf).public_bytes(serialization.Encoding.DER)

    assert certificates.identify(der)[0] == "User:alice@example.org"
    node.now_ms += 2 * DAY_MS
    with pytest.raises(NoPrincipal, match="has expired"):
        certificates.identify(der)


@pytest.mark.parametrize(
    ("rules", "common_name"),
    [
        ("RULE:^CN=Nobody$/x/", "Alice"),
        ("RULE:.*/$1/", "Alice"),
        ("RULE:.*CN=(.*?)(,.*)?/$1$1$1$1$1$1$1/", "x" * 60),
        ("RULE:.*CN=(.*?)(,.*)?/$1/", "*"),
        ("RULE:.*CN=(.*?)(,.*)?/$1/U", "anonymous"),
    ],
)
def test_a_certificate_that_names_nobody_is_refused(rules: str, common_name: str) -> None:
    """Rules that forget somebody must not let him in as nobody in particular."""
    with pytest.raises(NoPrincipal):
        principal(rules, "a.example", common_name=common_name)


@pytest.mark.parametrize("character", ["x", "é", "€", "😀"])
def test_a_name_in_a_certificate_has_as_many_bytes_as_any_other(character: str) -> None:
    """A name bounded in characters could be four times as long as rules, quotas and users take."""
    size = len(character.encode())
    rest = 255 - 4 * 15 * size
    longest = "RULE:.*CN=(.*?)(,.*)?/$1$1$1$1" + "y" * rest
    name = character * 15

    found = principal(f"{longest}/", "a.example", common_name=name)
    assert len(found.encode()) == len("User:") + 255
    rule = Acl(2, "t", 3, found, "*", 3, 3)
    request = CreateAclsRequest((rule,))
    assert REQUEST_CODECS[ApiKey.CREATE_ACLS, 0].decode(encode(request)) == request
    assert user_name_error(found.removeprefix("User:")) is None
    with pytest.raises(NoPrincipal, match="longer than 255 bytes of UTF-8"):
        principal(f"{longest}y/", "a.example", common_name=name)


def test_a_certificate_for_every_name_is_nobodys() -> None:
    """Rules about User:* are about everybody, and who is called so would have all of them."""
    key, nobody = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    made = (
        x509.CertificateBuilder(nobody, nobody, key.public_key(), x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("*")]), critical=False)
        .sign(key, hashes.SHA256())
    )

    with pytest.raises(NoPrincipal, match="nobody in particular"):
        PrincipalRules("").principal_of(made)


@pytest.mark.parametrize("eight_bit", [b"caf\xe9", b"ca\xc3\xa9"], ids=["Latin-1", "UTF-8"])
@pytest.mark.parametrize(
    "name",
    [
        x509.UniformResourceIdentifier("spiffe://caf-/billing"),
        x509.DNSName("caf-.example"),
        x509.RFC822Name("caf-@example.org"),
    ],
)
def test_a_certificate_whose_alternative_name_is_unreadable_names_nobody(
    name: x509.GeneralName, eight_bit: bytes
) -> None:
    """Its authority has named the client there: the subject may be the name of another one."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "admin")])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )
    harmed = x509.load_der_x509_certificate(made.replace(b"caf-", eight_bit))

    with pytest.raises(NoPrincipal, match="alternative name"):
        PrincipalRules("").principal_of(harmed)
    assert PrincipalRules("DEFAULT").principal_of(harmed) == "User:CN=admin"
