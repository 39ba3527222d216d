"""How the driver's process tells a reader process that its query must not go on.

Both are on one machine, as children of one user, but share no memory and no pipe; the reader's
client id is all that the driver knows of it. So the reason is left in a file of that name, in a
folder that only this user can write to, and the reader looks for it on each trigger.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


class Refusals:
    """The folder with the reasons.

    Args:
        folder: where they are; by default one per user beside other temporary files.

    """

    def __init__(self, folder: Path | None = None) -> None:
        uid = os.getuid()
        self._folder = folder or Path(tempfile.gettempdir()) / f"group-coordinator-{uid}"

    def refuse(self, client_id: str, reason: str) -> None:
        """Leave a reason for the reader with this client id.

        Raises:
            OSError: the folder can't be written to.

        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        building = self._folder / f".{client_id}"
        building.write_text(reason, "utf-8")
        building.rename(self._folder / client_id)

    def reason(self, client_id: str) -> str | None:
        """Return the reason for the reader with this client id, if there is one, and forget it."""
        left = self._folder / client_id
        try:
            if self._folder.stat().st_uid != os.getuid():
                return None  # Somebody else's folder under our name.
            reason = left.read_text("utf-8")
        except (FileNotFoundError, PermissionError):
            return None
        with suppress(OSError):
            left.unlink()
        return reason
