"""The lake that a command line names, and the partitions of it: opened with the settings of its store.

Shared by the actions of `headstone lake`.
"""

from __future__ import annotations

import argparse
import os
import socket
from typing import TYPE_CHECKING

from headstone.cli.connections import store_settings
from headstone.errors import UsageError

if TYPE_CHECKING:
    from headstone.lake.lake import Lake, LakeAddress
    from headstone.log.topic_partition import TopicPartition


def lake_address(arguments: argparse.Namespace) -> LakeAddress:
    from headstone.lake.lake import LakeAddress, metastore_url

    url = metastore_url(arguments.lake)
    return LakeAddress(metastore_url=url, store_settings=store_settings(arguments, _objects(arguments, url)))


def _objects(arguments: argparse.Namespace, url: str) -> str:
    """Where the lake's objects are: only the metastore knows, and only a configuration with stores needs it."""
    from headstone.lake.metastore import Metastore

    if not arguments.configuration.stores:
        return ""
    metastore = Metastore.open(url)
    location = metastore.location
    metastore.close()
    return location


def open_named(arguments: argparse.Namespace) -> Lake:
    lake = lake_address(arguments).open()
    if arguments.now_ms is not None:
        lake.metastore.give_clock(arguments.now_ms)
    return lake


def name_of_worker(what: str = "") -> str:
    """By which others see who works on a partition."""
    return "-".join(filter(None, (what, socket.gethostname(), str(os.getpid()))))


def chosen_partitions(arguments: argparse.Namespace, lake: Lake) -> list[TopicPartition]:
    partitions = [partition for partition in lake.metastore.partitions() if partition.topic == arguments.topic]
    chosen = [partition for partition in partitions if arguments.partition in (None, partition.number)]
    if not chosen:
        raise UsageError(f"the lake has no {arguments.topic}-{arguments.partition or 0}")
    return chosen
