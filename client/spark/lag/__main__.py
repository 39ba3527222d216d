"""The lag of groups, from the command line."""

from client.spark.lag.job import main

if __name__ == "__main__":
    main(prog_name="python -m client.spark.lag")
