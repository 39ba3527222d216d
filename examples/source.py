"""A source for the examples: every partition of every topic has 20 messages."""

from client import TopicPartition

END = 20  # The offset that the next message of a partition would get.


def read(tp: TopicPartition, start: int, at_most: int = 5) -> list[str]:
    """Return the messages of *tp* from the offset *start* on."""
    return [f"{tp}@{offset}" for offset in range(start, min(start + at_most, END))]


def handle(message: str) -> None:
    """Do with a message whatever is to be done."""
    print(f"{message}\n", end="")  # In one piece, as the threads of a program share the output.
