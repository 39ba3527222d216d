"""Names chosen by users or clients: how to show them, and suggestions for a misspelled one."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

# Longest name of a group, a topic or a setting, in characters. A longer text resembles none.
NAME_CHARS_MAX: Final = 255
# Characters of a name that an error quotes; more would hide what is wrong.
QUOTED_CHARS_MAX: Final = 100
# Upper bound of the known names compared with a misspelled one; all of a large cluster's may take
# seconds.
COMPARED_MAX: Final = 10_000
SUGGESTIONS_MAX: Final = 3
# Shortest beginning of a name, in characters, for which longer names are suggested.
_BEGINNING_CHARS_MIN: Final = 3


def escaped(text: str) -> str:
    """Return *text*, escaped unless all of it is printable, so that a terminal can't obey it."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def shortened(name: str) -> str:
    """Return *name* escaped, and cut to `QUOTED_CHARS_MAX` characters, for use in a sentence."""
    shown = escaped(name)
    return shown if len(shown) <= QUOTED_CHARS_MAX else shown[:QUOTED_CHARS_MAX] + "…"


def quoted(name: str) -> str:
    """Return `shortened` *name* in single quotes."""
    return f"'{shortened(name)}'"


def did_you_mean(name: str, known: Iterable[str], shown: Callable[[str], str] = quoted) -> str:
    """Return a question to append to an error about *name*; "" if no known name is similar."""
    if len(name) > NAME_CHARS_MAX:
        return ""
    # Imported here, because the import is slow and hardly any command needs it.
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
