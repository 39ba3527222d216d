"""Whom each partition belonged to, as far as the members' claims can be trusted."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from client.assignors.user_data import Previous
from protocol.types import TopicPartition


class Claims(NamedTuple):
    """The claims of all members, settled.

    ``owner`` is who had a partition in the newest generation in which anybody says so; a
    partition that two claim of that generation has none. ``previous`` is who had it in an
    older generation. Both are ordered by number and topic: who has too many loses the highest
    numbers of all topics, not all of one topic. ``claimants`` are all who claim a partition.
    """

    owner: dict[TopicPartition, str]
    previous: dict[TopicPartition, str]
    claimants: dict[TopicPartition, set[str]]


def settle(claims: Mapping[str, Previous], existing: Iterable[TopicPartition]) -> Claims:
    """Settle what each member claims (by member id) of the *existing* partitions.

    A claim of a lower generation is worth nothing against a higher one: its holder missed a
    rebalance. Two claims of one generation contradict each other; neither is believed.
    """
    owner: dict[TopicPartition, str | None] = {}
    previous: dict[TopicPartition, str] = {}
    claimants: dict[TopicPartition, set[str]] = {}
    newest_first = sorted(claims, key=lambda one: (-claims[one].generation, one))
    for _, same_generation in groupby(newest_first, key=lambda one: claims[one].generation):
        said = _of_one_generation(list(same_generation), claims, claimants)
        for tp, member_id in said.items():
            if tp not in owner:
                owner[tp] = member_id
            elif member_id is not None:
                previous.setdefault(tp, member_id)
    order = sorted(set(existing) & claimants.keys(), key=lambda tp: (tp.partition, tp.topic))
    return Claims(
        {tp: who for tp in order if (who := owner[tp]) is not None},
        {tp: previous[tp] for tp in order if tp in previous},
        claimants,
    )


def _of_one_generation(
    member_ids: Sequence[str],
    claims: Mapping[str, Previous],
    claimants: dict[TopicPartition, set[str]],
) -> dict[TopicPartition, str | None]:
    said: dict[TopicPartition, str | None] = {}
    for member_id in member_ids:
        for tp in set(claims[member_id].owned):
            said[tp] = None if tp in said else member_id
            claimants.setdefault(tp, set()).add(member_id)
    return said
