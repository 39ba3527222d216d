"""Which node is to lead which journal, as every node works it out for itself."""

from typing import Final

from hypothesis import given, strategies as st

from coordinator.cluster.plan import plan

JOURNALS: Final = st.integers(1, 12)
NODES: Final = st.sets(st.integers(0, 6), min_size=1)
SOMEBODY: Final = st.none() | st.integers(0, 8)  # Perhaps a node that isn't ready.


@given(nodes=NODES, data=st.data(), count=JOURNALS)
def test_everyone_gets_the_same_or_one_less_and_keeps_what_is_not_too_much(
    nodes: set[int], data: st.DataObject, count: int
) -> None:
    """Who has too much is slow for all, and each journal that moves is a pause for its groups."""
    leaders = {journal: data.draw(SOMEBODY) for journal in range(count)}
    moved = data.draw(st.sets(st.integers(0, count - 1)))
    planned = plan(nodes, leaders, moved)
    loads = [list(planned.values()).count(node) for node in nodes]
    had = {node: [j for j in leaders if leaders[j] == node] for node in nodes}

    assert planned.keys() == leaders.keys()
    assert set(planned.values()) <= nodes
    assert max(loads) - min(loads) <= 1
    for node in nodes:
        kept = [journal for journal in had[node] if planned[journal] == node]
        assert len(kept) == min(len(had[node]), list(planned.values()).count(node))
        lost = set(had[node]) - set(kept)
        assert not (lost & moved) or set(kept) <= moved


def test_what_an_operator_has_moved_goes_last() -> None:
    """Else the node that has just got it would give it away at once, as it has too many."""
    leaders: dict[int, int | None] = {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 3}

    assert [plan({1, 2, 3}, leaders)[journal] for journal in (2, 3, 4)] == [2, 2, 3]
    assert [plan({1, 2, 3}, leaders, {4})[journal] for journal in (2, 3, 4)] == [2, 3, 2]
