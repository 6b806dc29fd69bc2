"""Opens the lake that a command line names, with the settings of its store.

Shared by the actions of `headstone lake`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headstone.cli.connections import store_settings

if TYPE_CHECKING:
    from headstone.lake.lake import Lake, LakeAddress


def lake_address(arguments: argparse.Namespace) -> LakeAddress:
    from headstone.lake.lake import LakeAddress, metastore_url

    url = metastore_url(arguments.lake)
    return LakeAddress(metastore_url=url, store_settings=store_settings(arguments, _objects(arguments, url)))


def _objects(arguments: argparse.Namespace, url: str) -> str:
    """The URL of the lake's objects: only the metastore knows it, and it is needed only if the configuration has stores."""
    from headstone.lake.metastore.metastore import Metastore

    if not arguments.configuration.stores:
        return ""
    metastore = Metastore.open(url)
    location = metastore.location
    metastore.close()
    return location


def open_named(arguments: argparse.Namespace, *, damaged: bool = False) -> Lake:
    """`damaged`: as for `open_lake`."""
    lake = lake_address(arguments).open(damaged=damaged)
    if arguments.now_ms is not None:
        lake.metastore.give_clock(arguments.now_ms)
    return lake
