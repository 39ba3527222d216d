"""The examples in docs/http.md have the very fields that are shown."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.http import views

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
ALONE = {"generation", "protocol", "leader", "retention_ms", "members", "topics", "rebalance"}


def examples() -> dict[str, Any]:
    """Return each JSON block by the heading before it, a second one with a star."""
    found: dict[str, Any] = {}
    heading = ""
    for title, block in re.findall(
        r"^#+ ([^\n]*)$|^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    ):
        if title:
            heading = title
        else:
            found[heading + "*" * (heading in found)] = json.loads(block.replace("…", ""))
    return found


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("Is it well?", views.Health),
        ("Group", views.Group),
        ("Partition", views.Partition),
        ("Rebalance", views.Rebalance),
        ("Topic", views.Topic),
        ("Node", views.Node),
    ],
)
def test_an_example_has_just_the_fields_that_are_shown(
    heading: str, kind: type[msgspec.Struct]
) -> None:
    """The page, and whoever reads the API, is written by the examples."""
    example = examples()[heading]
    shown = json.loads(msgspec.json.encode(msgspec.convert(example, kind)))

    assert _fields(example) == _fields(shown)


def test_one_group_has_the_fields_of_the_list_and_more() -> None:
    """A page that shows one takes it for a line of the list."""
    listed, alone = examples()["Group"], examples()["Group*"]
    whole = msgspec.convert({**listed, **alone}, views.GroupAlone)

    assert ALONE == set(alone)
    assert _fields({**listed, **alone}) == _fields(json.loads(msgspec.json.encode(whole)))


def _fields(value: Any) -> Any:
    """Return the names in *value*, at any depth."""
    if isinstance(value, dict):
        return {name: _fields(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_fields(inner) for inner in value]
    return None
