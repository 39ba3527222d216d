"""The same requests at the same times decide the same, byte for byte."""

import os
import subprocess
import sys
from pathlib import Path

from coordinator.group.core import GroupConfig
from tests.group.context import assignment, subscription
from tests.group.topics_context import TopicsContext

ROOT = Path(__file__).parents[2]


def transcript() -> str:
    """Return all that a group with some trouble leaves behind."""
    context = TopicsContext(GroupConfig(offsets_retention_ms=1_000))
    context.register(dict.fromkeys("tuvw", 2))
    offers = {"range": subscription("t"), "robin": subscription("t")}
    members = context.stable_group(5, protocols=offers)
    context.drain("spark2")
    context.leave(members[0])
    for member in members[1:]:
        context.join(member, protocols=dict(reversed(offers.items())))
    given = {m: assignment(f"t-{n}", f"u-{n}") for n, m in enumerate(members[1:])}
    for member in members[2:]:
        context.sync(member, context.generation)
    context.sync(members[1], context.generation, given)
    context.commit_raw(members[1], context.generation, [("t-0", 1, None, ""), ("u-0", 2, -1, "")])
    context.commit_raw("", -1, [(f"{t}-{p}", 1, None, "") for t in "wutv" for p in (1, 0)], "g2")
    context.commit("", -1, "v-0", group="g3")
    context.delete_topics("u", "w", "t")
    context.advance(1_000_000)
    lists = (context.records, context.topic_records, context.events, context.answers)
    return repr((lists, context.describe(), context.described(pattern="t|v")))


def test_hash_seeds_change_nothing() -> None:
    """A follower must come to the same state, and a simulation must be repeatable."""
    code = "from tests.group.test_determinism import transcript; print(transcript())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1", "2")
    }

    assert len(outputs) == 1
    assert len(outputs.pop()) > 1_000
