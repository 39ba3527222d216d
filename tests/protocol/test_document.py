"""docs/wire-protocol.md says what the code does."""

from protocol.apis import APIS
from tests.protocol import document


def test_the_generated_parts_are_current() -> None:
    """A specification that lags behind is worse than none; `document` writes it anew."""
    text = document.PATH.read_text(encoding="utf-8")

    assert text == document.rendered(text)


def test_every_api_and_the_error_table_are_in_it() -> None:
    """A part whose marker was lost would no longer be compared."""
    wanted = {f"api {int(key)}" for key in APIS} | {"errors"}

    assert sorted(document.marked(document.PATH.read_text(encoding="utf-8"))) == sorted(wanted)
