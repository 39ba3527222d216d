"""The coordinator daemon: groups, offsets and the log that keeps them."""

from typing import Final

VERSION: Final = "0.1.0"
