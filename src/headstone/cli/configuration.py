"""The configuration file: defaults of options, named clusters, settings of stores. TOML; flags win over it.

    [defaults]                      # of every verb that has the option
    output = "json"
    [verbs.compact]                 # of one verb; [verbs."lake worker"] of an action
    engine = "process"
    [clusters.production]           # --cluster production
    bootstrap = "kafka-1:9092,kafka-2:9092"
    "security.protocol" = "SASL_SSL"
    "sasl.password" = "env:KAFKA_PASSWORD"
    [stores."s3://backups"]         # of every place that begins with it
    endpoint = "https://minio:9000"
    secret_access_key = "file:/run/secrets/minio"

The file never contains a secret, only where to find it; secrets are never shown. Unknown names are refused.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstone.errors import UsageError
from headstone.spelling import instead, meant
from headstone.storage.secrets import NAMES, is_reference, resolved_setting

DEFAULTS, VERBS, CLUSTERS, STORES = "defaults", "verbs", "clusters", "stores"
NO_DEFAULTS = ("help", "config")


class FromFile(str):
    """A text from the configuration file. For options that exclude each other, it tells which one the user typed."""

    __slots__ = ()


Parsers = Callable[[], argparse.ArgumentParser]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """`file` is None if there is none. Values of clusters and stores are as written, with references unresolved."""

    file: Path | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    verbs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    clusters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    stores: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def refuse(self, key: str, why: str) -> UsageError:
        return UsageError(f"{self.file}: {key}: {why}")

    def cluster(self, name: str) -> dict[str, str]:
        """librdkafka's settings, secrets included."""
        if name not in self.clusters:
            names = ", ".join(sorted(self.clusters)) or "none"
            named = f"{self.file or 'no configuration file'} names {names}"
            raise UsageError(f"--cluster {name}: {named}{meant(name, self.clusters)}")
        settings = self._resolved(f"{CLUSTERS}.{name}", self.clusters[name])
        return {"bootstrap.servers" if key == "bootstrap" else key: value for key, value in settings.items()}

    def store(self, url: str) -> dict[str, str]:
        """The settings of the longest prefix that the URL begins with; those of shorter prefixes are not mixed in."""
        prefixes = [prefix for prefix in self.stores if is_below(url, prefix)]
        chosen = max(prefixes, key=len, default=None)
        return {} if chosen is None else self._resolved(f'{STORES}."{chosen}"', self.stores[chosen])

    def _resolved(self, section: str, settings: Mapping[str, str]) -> dict[str, str]:
        return {name: self._value(f"{section}.{name}", text) for name, text in settings.items()}

    def _value(self, key: str, text: str) -> str:
        try:
            return resolved_setting(key, text)
        except UsageError as error:
            raise self.refuse(key, str(error)) from error


def is_below(url: str, prefix: str) -> bool:
    return url == prefix or url.startswith(prefix.rstrip("/") + "/")


def usual_place(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "headstone" / "config.toml"


def configuration_of(given: str | None, environment: Mapping[str, str]) -> Configuration:
    """From the named file, which must exist, or from the usual place, if there is one."""
    file = Path(given).expanduser() if given else usual_place(environment)
    if given is None and not _is_there(file):
        return Configuration()
    try:
        content = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"--config {file}: no such file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not a text file; expected TOML in UTF-8") from error
    try:
        return _checked(file, tomllib.loads(content))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: invalid TOML: {error}") from error


def _is_there(file: Path) -> bool:
    """A home directory may be closed to the user who runs this: that counts as no file."""
    try:
        return file.is_file()
    except PermissionError:
        return False


def _checked(file: Path, document: dict[str, Any]) -> Configuration:
    configuration = Configuration(
        file=file, **{name: content for name, content in document.items() if _is_section(name, content)}
    )
    for name, content in document.items():
        if not _is_section(name, content):
            raise configuration.refuse(
                name, f"unknown; there are {', '.join((DEFAULTS, VERBS, CLUSTERS, STORES))}, each a table"
            )
    for section, tables in ((CLUSTERS, configuration.clusters), (STORES, configuration.stores)):
        for name, settings in tables.items():
            _check_connection(
                configuration, f"{section}.{name}" if section == CLUSTERS else f'{section}."{name}"', settings
            )
    for name, settings in configuration.clusters.items():
        if "bootstrap" not in settings:
            raise configuration.refuse(
                f"{CLUSTERS}.{name}", "bootstrap is missing: HOST:PORT, or several separated by commas"
            )
    return configuration


def _is_section(name: str, content: object) -> bool:
    return name in (DEFAULTS, VERBS, CLUSTERS, STORES) and isinstance(content, dict)


def _check_connection(configuration: Configuration, section: str, settings: object) -> None:
    if not isinstance(settings, dict):
        raise configuration.refuse(section, "expected a table of settings")
    for name, value in settings.items():
        key = f"{section}.{name}"
        if not isinstance(value, str):
            raise configuration.refuse(key, 'expected a string, such as "true" or "10"')
        if NAMES.search(name) and not is_reference(value):
            raise configuration.refuse(key, 'a secret must be given by reference: "env:NAME" or "file:PATH"')


def options_of(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, str, argparse.Action]]:
    """(verb and action, option without dashes, the argparse action) for everything below a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from options_of(below, f"{words} {name}".strip())
        for flag in action.option_strings:
            if flag.startswith("--") and action.help != argparse.SUPPRESS:
                yield words, flag.removeprefix("--"), action


def apply_defaults(configuration: Configuration, chosen: argparse.ArgumentParser, everything: Parsers) -> None:
    """Makes the file's defaults those of the chosen parser. Checks names and verbs against all parsers."""
    if not configuration.defaults and not configuration.verbs:
        return
    by_verb: dict[str, set[str]] = {}
    for words, option, _ in options_of(everything()):
        by_verb.setdefault(words, set()).add(option)
    for option in configuration.defaults:
        if not any(option in options for options in by_verb.values()) or option in NO_DEFAULTS:
            every = {name for options in by_verb.values() for name in options}
            raise configuration.refuse(f"{DEFAULTS}.{option}", f"no verb has this option{meant(option, every)}")
    for words, settings in configuration.verbs.items():
        if words not in by_verb or not isinstance(settings, dict):
            raise configuration.refuse(
                f'{VERBS}."{words}"',
                f"no such verb{instead(words, filter(None, by_verb), shown_max=len(by_verb))}",
            )
        for option in settings:
            if option not in by_verb[words] or option in NO_DEFAULTS:
                why = f"{words} does not have this option{meant(option, by_verb[words])}"
                raise configuration.refuse(f'{VERBS}."{words}".{option}', why)
    for words, option, action in options_of(chosen):
        for section, table in (
            (DEFAULTS, configuration.defaults),
            (f'{VERBS}."{words}"', configuration.verbs.get(words, {})),
        ):
            if option in table and option not in NO_DEFAULTS:
                action.default = _converted(configuration, f"{section}.{option}", action, table[option])
                action.required = False


def _converted(configuration: Configuration, key: str, action: argparse.Action, value: object) -> Any:
    """As the flag would have parsed it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise configuration.refuse(key, "expected true or false")
        return value
    if isinstance(action, argparse._AppendAction):
        if not isinstance(value, list):
            raise configuration.refuse(key, "expected a list, because the option may be repeated")
        return [_one(configuration, key, action, item) for item in value]
    return _one(configuration, key, action, value)


def _one(configuration: Configuration, key: str, action: argparse.Action, value: object) -> Any:
    if isinstance(value, bool | list | dict):
        raise configuration.refuse(key, "expected one value")
    parse = action.type if callable(action.type) else str
    try:
        parsed = parse(str(value))
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise configuration.refuse(key, str(error)) from error
    if action.choices is not None and parsed not in action.choices:
        raise configuration.refuse(key, f"{parsed!r} is not one of {', '.join(map(str, action.choices))}")
    return FromFile(parsed) if isinstance(parsed, str) else parsed
