"""Every request in every state, as one table: who asks, and what the answer is.

How to read it. A line is a request: the API above it, who asks, and what is special about the
request. A column is the state of the group. A cell is the error code of the answer, or ``park``
if it waits; ``>State`` where the group is in another state after it; ``.`` where there is no
such request. The group has four members: the leader, a follower, a static member (instance id
i-1, restarted once: ``fenced`` is its first incarnation, ``restarted`` its next), and the
rejoiner, the only one that waits in PreparingRebalance. In Empty they have all left. They
own flights-0 to flights-3. ``pending`` has been given a member id and has not joined with it.

Without a word on it, a request names the current generation, and the protocols of before.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from msgspec import structs

from protocol import messages as m
from tests.group.table_steps import APIS, MISSING, PARKED, Scene, scene

TABLE = """
JoinGroup                         missing    Empty      Prep       Compl      Stable
  new                             79>Empty   79         79         79         79
  new, other type                 79>Empty   79         23         23         23
  new, alien                      79>Empty   79         23         23         23
  new, nothing                    23         23         23         23         23
  new static                      park>Prep  park>Prep  park       park>Prep  park>Prep
  new static, alien               park>Prep  park>Prep  23         23         23
  new static, nothing             23         23         23         23         23
  restarted                       park>Prep  park>Prep  park       park>Prep  0
  restarted, other data           park>Prep  park>Prep  park       park>Prep  0
  restarted, changed              park>Prep  park>Prep  park       park>Prep  park>Prep
  restarted, alien                park>Prep  park>Prep  23         23         23
  restarted, last                 .          .          0>Compl    .          .
  pending                         .          park>Prep  park       park>Prep  park>Prep
  pending, alien                  .          park>Prep  23         23         23
  pending as i-1                  .          25         82         82         82
  pending as i-9                  .          25         25         25         25
  unknown                         25         25         25         25         25
  unknown, alien                  25         25         23         23         23
  follower                        25         25         park       0          0
  follower, last                  .          .          0>Compl    .          .
  follower, changed               25         25         park       park>Prep  park>Prep
  follower, alien                 25         25         23         23         23
  follower, other type            25         25         23         23         23
  follower as i-1                 25         25         82         82         82
  follower as i-1, alien          25         25         23         23         23
  follower as i-9                 25         25         25         25         25
  leader                          25         25         park       0          park>Prep
  leader, last                    .          .          0>Compl    .          .
  leader, changed                 25         25         park       park>Prep  park>Prep
  rejoiner                        25         25         park       park>Prep  park>Prep
  static                          25         25         park       0          0
  static, changed                 25         25         park       park>Prep  park>Prep
  static by id                    25         25         park       0          0
  fenced                          25         25         82         82         82
  fenced, alien                   25         25         23         23         23
  fenced by id                    25         25         25         25         25
  new, full                       79>Empty   79         81         81         81
  new, alien, full                79>Empty   79         81         81         81
  new static, full                park>Prep  park>Prep  81         81         81
  restarted, full                 park>Prep  park>Prep  park       park>Prep  0
  unknown, full                   25         25         81         81         81
  follower, full                  25         25         park       0          0
  new, unreadable                 79>Empty   79         79         79         79
  follower, last, unreadable      .          .          0>Compl    .          .
  restarted, unreadable           park>Prep  park>Prep  park       park>Prep  0

SyncGroup                         missing    Empty      Prep       Compl      Stable
  unknown                         25         25         25         25         25
  nobody                          25         25         25         25         25
  pending                         .          25         25         25         25
  follower                        25         25         27         park       0
  follower, named                 25         25         27         park       0
  follower, assigns               25         25         27         park       0
  follower, assigns a stranger    25         25         27         park       0
  follower, old                   25         25         22         22         22
  follower, future                25         25         22         22         22
  follower, other type            25         25         23         23         23
  follower, other name            25         25         23         23         23
  follower, other type, old       25         25         22         22         22
  follower as i-1                 25         25         82         82         82
  follower as i-1, old            25         25         82         82         82
  follower as i-9                 25         25         25         25         25
  leader                          25         25         27         0>Stable   0
  leader, assigns                 25         25         27         0>Stable   0
  leader, assigns a stranger      25         25         27         42>Prep    0
  leader, assigns one twice       25         25         27         42>Prep    0
  leader, assigns garbage         25         25         27         0>Stable   0
  leader, old                     25         25         22         22         22
  leader, future                  25         25         22         22         22
  static                          25         25         27         park       0
  static, old                     25         25         22         22         22
  static, future                  25         25         22         22         22
  static by id                    25         25         27         park       0
  fenced                          25         25         82         82         82
  fenced, old                     25         25         82         82         82
  fenced, other type              25         25         82         82         82
  fenced by id                    25         25         25         25         25

Heartbeat                         missing    Empty      Prep       Compl      Stable
  unknown                         25         25         25         25         25
  unknown, old                    25         25         25         25         25
  nobody                          25         25         25         25         25
  pending                         .          25         25         25         25
  follower                        25         25         27         0          0
  follower, old                   25         25         22         22         22
  follower, future                25         25         22         22         22
  follower as i-1                 25         25         82         82         82
  follower as i-9                 25         25         25         25         25
  leader                          25         25         27         0          0
  rejoiner                        25         25         27         0          0
  static                          25         25         27         0          0
  static, old                     25         25         22         22         22
  static, future                  25         25         22         22         22
  static by id                    25         25         27         0          0
  fenced                          25         25         82         82         82
  fenced, old                     25         25         82         82         82
  fenced by id                    25         25         25         25         25

LeaveGroup                        missing    Empty      Prep       Compl      Stable
  unknown                         25         25         25         25         25
  nobody                          25         25         25         25         25
  pending                         .          0          0          0          0
  follower                        25         25         0          0>Prep     0>Prep
  follower as i-1                 25         25         82         82         82
  follower as i-9                 25         25         25         25         25
  leader                          25         25         0          0>Prep     0>Prep
  rejoiner                        25         25         0          0>Prep     0>Prep
  static                          25         25         0          0>Prep     0>Prep
  static by id                    25         25         0          0>Prep     0>Prep
  fenced                          25         25         82         82         82
  fenced by id                    25         25         25         25         25
  admin of i-1                    25         25         0          0>Prep     0>Prep
  admin of i-9                    25         25         25         25         25
  all but rejoiner                25         25         0>Compl    0>Prep     0>Prep
  everyone                        25         25         0>Empty    0>Empty    0>Empty

OffsetCommit                      missing    Empty      Prep       Compl      Stable
  nobody, no generation           0>Empty    0          25         25         25
  nobody                          69         25         25         25         25
  nobody, no generation, nothing  0          0          0          0          0
  nobody, no generation, expects 5  1003     1003       25         25         25
  nobody, no generation, long metadata  12   12         25         25         25
  unknown                         69         25         25         25         25
  unknown, no generation          0>Empty    0          25         25         25
  unknown, old                    69         25         25         25         25
  unknown, nothing                0          0          0          0          0
  pending                         .          25         25         25         25
  new static, no generation       0>Empty    0          25         25         25
  restarted, no generation        0>Empty    0          82         82         82
  follower                        69         25         0          27         0
  follower, no generation         0>Empty    0          22         22         22
  follower, old                   69         25         22         22         22
  follower, future                69         25         22         22         22
  follower, another's             69         25         1002       27         1002
  follower, another's, old        69         25         22         22         22
  follower, long metadata         69         25         12         27         12
  follower, expects 5             69         25         1003       27         1003
  follower as i-1                 69         25         82         82         82
  follower as i-1, old            69         25         82         82         82
  follower as i-9                 69         25         25         25         25
  leader                          69         25         0          27         0
  rejoiner                        69         25         0          27         0
  rejoiner, old                   69         25         22         22         22
  static                          69         25         0          27         0
  static, old                     69         25         22         22         22
  static, future                  69         25         22         22         22
  static by id                    69         25         0          27         0
  fenced                          69         25         82         82         82
  fenced, old                     69         25         82         82         82
  fenced, future                  69         25         82         82         82
  fenced by id                    69         25         25         25         25

OffsetFetch                       missing    Empty      Prep       Compl      Stable
  one partition                   0          0          0          0          0
  all partitions                  0          0          0          0          0

DescribeGroups                    missing    Empty      Prep       Compl      Stable
  anybody                         69         0          0          0          0

ListGroups                        missing    Empty      Prep       Compl      Stable
  any state                       69         0          0          0          0
  Empty                           69         0          69         69         69
  preparingrebalance              69         69         0          69         69
  CompletingRebalance, classic    69         69         69         0          69
  STABLE, CLASSIC                 69         69         69         69         0
  any state, consumer             69         69         69         69         69
  Resting                         69         69         69         69         69

DeleteGroups                      missing    Empty      Prep       Compl      Stable
  anybody                         69         0>missing  68         68         68
  with a pending id               .          0>missing  68         68         68

OffsetDelete                      missing    Empty      Prep       Compl      Stable
  flights                         69         0          86         86         86
  trains                          69         0          0          0          0
  flights, first                  .          .          0          86         .
  flights, connect                69         0          68         68         68
  flights, unreadable             69         0          86         86         86
  trains, unreadable              69         0          86         86         86

DrainMember                       missing    Empty      Prep       Compl      Stable
  leader                          69         25         0          0>Prep     0>Prep
  static                          69         25         0          0>Prep     0>Prep
  somebody                        69         25         25         25         25

AlterOffsets                      missing    Empty      Prep       Compl      Stable
  nobody's                        0>Empty    0          0          0          0
  nobody's, wrong                 1003       1003       1003       1003       1003
  nobody's, connect               0>Empty    0          1009       1009       1009
  nobody's, unreadable            0>Empty    0          0          0          0
  leader's                        0>Empty    0          1009       1009       1009
  leader's, first                 .          .          0          0          .
  leader's, removed               0>Empty    0          0          0>Prep     0>Prep
  leader's, removed, wrong        1003       1003       1003       1003       1003
  static's, removed               0>Empty    0          0          0>Prep     0>Prep

AlterGroupRetention               missing    Empty      Prep       Compl      Stable
  an hour                         69         0          0          0          0
  for ever                        69         0          0          0          0
  the setting                     69         0          0          0          0

DescribeRebalances                missing    Empty      Prep       Compl      Stable
  anybody                         69         0          0          0          0

DescribeLag                       missing    Empty      Prep       Compl      Stable
  anybody                         69         0          0          0          0
"""

GROUP_KINDS = {"full", "first", "connect", "unreadable"}

# What an answer with one of these codes must not have changed.
NOTHING_DONE = {22, 23, 25, 26, 27, 68, 69, 81, 82, 86, 12, 42, 1002, 1003, 1009}
# Clients show these to people: the answer says in words what is wrong. (A heartbeat's 27 is on
# the hot path and comes by the thousand; the JoinGroup that follows says why.)
IN_WORDS = {22, 25, 27, 82}


class Row(NamedTuple):
    """One request in one state."""

    api: str
    who: str
    how: frozenset[str]
    kind: str
    state: str
    expected: int | str
    state_after: str

    @property
    def name(self) -> str:
        """The row in one line."""
        words = [self.who, *sorted(self.how), *([self.kind] if self.kind else [])]
        return f"{self.api}: {', '.join(words)} @ {self.state}"


def rows() -> Iterator[Row]:
    """Read the table."""
    api, states = "", list[str]()
    for line in TABLE.splitlines():
        if not line.strip():
            continue
        if not line.startswith(" "):
            api, *states = line.split()
            continue
        words = line.split()
        asked, cells = " ".join(words[: -len(states)]), words[-len(states) :]
        who, *how = asked.split(", ")
        kind = next((word for word in how if word in GROUP_KINDS), "")
        for state, cell in zip(states, cells, strict=True):
            if cell == ".":
                continue
            code, _, after = cell.partition(">")
            expected = PARKED if code == PARKED else int(code)
            rest = frozenset(how) - {kind}
            yield Row(api, who, rest, kind, state, expected, after or state)


ROWS = list(rows())


def look(here: Scene) -> tuple[object, ...]:
    """Return everything that others can see of the group, and what a crash would leave."""
    return here.context.describe(), here.context.shard.hard_state()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_request_in_each_state_is_answered_by_the_table(row: Row) -> None:
    """The exact code decides what a client does next; a refusal does nothing else."""
    here = scene(row.state, row.kind)
    before = look(here)

    actual, message = APIS[row.api](here, row.who, set(row.how))

    assert (row.expected, row.state_after) == (actual, here.state)
    here.context.check()
    if actual in NOTHING_DONE and row.state == row.state_after and row.who[:7] != "pending":
        assert before == look(here)
    if actual in IN_WORDS and (row.api, actual) != ("Heartbeat", 27):
        assert message


def test_the_table_is_whole() -> None:
    """Every API in every state, and enough rows to be called a specification."""
    assert len(ROWS) == len({row.name for row in ROWS})
    assert len(ROWS) >= 250
    states = (MISSING, "Empty", "Prep", "Compl", "Stable")
    assert {(api, state) for api in APIS for state in states} == {(r.api, r.state) for r in ROWS}


@pytest.mark.parametrize("api", ["SyncGroup", "Heartbeat", "OffsetCommit"])
@pytest.mark.parametrize("state", ["missing", "Empty", "Prep", "Compl", "Stable"])
def test_whoever_may_ask_is_in_the_table(api: str, state: str) -> None:
    """The six kinds of askers of which each breaks another fence."""
    asked = {(r.who, r.how) for r in ROWS if (r.api, r.state) == (api, state)}
    plain = {("unknown", frozenset[str]()), ("follower", frozenset()), ("static", frozenset())}
    generations = {
        (who, frozenset({generation}))
        for who in ("follower", "static")
        for generation in ("old", "future")
    }

    assert asked >= plain | generations | {("fenced", frozenset())}


@pytest.mark.parametrize("state", ["Prep", "Compl"])
def test_what_is_parked_is_answered_when_the_partition_goes_elsewhere(state: str) -> None:
    """16 tells the client to look for the new coordinator; silence would cost it its session."""
    here = scene(state)
    if state == "Compl":
        here.sync("follower")
    parked = here.context.unanswered()
    assert parked

    for outcome in here.context.shard.unload(here.context.now):
        here.context.take(outcome)

    answers = [here.context.answers[token] for token in parked]
    assert [16] * len(answers) == [answer.error for answer in answers]  # type: ignore[attr-defined]  # joins and syncs


@pytest.mark.parametrize("state", ["Prep", "Compl", "Stable"])
def test_errors_keep_the_full_shape_of_their_answer(state: str) -> None:
    """A client decodes one layout, whatever the error is."""
    here = scene(state)

    joined = here.context.joined(here.join("spark-ffff"))
    synced = here.context.synced(here.context.sync(here.ids["follower"], 99))

    nobody = m.JoinGroupResponse(25, -1, None, None, "", False, "spark-ffff", ())
    assert nobody == structs.replace(joined, message=None)
    assert m.SyncGroupResponse(22, None, None, b"") == structs.replace(synced, message=None)
