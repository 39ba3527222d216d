"""The lag of groups, from the command line."""

import sys

try:
    from client.spark.lag.job import main
except ModuleNotFoundError as exc:
    if exc.name != "click":
        raise
    sys.exit("python -m client.spark.lag needs click: pip install 'group-coordinator[server]'")

if __name__ == "__main__":
    main(prog_name="python -m client.spark.lag")
