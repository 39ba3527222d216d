"""``python -m demo.guarded MODULE [ARGUMENT...]``: run a module that must not outlive the demo.

The demo holds the other end of standard input. However the demo ends, by SIGKILL too, that end
is closed then, and this process ends itself.
"""

import os
import runpy
import signal
import sys
import threading


def end_with_input() -> None:
    """Wait for the end of standard input, then end this process at once, and all that it started.

    The demo starts each of its processes as the leader of a group.
    """
    while os.read(0, 4096):
        pass  # Nobody has anything to say to it.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    del sys.argv[0]  # What is left looks as if the module had been started itself.
    threading.Thread(target=end_with_input, name="end-with-input", daemon=True).start()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
