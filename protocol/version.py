"""Which release this is. Packaging, daemon and client take it from here."""

from typing import Final

VERSION: Final = "0.1.0"
