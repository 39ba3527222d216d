"""The options of the tables, checked before anything is asked. Pure."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, TypeVar

from client.spark.options import OptionError, read_addresses, read_duration_ms

INT32_MAX: Final = 2**31 - 1

T = TypeVar("T")


class Given:
    """Options by name, in any case; each method reads one of them.

    Args:
        options: As they were given to Spark.
        known: The names that there are; another one is refused, since it is misspelt.

    Raises:
        OptionError: from every method, with a message that names the option and what it may be.

    """

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._given:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f"; did you mean '{names[near[0]]}'?" if near else ""
                raise OptionError(
                    f"option {name!r} is unknown{hint} (there are {', '.join(known)})"
                )

    def text(self, name: str) -> str | None:
        """Return the text without blanks around it, None if it was not given or is empty."""
        return self._given.get(name.lower(), "").strip() or None

    def addresses(self, name: str = "coordinator") -> tuple[str, ...]:
        """Return one or more of ``host:port``."""
        value = self.text(name)
        if value is None:
            raise OptionError(f"option '{name}' is missing: the coordinator's host:port")
        return read_addresses(name, value)

    def names(self, name: str) -> frozenset[str] | None:
        """Return names that are separated by commas, None if the option was not given."""
        value = self.text(name)
        if value is None:
            return None
        names = frozenset(part.strip() for part in value.split(","))
        if "" in names:
            raise OptionError(f"option '{name}' is {value!r}: it must be names separated by commas")
        return names

    def choice(self, name: str, *choices: str) -> str:
        """Return one of *choices*, the first one by default."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            listed = " or ".join(repr(choice) for choice in choices)
            raise OptionError(f"option '{name}' is {value!r}: it must be {listed}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return whether the option is ``true``."""
        choices = ("true", "false") if default else ("false", "true")
        return self.choice(name, *choices) == "true"

    def pushes_filters(self, *, by_default: bool) -> bool:
        """Return whether conditions are pushed down; ``auto`` is the default: where it is safe."""
        value = self.choice("pushFilters", "auto", "true", "false")
        return by_default if value == "auto" else value == "true"

    def number(self, name: str, default: T, *, low: int = 1, high: int = INT32_MAX) -> int | T:
        """Return a whole number of *low* … *high*, *default* if the option was not given."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdecimal() or not low <= int(value) <= high:
            raise OptionError(
                f"option '{name}' is {value!r}: it must be a whole number from {low} to {high}"
            )
        return int(value)

    def duration_ms(self, name: str, default: str) -> int:
        """Return a duration in ms."""
        return read_duration_ms(name, self.text(name) or default)
