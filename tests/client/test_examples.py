"""The examples, word for word, against a real daemon."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import TopicPartition
from client.blocking import connect_blocking

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ADDRESS = "127.0.0.1:9310"

# In front of an example: the process ends as if it had crashed, when it handles the n-th message.
CRASH = """
import source
handled = []
def handle(message, real=source.handle):
    handled.append(message)
    if len(handled) == {at}:
        raise RuntimeError("crash")
    real(message)
source.handle = handle
"""
CRASH_BEFORE_COMMIT = """
import client
async def commit(*args, **kwargs):
    raise RuntimeError("crash")
client.Member.commit = commit
"""

# In examples: one that prints nothing goes on, one that ends waits after its first assignment.
PRINT_AND_ON = 'print("flights")\n            if False and all(read('
FOR_EVER = "(await member.assignment()).partitions, flush=True)\n        await trio.sleep_forever()"

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a daemon on a free port; return its address."""
    command = [sys.executable, "-m", "coordinator", "serve", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path_factory.mktemp("daemon") / "data")]
    command += ["--set", "group.initial.rebalance.delay.ms=0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = ""
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "listening":
                address = f"{event['host']}:{event['port']}"
            if event["event"] == "ready":
                break
        yield address
        process.terminate()
        process.communicate(timeout=60)


class Runner:
    """Runs examples as pasted scripts in an empty folder, with the daemon's address in them."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder

    def code(self, example: str) -> str:
        """Return an example's text."""
        code = (EXAMPLES / example).read_text()
        assert ADDRESS in code
        return code.replace(ADDRESS, self.address)

    def run(self, code: str, *, crash: str = "") -> list[str]:
        """Run *code*; return the lines that it prints. It must crash if *crash* is in front."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", crash + code],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if crash:
            assert "RuntimeError: crash" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def interrupted(self, code: str, words: str, signum: int = signal.SIGINT) -> list[str]:
        """Run *code* until it prints *words*, then press Ctrl-C; return the lines that it prints.

        It must end with status 0, and with nothing on standard error. *signum* is another signal.
        """
        with subprocess.Popen(
            [sys.executable, "-u", "-W", "error", "-c", code],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            printed = []
            for line in process.stdout:
                printed.append(line.rstrip())
                if words in line:
                    break
            process.send_signal(signum)
            rest, errors = process.communicate(timeout=60)
        assert (0, "") == (process.returncode, errors)
        return [*printed, *rest.splitlines()]

    def example(self, example: str, *, crash: str = "") -> list[str]:
        """Run an example."""
        return self.run(self.code(example), crash=crash)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return what a group has committed."""
        with connect_blocking(self.address) as client:
            return {tp: entry.offset for tp, entry in client.fetch_offsets(group).items()}


@pytest.fixture
def runner(daemon: str, tmp_path: Path) -> Runner:
    """Return a runner in a folder of its own."""
    return Runner(daemon, tmp_path)


def messages(partitions: int) -> list[str]:
    """Return everything that the examples' source has in the first *partitions* of flights."""
    return [f"flights-{p}@{offset}" for p in range(partitions) for offset in range(20)]


def everything(partitions: int) -> dict[TopicPartition, int]:
    """Return the offsets of a group that has read all of it."""
    return {TopicPartition("flights", p): 20 for p in range(partitions)}


def test_every_example_is_short() -> None:
    """Nobody reads an example that is longer than a screen."""
    for example in EXAMPLES.glob("*.py"):
        if example.stem.endswith("_notebook"):  # It is read cell by cell, between its pictures.
            continue
        lines = [line for line in example.read_text().splitlines() if line]
        assert len(lines) < 60, example.name


def test_the_consumer_reads_until_ctrl_c_and_leaves_its_group(runner: Runner) -> None:
    """Whoever pastes it must see it work, and have an end that is as clean."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-u", "-c", runner.code("consumer.py")],
        cwd=runner.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as consumer:
        assert consumer.stdout is not None
        printed = [consumer.stdout.readline().strip() for _ in range(12)]
        consumer.send_signal(signal.SIGINT)
        rest, errors = consumer.communicate(timeout=60)

    for partition in range(6):
        assert f"generation 1: flights-{partition} from 0 to 9" in printed
        assert f"generation 1: flights-{partition} from 10 to 19" in printed
    assert (consumer.returncode, errors) == (0, "")
    assert rest.endswith("left the group\n")
    with connect_blocking(runner.address) as client:
        assert [group.state for group in client.describe_groups(["readers"])] == ["Empty"]


def test_the_asyncio_program_goes_on_where_the_group_is(runner: Runner) -> None:
    """Ctrl-C ends it without an error, it has left by then, and the offsets are the group's."""
    code = runner.code("asyncio_program.py").replace('"readers"', '"asyncio-readers"')

    for generation in (1, 3):  # Leaving is a rebalance, too.
        committed = runner.committed("asyncio-readers").get(TopicPartition("flights", 5), 0)
        printed = runner.interrupted(code, f"flights-5 from {committed + 10}")

        assert f"generation {generation}: flights-5 from {committed} to" in "\n".join(printed)
        with connect_blocking(runner.address) as client:
            assert [one.state for one in client.describe_groups(["asyncio-readers"])] == ["Empty"]


def test_at_most_once_loses_in_a_crash_and_repeats_nothing(runner: Runner) -> None:
    """It was committed in tens, and died after seven of the first ten."""
    handled = runner.example("at_most_once.py", crash=CRASH.format(at=8))
    handled += runner.example("at_most_once.py")

    assert max(Counter(handled).values()) == 1
    assert set(messages(2)) - set(handled) == {f"flights-1@{offset}" for offset in (2, 3, 4)}
    assert runner.committed("at-most-once") == everything(2)


def test_at_least_once_repeats_after_a_crash_and_loses_nothing(runner: Runner) -> None:
    """It died when two of the second ten were handled."""
    handled = runner.example("at_least_once.py", crash=CRASH.format(at=13))
    handled += runner.example("at_least_once.py")

    counts = Counter(handled)
    assert set(messages(2)) == counts.keys()
    assert {m for m in counts if counts[m] > 1} == {"flights-0@5", "flights-0@6"}
    assert runner.committed("at-least-once") == everything(2)


def test_effectively_once_neither_loses_nor_repeats(runner: Runner) -> None:
    """It died between the database's commit and the group's, where the two disagree."""
    runner.example("effectively_once.py", crash=CRASH_BEFORE_COMMIT)
    assert runner.committed("effectively-once") == {}

    runner.example("effectively_once.py")

    with sqlite3.connect(runner.folder / "results.db") as db:
        results = [message for (message,) in db.execute("SELECT message FROM results")]
    db.close()
    assert sorted(messages(2)) == sorted(results)
    assert runner.committed("effectively-once") == everything(2)


def test_a_group_shares_messages_and_every_group_gets_all(runner: Runner) -> None:
    """Queue and broadcast are the same thing with one group or several."""
    handled: dict[str, list[str]] = {"billing": [], "audit": []}
    for line in runner.example("groups.py"):
        group, _, message = re.split(": | has ", line)
        handled[group].append(message)

    assert sorted(handled["billing"]) == sorted(messages(4))
    assert sorted(handled["audit"]) == sorted(messages(4))


def test_worker_threads_keep_the_order_of_each_partition(runner: Runner) -> None:
    """And what they have stored is committed when the program ends."""
    handled = runner.example("worker_threads.py")

    for partition in range(4):
        of_one = [line for line in handled if line.startswith(f"flights-{partition}@")]
        assert of_one == [f"flights-{partition}@{offset}" for offset in range(20)]
    assert runner.committed("worker-threads") == everything(4)


def test_worker_threads_commit_only_what_was_handled(runner: Runner) -> None:
    """A message that could not be handled comes again, whatever auto-commit does meanwhile."""
    code = runner.code("worker_threads.py").replace("worker-threads", "failing-worker-threads")
    code = code.replace("interval_ms=1_000", "interval_ms=1")
    handled = runner.run(code, crash=CRASH.format(at=30))
    committed = runner.committed("failing-worker-threads")

    for partition in range(4):
        of_one = sum(line.startswith(f"flights-{partition}@") for line in handled)
        assert committed.get(TopicPartition("flights", partition), 0) <= of_one


def test_a_cooperative_member_gives_up_only_what_another_gets(runner: Runner) -> None:
    """What stays is not given up in between."""
    printed = runner.example("cooperative.py")
    told = [line for line in printed if "flights" in line]

    assert told[:3] == [
        "one gets flights-0 flights-1 flights-2 flights-3",
        "one gives up flights-2 flights-3",
        "two gets flights-2 flights-3",
    ]


def test_a_pattern_follows_the_topics(runner: Runner) -> None:
    """A new topic that matches and a topic that grows are both noticed; others are left alone."""
    *_, last = runner.example("pattern.py")

    assert last.endswith("orders-eu-0 orders-eu-1 orders-us-0 orders-us-1")


def test_a_static_member_comes_back_without_a_rebalance(runner: Runner) -> None:
    """The same generation, and the same partitions, after a restart."""
    assert runner.example("static_member.py") == [
        "generation 1: flights-0 flights-1",
        "generation 1: flights-0 flights-1",
        "['Empty']",
    ]


def test_an_assignor_of_ones_own_decides(runner: Runner) -> None:
    """The group votes for it like for any other."""
    assert runner.example("own_assignor.py") == ["flights-0 flights-1", "['first-takes-all']"]


def test_operators_see_lag_rebalances_and_offsets(runner: Runner) -> None:
    """What is watched is what is committed, to the offset."""
    assert runner.example("operators.py") == [
        "clicks-0: committed 15, end 20, lag 5",
        "clicks-1: committed 15, end None, lag None",
        "rebalance 2: left",
        "rebalance 1: member joined: a look",
        "{'clicks-0': 20}",
    ]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_handler_leaves_the_group(runner: Runner, signum: int) -> None:
    """The others would wait for the end of its session otherwise."""
    code = runner.code("blocking.py").replace('"blocking"', f'"blocking-{signum}"')
    printed = runner.interrupted(code, "flights-5 from 10 to 19", signum)

    assert "generation 1: flights-5 from 0 to 9" in printed
    assert states(runner, f"blocking-{signum}") == ["Empty"]


def states(runner: Runner, group: str) -> list[str]:
    """Return the state of *group*."""
    with connect_blocking(runner.address) as client:
        return [one.state for one in client.describe_groups([group])]


# Which group each example joins, and what makes it go on until it is stopped.
ENDLESS = {
    "at_least_once.py": ("at-least-once", ("if not ends:", "if False:")),
    "at_most_once.py": ("at-most-once", ("if not messages:", "if False:")),
    "effectively_once.py": ("effectively-once", ("if all(read(", PRINT_AND_ON)),
    "groups.py": ("billing", ("if not any(batches.values()):", "if False:")),
    "cooperative.py": ("cooperative", ("!= 2:", "!= 99:")),
    "own_assignor.py": ("own-assignor", ("(await member.assignment()).partitions)", FOR_EVER)),
    "pattern.py": ("patterns", ("== 4:", "== 99:")),
    "worker_threads.py": ("worker-threads", ("< END for", "< 99 for")),
    "consumer.py": ("readers", ("", "")),
    "asyncio_program.py": ("readers", ("", "")),
}


# A machine may take longer than the default to let a member leave.
PATIENT = 'client_id="example", leave_timeout_ms=60_000'


@pytest.mark.parametrize("example", ENDLESS)
def test_each_example_leaves_its_group_at_sigterm(runner: Runner, example: str) -> None:
    """What one copies is stopped so by systemd, Docker and Kubernetes; the group needn't wait."""
    group, (before, after) = ENDLESS[example]
    code = runner.code(example)
    assert before in code
    code = code.replace(f'"{group}"', f'"stopped-{example}"')
    # Another run of the pattern's has made its topics larger already.
    code = code.replace('client_id="example"', PATIENT).replace("orders-", "stopped-orders-")
    if before:
        code = code.replace(before, after)
    printed = "flights" if example != "pattern.py" else "orders-us"

    runner.interrupted(code, printed, signal.SIGTERM)

    assert states(runner, f"stopped-{example}") == ["Empty"]


def python_blocks(document: str) -> list[str]:
    """Return the code that a document shows."""
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("document", "example"),
    [
        ("docs/client.md", "consumer.py"),
        ("README.md", "consumer.py"),
        ("README.md", "spark_driver.py"),
    ],
)
def test_documents_show_the_very_example(document: str, example: str) -> None:
    """Code in documents rots unless it is code that runs."""
    _, code = (EXAMPLES / example).read_text().split("\n\n", 1)

    assert code in python_blocks(document)


def test_all_code_of_the_clients_guide_is_part_of_an_example() -> None:
    """Also a few lines in the middle of the page rot unless they are run."""
    examples = [example.read_text() for example in EXAMPLES.glob("*.py")]
    blocks = python_blocks("docs/client.md")

    assert len(blocks) > 5
    for block in blocks:
        assert any(block in example for example in examples), block
