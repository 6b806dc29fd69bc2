"""Object-store faults are part of life: refused and lost requests, cut-off answers, slow ones, an expired credential."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from headstone.errors import Unfinished, UsageError
from headstone.storage.stores import Store
from testbed.faulty_s3 import (
    ANSWER_LOST,
    EXPIRED_TOKEN,
    SLOW_DOWN,
    CutOff,
    Delay,
    ExpiredFor,
    Fault,
    Request,
    SeededFaults,
    faulty_s3,
)

PART_BYTES = 5 << 20


class Once:
    """The first request of a method meets the fault."""

    def __init__(self, method: str, fault: Fault, *, path_has: str = "") -> None:
        self._method = method
        self._path_has = path_has
        self._fault: Fault | None = fault

    def __call__(self, request: Request) -> Fault | None:
        if request.method != self._method or self._path_has not in request.path:
            return None
        fault, self._fault = self._fault, None
        return fault


@pytest.mark.parametrize(
    "fault",
    [SLOW_DOWN, CutOff(share=0.5), ANSWER_LOST, Delay(seconds=0.2)],
    ids=["503", "cut off", "answer lost", "slow"],
)
def test_a_read_survives_one_fault(fault: Fault, moto_settings: Mapping[str, str], empty_url: str) -> None:
    content = random.Random(1).randbytes(300_000)
    with faulty_s3(moto_settings) as proxy:
        store = Store.open(empty_url, proxy.settings)
        store.put("object", content)
        proxy.decide = Once("GET", fault)
        assert store.read("object", 0, len(content)) == content
        assert sum(proxy.counts.faults.values()) == 1


@pytest.mark.parametrize("seed", range(3))
def test_whole_objects_come_back_through_a_bad_network(seed: int, server: Mapping[str, str], empty_url: str) -> None:
    """What is written, listed and read through a proxy with seeded faults is what was given."""
    chance = random.Random(seed)
    contents = {f"{number:02}": chance.randbytes(chance.randrange(200_000)) for number in range(12)}
    large = chance.randbytes(2 * PART_BYTES + 1)
    faults = SeededFaults(seed, slow_down=0.15, cut_off=0.1, lost=0.1, delay=0.1)
    with faulty_s3(server, faults) as proxy:
        store = Store.open(empty_url, proxy.settings)
        for name, content in contents.items():
            store.put(name, content)
        with store.writing("large", part_bytes=PART_BYTES) as sink:
            sink.write(large)
        assert store.list() == sorted([*contents, "large"])
        for name, content in {**contents, "large": large}.items():
            assert store.read(name, 0, len(content)) == content
        assert sum(proxy.counts.faults.values()) > 5


def test_an_expired_credential_is_told_and_works_again_once_renewed(
    moto_settings: Mapping[str, str], empty_url: str
) -> None:
    with faulty_s3(moto_settings, ExpiredFor(1)) as proxy:
        store = Store.open(empty_url, proxy.settings)
        with pytest.raises(UsageError, match=r"access refused.*ExpiredToken"):
            store.put("object", b"1")
        store.put("object", b"1")
        assert store.read("object", 0, 1) == b"1"


def test_one_who_created_an_object_and_lost_the_answer_has_not_lost(server: Mapping[str, str], empty_url: str) -> None:
    """A repeated request finds the object of the first: whoever created it must not be told that somebody else did."""
    with faulty_s3(server, Once("PUT", ANSWER_LOST)) as proxy:
        store = Store.open(empty_url, proxy.settings)
        assert store.put("object", b"first", create=True)
        assert not store.put("object", b"other", create=True)
        assert store.read("object", 0, 5) == b"first"


def test_an_upload_whose_last_answer_was_lost_is_done(server: Mapping[str, str], empty_url: str) -> None:
    content = random.Random(2).randbytes(PART_BYTES + 1)
    with faulty_s3(server, Once("POST", ANSWER_LOST, path_has="uploadId=")) as proxy:
        store = Store.open(empty_url, proxy.settings)
        with store.writing("object", part_bytes=PART_BYTES) as sink:
            sink.write(content)
        assert store.read("object", 0, len(content)) == content
        assert proxy.counts.faults == {"CutOff": 1}


def test_an_upload_that_was_not_completed_is_told(server: Mapping[str, str], empty_url: str) -> None:
    with faulty_s3(server, Once("POST", EXPIRED_TOKEN, path_has="uploadId=")) as proxy:
        store = Store.open(empty_url, proxy.settings)
        with (
            pytest.raises(Unfinished, match=rf"{store.url}/object: .*ExpiredToken"),
            store.writing("object", part_bytes=PART_BYTES) as sink,
        ):
            sink.write(bytes(PART_BYTES + 1))
        assert store.list() == []


def test_a_listing_that_is_cut_off_is_asked_for_again(server: Mapping[str, str], empty_url: str) -> None:
    with faulty_s3(server) as proxy:
        store = Store.open(empty_url, proxy.settings)
        for name in ("a/0", "b"):
            store.put(name, b"")
        proxy.decide = Once("GET", CutOff(share=0.5))
        assert store.list() == ["a/0", "b"]
        proxy.decide = Once("GET", CutOff(share=0.5))
        assert sorted(entry.path for entry in store.children()) == ["a", "b"]
        assert proxy.counts.faults == {"CutOff": 2}
