"""Whose time decides in a lake: its database's, or a given one. Every time that is stored or compared comes from here.

Workers, readers and collectors run on many hosts; leases, grace, retention and the past need one clock for all of them.
PostgreSQL has its own, read inside the transaction after its locks are taken. SQLite has none: the host's clock counts, but
never goes back behind a time that the lake has seen. A lake created with a given clock (tests, simulations) uses no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, delete, func, select, text, update

from headstone.errors import UsageError
from headstone.lake.metastore import schema
from headstone.units import duration, exact_duration, exact_moment, moment

SKEW_MS_MAX = 10_000
"""Between two clocks. Hosts that use a time server differ by milliseconds; a larger difference means a wrong clock."""
DATABASE, GIVEN = "database", "given"

STAMPS = (
    schema.lakes.c.clock_ms, schema.partitions.c.changed_ms, schema.partitions.c.known_from_ms, schema.extents.c.added_ms,
    schema.past_extents.c.added_ms, schema.past_extents.c.removed_ms, schema.objects.c.changed_ms,
    schema.tombstones.c.cleaned_at_ms, schema.requests.c.requested_ms, schema.erasures.c.requested_ms,
    schema.erasures.c.step_ms, schema.partitions.c.first_added_ms, schema.partitions.c.dead_since_ms,
    schema.extents.c.dead_since_ms, schema.past_extents.c.dead_since_ms, schema.past_starts.c.removed_ms,
    schema.objects.c.registered_ms, schema.lakes.c.listed_ms,
)  # fmt: skip
"""Columns with times of past events; none of them lies ahead of the clock."""

Clock = Callable[[], int]
"""Milliseconds since 1970."""
Moment = int | Clock
"""A given time, or a clock to be read once the locks are held: a transaction that waited for them must not be too early."""


class SkewedClock(UsageError):
    """A clock is wrong: nothing was changed. Set it right, then run the same command again."""


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


def read_clock(connection: Connection, given: Moment | None, host: Clock) -> int:
    """The lake's time. `given` counts only in a lake on a given clock; None is the newest time that it was given."""
    lake = connection.execute(select(schema.lakes.c.clock, schema.lakes.c.clock_ms)).one()
    if lake.clock == GIVEN:
        return int(lake.clock_ms) if given is None else given if isinstance(given, int) else given()
    if connection.dialect.name == "postgresql":
        return _server_ms(connection)
    host_ms = host()
    if host_ms < lake.clock_ms - SKEW_MS_MAX:
        raise SkewedClock(
            f"the clock of this host says {moment(host_ms)}, but the lake has seen {moment(lake.clock_ms)}: correct the clock; "
            "if it was ahead earlier and is correct now, run `headstone lake set-clock`"
        )
    if host_ms > lake.clock_ms:
        connection.execute(update(schema.lakes).values(clock_ms=host_ms))
    return max(host_ms, int(lake.clock_ms))


def follow(moment_ms: int, changed_ms: int, what: str) -> int:
    """The time of a commit to something last changed at `changed_ms`: never before that, and never far from the clock."""
    if moment_ms < changed_ms - SKEW_MS_MAX:
        raise SkewedClock(
            f"{what} was changed at {moment(changed_ms)}, {exact_duration(changed_ms - moment_ms)} ahead of the clock: a "
            "commit now would corrupt reads of the past; if the clock was ahead earlier, run `headstone lake set-clock`"
        )
    return max(moment_ms, changed_ms)


def refuse_untold(connection: Connection, moment_ms: int, changed_ms: int, host: Clock) -> None:
    """Refuses the future, and times around commits that are ahead of a clock that went back: those are undecided."""
    if connection.execute(select(schema.lakes.c.clock)).scalar_one() == GIVEN:
        return
    now_ms = read_clock(connection, None, host)
    if moment_ms > now_ms:
        raise UsageError(
            f"as of {exact_moment(moment_ms)}: {exact_duration(moment_ms - now_ms)} in the future of the lake's clock; name a "
            "time in the past"
        )
    if changed_ms - SKEW_MS_MAX < moment_ms and now_ms < changed_ms:
        raise SkewedClock(
            f"as of {exact_moment(moment_ms)}: the last commit, at {exact_moment(changed_ms)}, is ahead of the clock, which "
            f"was set back; name a time before {exact_moment(changed_ms - SKEW_MS_MAX)}, or retry later"
        )


def refuse_skew(connection: Connection, host: Clock) -> None:
    """Refuses a host whose clock differs from the database's: its logs and records' timestamps would not match the lake's."""
    if connection.dialect.name != "postgresql":
        return
    if connection.execute(select(schema.lakes.c.clock)).scalar_one() == GIVEN:
        return
    before_ms, server_ms, after_ms = host(), _server_ms(connection), host()
    skew_ms = max(before_ms - server_ms, server_ms - after_ms)
    if skew_ms > SKEW_MS_MAX:
        raise SkewedClock(
            f"the clock of this host says {moment(after_ms)}, that of the metastore {moment(server_ms)}: "
            f"{exact_duration(skew_ms)} apart, over {duration(SKEW_MS_MAX)}; synchronize the clocks"
        )


def times_ahead(connection: Connection, host: Clock) -> int:
    """Number of stored times that the clock has not reached: it was ahead once."""
    now_ms = _own_ms(connection, host)
    counted = (select(func.count()).select_from(column.table).where(column > now_ms) for column in STAMPS)
    return sum(connection.execute(query).scalar_one() for query in counted)


def bring_back(connection: Connection, host: Clock) -> None:
    """Times that the clock has not reached become now; commits with such times are all of one moment. Their order stays.

    Ends all leases, pins and waits after failures: one set by a wrong clock might never end."""
    now_ms = _own_ms(connection, host)
    for column in STAMPS:
        connection.execute(update(column.table).where(column > now_ms).values({column.name: now_ms}))
    connection.execute(update(schema.leases).values(worker="", expires_ms=0))
    for table in (schema.setbacks, schema.pins):
        connection.execute(delete(table))


def _own_ms(connection: Connection, host: Clock) -> int:
    return _server_ms(connection) if connection.dialect.name == "postgresql" else host()


def _server_ms(connection: Connection) -> int:
    """Not now(): that is the start of the transaction, which may have waited for locks since."""
    return int(
        connection.execute(text("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")).scalar_one()
    )
