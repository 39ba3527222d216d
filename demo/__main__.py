"""``python -m demo [--cluster]``: run it, and exit with 1 if anything is not as promised."""

import signal
import sys
from types import FrameType

from demo.dataset import DatasetError
from demo.names import ROOT, Folders
from demo.story import run


def stop(signum: int, _frame: FrameType | None) -> None:
    """End like Ctrl-C does: through every ``with`` block, so that no child is left."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, stop)
    try:
        sys.exit(run(Folders(ROOT / ".demo"), is_cluster="--cluster" in sys.argv[1:]))
    except DatasetError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped; no process is left behind", file=sys.stderr)
        sys.exit(130)
