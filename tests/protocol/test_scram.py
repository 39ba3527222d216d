"""What is made of a password."""

import base64

import pytest

from protocol.scram import KEY_BYTES, Mechanism, keys_of, password_problem


def test_the_keys_are_those_of_the_standard() -> None:
    """RFC 7677, section 3: the server's signature in its example comes of these."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = keys_of("pencil", Mechanism.SCRAM_SHA_256, salt, 4_096)

    assert base64.b64encode(keys.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(keys.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_keys_have_the_size_of_their_hash_and_show_nothing(mechanism: Mechanism) -> None:
    """What is checked on arrival must be what is sent."""
    keys = keys_of("a b~", mechanism, b"12345678", 1)

    assert {len(key) for key in keys} == {KEY_BYTES[mechanism]}
    assert repr(keys) == "Keys(…)"


@pytest.mark.parametrize("password", ["", "p\u00e4ss", "tab\t", "x" * 1_025])
def test_a_password_that_clients_may_read_differently_is_refused(password: str) -> None:
    """SASLprep changes some texts, and not every client does it; the reason never shows it."""
    with pytest.raises(ValueError, match="the password") as caught:
        keys_of(password, Mechanism.SCRAM_SHA_256, b"12345678", 1)

    assert not password or password not in str(caught.value)
    assert password_problem("correct horse battery staple") is None
