"""A folder log that fails or blocks as long as files beside its topics say so."""

import time
from pathlib import Path

from client.spark import FolderLog, LogError, LogUnavailable


class FaultyLog(FolderLog):
    """Asked for partition 1, it looks for ``raise``, ``away`` and ``block`` in its folder."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the bounds, unless a file is there."""
        folder = Path(self.options["path"])
        if partition == 1:
            if (folder / "raise").exists():
                raise LogError("broken on purpose")
            if (folder / "away").exists():
                raise LogUnavailable("away on purpose")
            while (folder / "block").exists():
                time.sleep(0.05)
        return super().bounds(topic, partition)
