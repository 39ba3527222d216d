"""``python -m demo.zookeeper FOLDER``: three servers of ZooKeeper, which end with this process.

It prints where they are as an event. The end of its standard input means that the demo is gone.
"""

import json
import sys
from pathlib import Path

from bench.ensemble import ensemble
from demo.guarded import end_with_input

if __name__ == "__main__":
    with ensemble(Path(sys.argv[1])) as made:
        sys.stdout.write(json.dumps({"event": "serving", "hosts": made.hosts}) + "\n")
        sys.stdout.flush()
        end_with_input()
