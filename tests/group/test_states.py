"""The state table, and the picture of it."""

from pathlib import Path

import pytest

from coordinator.group.states import TRANSITIONS, GroupState, Trigger, diagram, next_state

DOCUMENT = Path(__file__).parents[2] / "docs" / "group-states.md"


def test_the_picture_in_the_documentation_is_that_of_the_table() -> None:
    """A drawing that nobody compares lies within a year."""
    block = f"```mermaid\n{diagram()}```\n"

    assert block in DOCUMENT.read_text(encoding="utf-8"), (
        "paste what coordinator.group.states.diagram() returns into docs/group-states.md"
    )


def test_the_states_carry_kafkas_names() -> None:
    """They are on the wire."""
    assert [state.value for state in GroupState] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]


def test_only_the_edges_of_the_reference_are_there() -> None:
    """Kafka's valid transitions, and the two of a load."""
    empty, preparing, completing, stable, dead = GroupState
    allowed = {
        preparing: {stable, completing, empty},
        completing: {preparing},
        stable: {completing, empty},
        empty: {preparing},
        dead: {empty, preparing, completing, stable},
    }

    assert all(source in allowed[target] for (source, _), target in TRANSITIONS.items())


def test_nothing_leads_out_of_dead() -> None:
    """A deleted group's name makes a new group."""
    assert all(source is not GroupState.DEAD for source, _ in TRANSITIONS)


def test_every_trigger_is_used() -> None:
    """The table has no words for what can't happen."""
    assert set(Trigger) == {trigger for _, trigger in TRANSITIONS}


def test_a_missing_edge_is_our_bug() -> None:
    """Better to stop than to go on in a state that nobody thought of."""
    with pytest.raises(AssertionError, match="no edge"):
        next_state(GroupState.DEAD, Trigger.MEMBER_JOINED)
