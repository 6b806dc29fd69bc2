"""How a verb reaches clusters and object stores: by flags, or by names and prefixes of the configuration file.

Flags win. Secrets pass through here without being shown.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headstone.cli.options import pairs
from headstone.errors import UsageError
from headstone.storage.redaction import HIDDEN, password_of, without_secrets
from headstone.storage.secrets import NAMES, is_reference, resolved_setting

if TYPE_CHECKING:
    from headstone.cluster.connection import Connection
    from headstone.storage.places import Place


def add_cluster_arguments(parser: argparse.ArgumentParser, *, what: str, required: bool = False) -> None:
    group = parser.add_argument_group("cluster")
    which = group.add_mutually_exclusive_group(required=required)
    which.add_argument(
        "--bootstrap", metavar="HOSTS", help=f"{what}, such as kafka-1:9092,kafka-2:9092 (default: none)"
    )
    which.add_argument(
        "--cluster", metavar="NAME", help=f"{what}, by its name in the configuration file (default: none)"
    )
    group.add_argument(
        "--kafka-conf", metavar="K=V", action="append", default=[],
        help="a librdkafka setting, such as security.protocol=SASL_SSL; may be repeated",
    )  # fmt: skip


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("object storage").add_argument(
        "--store-conf", metavar="K=V", action="append", default=[],
        help="an obstore setting of the object store, such as endpoint=http://127.0.0.1:9000 or region=eu-west-1; may be "
        "repeated (default: from the configuration file and the environment)",
    )  # fmt: skip


def has_cluster(arguments: argparse.Namespace) -> bool:
    return bool(arguments.bootstrap or arguments.cluster)


def kafka_connection(arguments: argparse.Namespace) -> Connection:
    from headstone.cluster.connection import Connection

    if not has_cluster(arguments):
        raise UsageError("name a cluster with --bootstrap HOSTS, or with --cluster NAME from the configuration file")
    from_file = arguments.configuration.cluster(arguments.cluster) if arguments.cluster else {}
    given = pairs("--kafka-conf", arguments.kafka_conf, such_as="security.protocol=SASL_SSL")
    settings = {**from_file, **{name: resolved_setting(name, value) for name, value in given.items()}}
    bootstrap = settings.pop("bootstrap.servers") if arguments.cluster else arguments.bootstrap
    return Connection.parse(bootstrap, settings)


def store_settings(arguments: argparse.Namespace, url: str) -> dict[str, str]:
    """The settings of the store that holds the URL."""
    texts = pairs("--store-conf", arguments.store_conf, such_as="endpoint=http://127.0.0.1:9000")
    given = {name: resolved_setting(name, value) for name, value in texts.items()}
    return {**arguments.configuration.store(url), **given}


def exposed_secrets(arguments: argparse.Namespace) -> list[str]:
    """Secrets on the command line, which every user of this machine can see; described without showing them."""
    flags = (
        ("--store-conf", getattr(arguments, "store_conf", ())),
        ("--kafka-conf", getattr(arguments, "kafka_conf", ())),
    )
    settings = [(flag, *item.partition("=")[::2]) for flag, items in flags for item in items]
    exposed = [f"{flag} {name}" for flag, name, value in settings if NAMES.search(name) and not is_reference(value)]
    tokens = (
        ("--token", getattr(arguments, "token", None)),
        ("--agents-token", getattr(arguments, "agents_token", None)),
    )
    exposed += [flag for flag, value in tokens if value is not None and not is_reference(value)]
    exposed += ["the password of LAKE"] if password_of(getattr(arguments, "lake", None) or "") else []
    return [f"{what}: every user of this machine can see it; say env:NAME or file:PATH instead" for what in exposed]


def without_value_of_secret(word: str) -> str:
    """A word of a command line without secrets: of K=V only K, and where a reference points to."""
    name, equals, value = word.partition("=")
    shown = f"{name}={HIDDEN}" if equals and NAMES.search(name) and not is_reference(value) else word
    return without_secrets(shown)


def located(arguments: argparse.Namespace, given: str) -> str | Place:
    """A local path unchanged; a URL of an object store as a place that knows how to reach it."""
    from headstone.storage.places import answering
    from headstone.storage.stores import is_remote

    pairs("--store-conf", arguments.store_conf)  # even if no store is used: report mistakes at once
    return answering(given, store_settings(arguments, given)) if is_remote(given) else given
