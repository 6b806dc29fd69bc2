"""Whether logs are replicas of one partition at all, by the ids beside them and by their contents.

Logs of two partitions differ nearly everywhere, and no finding about them means anything: copying one over the other would lose
it. Pure: the caller reads ids and records.
"""

from __future__ import annotations

from collections.abc import Mapping

from headstone import units

Pair = tuple[str, str]
"""Two replicas by their names."""

COMMON_MIN = 20
"""Fewer common offsets prove nothing: a short tail after an unclean election may differ completely."""
DIFFERENT_SHARE = 0.9

CLUSTERS = "they are of different clusters"
TOPICS = "different topics of the same name"
CONTENTS = "their contents differ nearly everywhere"


def different_ids(cluster_ids: Mapping[str, str | None], topic_ids: Mapping[str, str | None]) -> str | None:
    """Ids by replica; None if unknown. A topic that was created again has another id, and its offsets began anew."""
    for what, ids in ((CLUSTERS, cluster_ids), (TOPICS, topic_ids)):
        by_name = {name: some for name, some in sorted(ids.items()) if some is not None}
        if len(set(by_name.values())) > 1:
            noun = "cluster.id" if what == CLUSTERS else "topic id"
            return f"{what}: {', '.join(f'{name} has {noun} {some}' for name, some in by_name.items())}"
    return None


def different_contents(pairs: Mapping[Pair, tuple[int, int]]) -> str | None:
    """`pairs`: how many offsets both hold below their high watermarks, and at how many of these the records differ."""
    for (left, right), (common, differing) in sorted(pairs.items()):
        if common >= COMMON_MIN and differing >= DIFFERENT_SHARE * common:
            return (
                f"{CONTENTS}: at {differing:,} of {units.count(common, 'offset')} that both hold, {left} and {right} have "
                "different records"
            )
    return None
