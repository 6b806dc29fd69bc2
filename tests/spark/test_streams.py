"""A query that is told to stop, without Spark and Kafka: the batch in hand is finished, and none is begun."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyspark.errors import PySparkException, PythonException

from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.spark.failures import AGAIN
from headstone.spark.streams import follow_kafka

PATIENCE_S = 60
SOON_S = 0.5
"""More than it takes until somebody looks whether to stop."""


class Query:
    """In the place of Spark's, from its reader to its end: micro-batches on a thread, for which `stop` waits."""

    def __init__(self, batches: int, between: Callable[[int], None] = lambda number: None) -> None:
        self._batches, self._between = batches, between
        self._body: Callable[[Any, int], None] = lambda batch, number: None
        self._thread = threading.Thread(target=self._run)
        self.stopping = threading.Event()
        self.work = Path()

    @property
    def readStream(self) -> Query:
        return self

    writeStream = readStream

    def format(self, name: str) -> Query:
        return self

    def options(self, **given: str) -> Query:
        return self

    def load(self) -> Query:
        return self

    def selectExpr(self, *columns: str) -> Query:
        return self

    def foreachBatch(self, body: Callable[[Any, int], None]) -> Query:
        self._body = body
        return self

    def option(self, name: str, value: str) -> Query:
        self.work = Path(urlparse(value).path)
        return self

    def trigger(self, **given: object) -> Query:
        return self

    def start(self) -> Query:
        self._thread.start()
        return self

    def awaitTermination(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        (self.work / "offsets").mkdir()
        for number in range(self._batches):
            if self.stopping.is_set():
                return
            (self.work / "offsets" / str(number)).write_text(f'v1\n{{"t": {{"0": {number + 1}}}}}')
            with suppress(HeadstoneError):  # Spark tells it by an exception of its own
                self._body(None, number)
            self._between(number)


def followed(query: Query, land: Callable[..., None], stop: Callable[[], bool]) -> bool:
    return follow_kafka(query, {}, (), land, every_ms=None, stop=stop)  # type: ignore[arg-type]


def test_all_batches_are_given_with_their_ends() -> None:
    seen: list[Any] = []
    assert followed(Query(3), lambda *given: seen.append(given), lambda: False)
    assert seen == [(None, number, {("t", 0): number + 1}) for number in range(3)]


def test_the_batch_in_hand_is_finished_and_none_after_it_is_begun() -> None:
    """The signal comes in the second, which nobody cuts short."""
    stop, query = threading.Event(), Query(1000)
    cut = {}

    def land(batch: None, number: int, ends: object) -> None:
        if number == 1:
            stop.set()
        cut[number] = query.stopping.wait(SOON_S)

    assert not followed(query, land, stop.is_set)
    assert cut == {0: False, 1: False}


def test_what_goes_wrong_in_the_batch_in_hand_is_told_though_it_was_stopped() -> None:
    stop = threading.Event()

    def land(*given: object) -> None:
        stop.set()
        raise UsageError("the records are large")

    with pytest.raises(UsageError, match="the records are large"):
        followed(Query(2), land, stop.is_set)


class FailingQuery(Query):
    """As Spark does it: a batch that raises ends the query, which tells of it in its own words."""

    def awaitTermination(self, seconds: float) -> bool:
        if not super().awaitTermination(seconds):
            return False
        raise PySparkException(
            "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
            f'  File "work.py", line 1\n{self.raised!r}'
        )

    def _run(self) -> None:
        try:
            super()._run()
        except (KeyError, PySparkException) as error:
            self.raised = error


OWN = PythonException('Traceback (most recent call last):\n  File "work.py", line 1\nKeyError: 3')


@pytest.mark.parametrize("error", [KeyError(3), OWN], ids=["in the driver", "in a task"])
def test_an_error_of_our_own_code_is_told_as_it_is_and_not_to_be_tried_again(error: Exception) -> None:
    def land(*given: object) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        followed(FailingQuery(1), land, lambda: False)
    assert caught.value is error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Caused by: java.io.IOException: Connection reset by peer",
            "the stream ended; run the same command again to go on",
        ),
        (
            "Caused by: org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed",
            "the cluster refuses it: mend the login or its ACLs: Authentication failed",
        ),
    ],
)
def test_what_would_come_again_is_not_to_be_tried_again(text: str, said: str) -> None:
    def land(*given: object) -> None:
        raise PySparkException(f"Job aborted\n{text}\n\tat x")

    with pytest.raises(Unfinished, match=said) as caught:
        followed(FailingQuery(1), land, lambda: False)
    assert (AGAIN in str(caught.value)) == (AGAIN in said)


def test_a_batch_that_comes_between_the_signal_and_its_end_is_left_out() -> None:
    """Spark begins the next batch before anybody has stopped the query, which waits for it."""
    stop, seen = threading.Event(), []
    query = Query(2, between=lambda number: stop.set())
    assert not followed(query, lambda batch, number, ends: seen.append(number), stop.is_set)
    assert seen == [0]
