"""Which partition directories the options of `kafka-log` choose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.spark.log_selection import LogSelection
from tests.logs import write_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two log directories; one has a partition that a broker is about to delete."""
    for name in ("b1/orders-0", "b1/orders-1", "b1/payments-0", "b2/orders-2", f"b1/orders-3.{'0' * 32}-delete"):
        folder, partition = name.split("/")
        write_log(tmp_path / folder, "N[a]", partition)
    (tmp_path / "b1" / "orders-notes.txt").write_text("not a directory")
    (tmp_path / "empty").mkdir()
    return tmp_path


def chosen(root: Path, *paths: str, **options: str) -> list[str]:
    named = [f"{root}/{path}" for path in paths]
    listed = "[" + ", ".join(f'"{path}"' for path in named) + "]"
    selection = LogSelection.of({**options, **({"path": named[0]} if len(named) == 1 else {"paths": listed})})
    return [f"{directory.log_dir.name}/{directory.name}" for directory in selection.directories()]


ORDERS = ["b1/orders-0", "b1/orders-1", "b2/orders-2"]


@pytest.mark.parametrize(
    ("paths", "options", "expected"),
    [
        (["b1"], {}, ["b1/orders-0", "b1/orders-1", "b1/payments-0"]),
        (["b*"], {"topic": "orders"}, ORDERS),
        (["*"], {"topic": "orders"}, ORDERS),
        (["*/orders-*"], {}, ORDERS),
        (["b[13]/orders-?"], {}, ["b1/orders-0", "b1/orders-1"]),
        (["*/payments-0/"], {}, ["b1/payments-0"]),
        (["b1/orders-0", "b2/*"], {}, ["b1/orders-0", "b2/orders-2"]),
        (["b1", "b1/orders-*"], {"topic": "payments, orders", "partitions": "1,0"}, [*ORDERS[:2], "b1/payments-0"]),
    ],
)
def test_paths_patterns_and_options(root: Path, paths: list[str], options: dict[str, str], expected: list[str]) -> None:
    assert chosen(root, *paths, **options) == expected


def test_a_directory_whose_name_looks_like_a_pattern_is_itself(root: Path) -> None:
    (root / "b1").rename(root / "b[12]")
    assert chosen(root, "b[12]", topic="payments") == ["b[12]/payments-0"]


@pytest.mark.parametrize(
    ("path", "options", "why"),
    [
        ("b3*", {}, "b3*: no partition directory and no log directory matches"),
        ("none/*", {}, "none/*: no partition directory and no log directory matches"),
        ("empty*", {}, "empty*: no partition directory and no log directory matches"),
        ("*/orders-3*", {}, "*/orders-3*: no partition directory and no log directory matches"),
        ("empty", {}, "no partition found"),
        ("b1", {"topic": "orders,refunds"}, "no topic refunds; there are orders, payments"),
        ("b1", {"topic": "payments", "partitions": "1"}, "no partition 1; there is 0"),
    ],
)
def test_what_names_nothing_is_refused(root: Path, path: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        chosen(root, path, **options)


def test_settings_of_a_store_travel_with_the_selection_and_are_not_shown() -> None:
    selection = LogSelection.of({"path": "s3://b/logs", "store.endpoint": "http://h:1", "store.secret_access_key": "x"})
    assert dict(selection.access.settings) == {"endpoint": "http://h:1", "secret_access_key": "x"}
    assert "http" not in repr(selection)
