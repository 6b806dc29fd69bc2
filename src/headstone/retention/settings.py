"""The one table of topic settings: Kafka's name, type, range, default, and the field of a Policy for each.

Pure. Command line flags, settings of the lake's topics and what is copied from a cluster derive from it. Where settings come
from, and which of them win, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from headstone.bounds import INT_MAX
from headstone.errors import UsageError
from headstone.retention.policy import NO_LIMIT, Policy
from headstone.spelling import instead
from headstone.units import parse_duration_ms

NO_RETENTION_MS = -1
CLEANUP_POLICY = "cleanup.policy"
CLEANUP_POLICIES = ("compact", "delete", "compact,delete", "delete,compact")
SOURCE, SOURCE_LAKE = "headstone.source", "lake"
DEAD_AGE_MAX = "headstone.dead.age.max.ms"

IN_FORCE, IF_SET, NOT = "in force", "if set", "not"
"""What is copied from a topic: its value, wherever it is set; its value if it was set for the topic itself; or nothing."""

_DEFAULTS = {field.name: field.default for field in fields(Policy)}


def policies_of(text: str) -> frozenset[str]:
    """The policies in `cleanup.policy`; an empty text has none."""
    return frozenset(word.strip() for word in text.split(",") if word.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """`field` is None if no rule uses it. `kind` is int, float or str; a range is of numbers, ends included."""

    name: str
    about: str
    kind: type[int] | type[float] | type[str]
    field: str | None = None
    low: float = 0
    high: float = NO_LIMIT
    copied: str = NOT
    flag: bool = True
    """Whether a compaction accepts it as an option."""
    of_kafka: bool = True
    """Whether a broker knows it; the others are the lake's own."""

    @property
    def option(self) -> str:
        """Its name where dots are not allowed."""
        return self.name.replace(".", "_")

    @property
    def is_duration(self) -> bool:
        return self.name.endswith(".ms")

    @property
    def default(self) -> Any:
        """Kafka's default; None if no rule uses it."""
        if self.name == CLEANUP_POLICY:
            return "compact"
        return None if self.field is None else _DEFAULTS[self.field]

    def parsed(self, text: object) -> Any:
        """Does not check the range: a cluster has its own."""
        try:
            return parse_duration_ms(str(text)) if self.is_duration else self.kind(str(text))
        except ValueError as error:
            what = str(error) if self.is_duration else f"{text!r} is not a number"
            raise UsageError(f"{self.name} of the topic: {what}") from error


TOPIC_SETTINGS = (
    TopicSetting(
        name=CLEANUP_POLICY, field="cleanup_delete", kind=str, copied=IN_FORCE,
        about="compact; or compact,delete to apply retention.ms and retention.bytes as well",
    ),
    TopicSetting(
        name="delete.retention.ms", field="delete_retention_ms", kind=int, copied=IN_FORCE,
        about="how long tombstones and markers are kept after they were first cleaned",
    ),
    TopicSetting(
        name="min.cleanable.dirty.ratio", field="min_cleanable_dirty_ratio", kind=float, high=1, copied=IN_FORCE,
        about="with --eligible: the share of dirty bytes above which a partition is cleaned",
    ),
    TopicSetting(
        name="min.compaction.lag.ms", field="min_compaction_lag_ms", kind=int, copied=IN_FORCE,
        about="segments with a newer record are not cleaned",
    ),
    TopicSetting(
        name="max.compaction.lag.ms", field="max_compaction_lag_ms", kind=int, low=1, copied=IN_FORCE,
        about="with --eligible: a partition with older dirty records is due whatever its dirty ratio",
    ),
    TopicSetting(
        name="segment.bytes", field="segment_bytes", kind=int, low=14, high=INT_MAX,
        about="maximum size of new segments, in bytes",
    ),
    TopicSetting(
        name="internal.segment.bytes", field="segment_bytes", kind=int, low=14, high=INT_MAX, flag=False,
        about="overrides segment.bytes",
    ),
    TopicSetting(
        name="segment.index.bytes", field="segment_index_bytes", kind=int, low=4, high=INT_MAX,
        about="maximum size of the indexes of new segments, in bytes",
    ),
    TopicSetting(
        name="index.interval.bytes", field="index_interval_bytes", kind=int, high=INT_MAX,
        about="bytes of log between two index entries",
    ),
    TopicSetting(
        name="retention.ms", field="retention_ms", kind=int, low=-1, copied=IF_SET,
        about="with compact,delete: delete segments older than this; -1: never",
    ),
    TopicSetting(
        name="retention.bytes", field="retention_bytes", kind=int, low=-1, copied=IF_SET,
        about="with compact,delete: delete the oldest segments above this size; -1: never",
    ),
    TopicSetting(
        name="producer.id.expiration.ms", field="producer_id_expiration_ms", kind=int, low=1, high=INT_MAX,
        about="forget the state of producers that are inactive for longer",
    ),
    TopicSetting(name="max.message.bytes", kind=int, copied=IF_SET, flag=False, about="maximum batch size, in bytes"),
    TopicSetting(name="compression.type", kind=str, copied=IF_SET, flag=False, about="a codec, or producer"),
    TopicSetting(
        name=DEAD_AGE_MAX, kind=int, low=-1, flag=False, of_kafka=False,
        about="how long dead records may stay in the lake's objects; -1: no limit",
    ),
    TopicSetting(
        name=SOURCE, kind=str, flag=False, of_kafka=False,
        about="lake: records are written to the topic in the lake, so its offsets are no longer Kafka's and ingest refuses it",
    ),
)  # fmt: skip
"""A later setting of the same field wins, as `internal.segment.bytes` does in a broker."""

BY_NAME = {setting.name: setting for setting in TOPIC_SETTINGS}
FIELDS = frozenset(setting.field for setting in TOPIC_SETTINGS if setting.field is not None)


def names_copied(how: str) -> tuple[str, ...]:
    """`how`: IN_FORCE, IF_SET or NOT."""
    return tuple(setting.name for setting in TOPIC_SETTINGS if setting.copied == how)


def known_setting(name: str) -> TopicSetting:
    """UsageError for an unknown name, with suggestions."""
    if name not in BY_NAME:
        raise UsageError(f"no topic setting {name}{instead(name, BY_NAME, shown_max=len(BY_NAME))}")
    return BY_NAME[name]


def checked(name: str, text: object) -> str:
    """The stored form of a setting given for a topic; UsageError if its name or value is invalid."""
    setting = known_setting(name)
    value = setting.parsed(text)
    if name == CLEANUP_POLICY and (not policies_of(value) or policies_of(value) - {"compact", "delete"}):
        raise UsageError(f"{name} is compact, delete or compact,delete, not {text!r}")
    if setting.kind is not str and not setting.low <= value <= setting.high:
        raise UsageError(f"{name} is between {setting.low:g} and {setting.high:g}, not {text}")
    return str(value)


def kafka_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Those that a broker knows, for a topic to be created in Kafka."""
    return {name: str(value) for name, value in settings.items() if name not in BY_NAME or BY_NAME[name].of_kafka}


def setting_of(settings: Mapping[str, object], name: str) -> Any:
    """A topic's setting by Kafka's name, or its default."""
    return BY_NAME[name].parsed(settings[name]) if name in settings else BY_NAME[name].default


def retention_limits(settings: Mapping[str, object]) -> tuple[int | None, int | None]:
    """retention.ms and retention.bytes of a topic whose policy names both compact and delete; None: no limit.

    If the policy is only delete, every record is kept: an archive is there to outlive what Kafka has.

    Only explicit settings count: a topic without a limit is kept, whatever a broker's default is."""
    if not {"compact", "delete"} <= set(policies_of(str(settings.get(CLEANUP_POLICY, "")))):
        return None, None
    limits = [
        int(setting_of(settings, name)) if name in settings else -1 for name in ("retention.ms", "retention.bytes")
    ]
    ms, size = (limit if limit >= 0 else None for limit in limits)
    return ms, size


def with_settings(policy: Policy, settings: Mapping[str, str], fields: Collection[str]) -> Policy:
    """The policy with those of `fields` that the settings have; all others stay as they are.

    If the settings ask for deletion without a time, nothing is deleted by time: the broker may have another default.
    """
    changes = {
        setting.field: _field_value(setting, settings[setting.name])
        for setting in TOPIC_SETTINGS
        if setting.name in settings and setting.field in fields
    }
    if changes.get("cleanup_delete") and "retention.ms" not in settings and "retention_ms" in fields:
        changes["retention_ms"] = NO_RETENTION_MS
    return replace(policy, **{name: value for name, value in changes.items() if name is not None})


def _field_value(setting: TopicSetting, text: str) -> Any:
    """Only a policy of both deletes here: compacting a topic whose policy is only delete overrides that policy."""
    if setting.name == CLEANUP_POLICY:
        return {"compact", "delete"} <= policies_of(text)
    return setting.parsed(text)
