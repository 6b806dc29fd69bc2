"""What the guard does, in the words of Kafka's own tools."""

from __future__ import annotations

from headstone.guard.commands import hold, hold_by_default, release, release_default

TOOL = "kafka-configs.sh --bootstrap-server"
LONG_MAX = "9223372036854775807"


def test_a_hold_and_its_release_say_exactly_what_is_set_and_what_is_put_back() -> None:
    assert hold("orders", bootstrap="k1:9092") == (
        f"{TOOL} k1:9092 --entity-type topics --entity-name orders --alter --add-config min.cleanable.dirty.ratio=1.0,"
        f"min.compaction.lag.ms={LONG_MAX},max.compaction.lag.ms={LONG_MAX}"
    )
    found = (("min.cleanable.dirty.ratio", "0.2"), ("min.compaction.lag.ms", None), ("max.compaction.lag.ms", None))
    assert release("orders", found, bootstrap="k1:9092") == (
        f"{TOOL} k1:9092 --entity-type topics --entity-name orders --alter --add-config min.cleanable.dirty.ratio=0.2 "
        "--delete-config min.compaction.lag.ms,max.compaction.lag.ms"
    )


def test_the_hold_by_default_is_of_all_brokers() -> None:
    assert hold_by_default() == (
        f"{TOOL} BOOTSTRAP --entity-type brokers --entity-default --alter --add-config log.cleaner.min.cleanable.ratio=1.0,"
        f"log.cleaner.min.compaction.lag.ms={LONG_MAX},log.cleaner.max.compaction.lag.ms={LONG_MAX}"
    )
    assert release_default((("log.cleaner.min.cleanable.ratio", None),)) == (
        f"{TOOL} BOOTSTRAP --entity-type brokers --entity-default --alter --delete-config log.cleaner.min.cleanable.ratio"
    )
