"""Names that others made up: how they are shown, and which one somebody may have meant."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

# No name of a group, a topic or a setting is longer; what is longer resembles none of them.
NAME_CHARS_MAX: Final = 255
# In an error that quotes it, the rest of a name only hides what is wrong.
QUOTED_CHARS_MAX: Final = 100
# Comparing with so many names takes a moment; with all of a large cluster's it may take seconds.
COMPARED_MAX: Final = 10_000
SUGGESTIONS_MAX: Final = 3
# So much of a name may be all that somebody remembers; with less it is any of them.
_BEGINNING_CHARS_MIN: Final = 3


def escaped(text: str) -> str:
    """Return *text* for a terminal, which must not obey what others have made up."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def shortened(name: str) -> str:
    """Return *name* for a sentence: escaped, and cut where it is very long."""
    shown = escaped(name)
    return shown if len(shown) <= QUOTED_CHARS_MAX else shown[:QUOTED_CHARS_MAX] + "…"


def quoted(name: str) -> str:
    """Return the same in quotes."""
    return f"'{shortened(name)}'"


def did_you_mean(name: str, known: Iterable[str], shown: Callable[[str], str] = quoted) -> str:
    """Return a question to put behind an error about *name*, empty if no other name is near."""
    if len(name) > NAME_CHARS_MAX:
        return ""
    # It takes a while to import, and hardly any command needs it.
    from difflib import get_close_matches  # noqa: PLC0415

    others = (other for other in islice(known, COMPARED_MAX) if other != name)
    candidates = {other.casefold(): other for other in others}
    folded = name.casefold()
    near = get_close_matches(folded, candidates, SUGGESTIONS_MAX)
    if not near and len(name) >= _BEGINNING_CHARS_MIN:
        near = [one for one in candidates if one.startswith(folded)][:SUGGESTIONS_MAX]
    if not near:
        return ""
    return f" Did you mean {' or '.join(shown(candidates[one]) for one in near)}?"
