"""Options of Spark's formats that say how to connect, and show no secret."""

import pickle

import pytest

from client.spark.options import OptionError, read_security
from client.spark.source.reader_options import parse_options
from client.spark.tables.options import TableOptions

MARKER = "never-to-be-seen"
SECURE = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": "{file:/run/secrets/password}",
    "ssl.truststore.location": "/etc/ca.pem",
}
READER = {"coordinator": "h:1", "group": "g", "topics": "t", "log": "folder"}


def test_the_reader_and_the_tables_take_kafkas_names() -> None:
    """In any case, as Spark hands options on in lower case; the value names where the secret is."""
    options = {name.upper(): value for name, value in SECURE.items()}
    security = parse_options(READER | options).security

    assert (
        security
        == TableOptions({"coordinator": "h:1"} | SECURE, ("coordinator",)).target("10s").security
    )
    assert (security.protocol, security.username) == ("SASL_SSL", "alice")
    assert security.password == "{file:/run/secrets/password}"
    assert parse_options(READER).security.protocol == "PLAINTEXT"


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "sasl.oauthbearer.token"])
def test_a_secret_is_no_option(name: str) -> None:
    """Spark shows options in plans, in its UI and in event logs; the message shows nothing."""
    for read in (
        lambda: parse_options(READER | SECURE | {name: MARKER}),
        lambda: read_security(SECURE | {name: MARKER}),
    ):
        with pytest.raises(OptionError, match=f"{name} must say where") as caught:
            read()
        assert MARKER not in str(caught.value)


def test_impossible_options_are_named() -> None:
    """A misspelt one must not end in a connection without a password."""
    for bad in ({"security.protocoll": "SSL"}, {"security.protocol": "TLS"}):
        with pytest.raises(OptionError, match=next(iter(bad))):
            parse_options(READER | bad)


def test_nothing_secret_goes_to_executors() -> None:
    """What is pickled says where the secret is; each process looks there itself."""
    options = parse_options(READER | SECURE)

    assert pickle.loads(pickle.dumps(options.security)) == options.security
    assert "{file:/run/secrets/password}" not in repr(options)
