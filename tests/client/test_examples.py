"""The examples, word for word, against a real daemon."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ADDRESS = "127.0.0.1:9310"

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


def run(code: str) -> str:
    """Run *code* as a pasted script would run; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_consumer_reads_three_batches_of_every_partition(daemon: str) -> None:
    """Whoever pastes it must see it work."""
    code = (EXAMPLES / "consumer.py").read_text()
    assert ADDRESS in code

    printed = run(code.replace(ADDRESS, daemon))

    for partition in range(6):
        assert f"generation 1: flights-{partition} from 0 to 9\n" in printed
        assert f"generation 1: flights-{partition} from 20 to 29\n" in printed


def test_the_asyncio_program_goes_on_where_the_group_is(daemon: str) -> None:
    """The offsets are the group's, whichever client committed them."""
    code = (EXAMPLES / "asyncio_program.py").read_text()
    assert ADDRESS in code
    code = code.replace(ADDRESS, daemon).replace('"readers"', '"asyncio-readers"')

    first, second = run(code), run(code)

    assert "flights-5 from 0 to 9\n" in first
    assert "flights-5 from 10 to 19\n" in second


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
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    _, code = (EXAMPLES / example).read_text().split("\n\n", 1)

    assert code in blocks
