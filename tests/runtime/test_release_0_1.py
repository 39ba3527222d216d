"""What release 0.1.0 left on disk is read as it was: by daemons, and by ``log dump``.

tests/fixtures/release_0_1/README.md says how the folders were made. All is compared in bytes of
files and frames, so that nothing here has to change with the code that reads them.
"""

import json
import shutil
import struct
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock, wait_all_tasks_blocked

from coordinator.cli.main import main
from tests.fakes.disk import Disk
from tests.server.world import Client, world

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "release_0_1"
SETTINGS: Final = ("offsets.topic.segment.bytes=4096", "log.cleaner.enable=false")
# Until the end of a deletion that the last run began; shorter than any member's timeout.
SETTLED_S: Final = 20
LIST_GROUPS, COMPACT_LOG = 16, 1011

pytestmark = pytest.mark.parametrize("name", ["clean", "unclean"])


def expected(name: str) -> dict[str, Any]:
    """Return what the code that wrote the folder read from it."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="ascii"))
    return found


def plain(value: Any) -> Any:
    """Return a value of msgpack as JSON has it; bytes stand as ``{"bin": "<hex>"}``."""
    if isinstance(value, bytes):
        return {"bin": value.hex()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def packed(value: Any) -> Any:
    """Return what `plain` made this of."""
    if isinstance(value, dict):
        return bytes.fromhex(value["bin"])
    return [packed(one) for one in value] if isinstance(value, list) else value


async def ask(client: Client, api_key: int, version: int, content: Any) -> Any:
    """Return the body of the answer to a request, both as JSON has them."""
    wire, body = client.transport, msgpack.packb(packed(content))
    before = len(wire.received)
    wire.put(struct.pack(">Ihhi", 8 + len(body), api_key, version, 1) + body)
    await wait_all_tasks_blocked()
    return plain(msgpack.unpackb(bytes(wire.received[before + 16 :])))


async def answers(client: Client, name: str) -> list[Any]:
    """Return the present code's answers to what was asked of the folder when it was written."""
    found = []
    for said in expected(name)["conversation"]:
        answer = await ask(client, said["api_key"], said["api_version"], said["content"])
        found.append(_unordered(said["api_key"], answer))
    return found


def _unordered(api_key: int, answer: Any) -> Any:
    """Return an answer without the one order that nobody promises."""
    return [answer[0], sorted(answer[1])] if api_key == LIST_GROUPS else answer


def answers_before(name: str) -> list[Any]:
    """Return the answers of the code that wrote the folder."""
    said = expected(name)["conversation"]
    return [_unordered(one["api_key"], one["answer"]) for one in said]


def test_every_live_entry_is_dumped_as_before(name: str, tmp_path: Path) -> None:
    """Each record, of every type, and the tail that was torn."""
    shutil.copytree(FOLDER / name, tmp_path / "data")
    options = ["--data-dir", str(tmp_path / "data"), "--output=json", "--live-only"]

    done = CliRunner().invoke(main, ["log", "dump", *options])

    assert done.exit_code == 0, done.output
    assert [json.loads(line) for line in done.output.splitlines()] == expected(name)["live_entries"]


async def test_every_question_has_the_same_answer(name: str, autojump_clock: MockClock) -> None:
    """Groups, members, topics, ends, histories, offsets with their times: all a client can see."""
    async with world(*SETTINGS, disk=Disk.with_files_of(FOLDER / name)) as w:
        await trio.sleep(SETTLED_S)

        assert await answers(w.connect(), name) == answers_before(name)


async def test_a_compaction_of_old_segments_changes_no_answer(
    name: str, autojump_clock: MockClock
) -> None:
    """Old and new records, compacted together, and read by the start after that."""
    disk = Disk.with_files_of(FOLDER / name)
    async with world(*SETTINGS, disk=disk) as w:
        await trio.sleep(SETTLED_S)
        client = w.connect()
        assert (await ask(client, COMPACT_LOG, 0, []))[0] == 0
        assert await answers(client, name) == answers_before(name)
    disk.kill()
    async with world(*SETTINGS, disk=disk) as w:
        await trio.sleep(SETTLED_S)
        assert await answers(w.connect(), name) == answers_before(name)
