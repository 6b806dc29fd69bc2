"""How to reach a Kafka cluster: address, protocol, login, TLS; the only place for the whole house.

Settings have librdkafka's names and are parsed once. Each client gets them in its own terms: our wire client, librdkafka, and
Spark's Kafka source, which uses Java's. A setting that a client has no term for is refused by name, never dropped. No secret is
part of a repr or an error. Reads certificates; opens no connection.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headstone.cluster.oauth import NAMES as BEARER_NAMES
from headstone.cluster.oauth import OAUTHBEARER, BearerLogin, bearer_login
from headstone.errors import UsageError
from headstone.storage.redaction import address

SECONDS_MAX = 10.0
"""For every request to a cluster: a broker that has not answered by then is given up, with its address and the reason."""
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""Mechanisms that all three clients know, and Java's names for them."""
IDENTIFICATION = {"https": True, "none": False}
JAVA = "kafka."
"""Prefix of settings for Spark's Kafka source only, by the names of Kafka's Java client."""
MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
ADDRESSES = ("bootstrap.servers", "metadata.broker.list")
_SECRET = re.compile(r"password|secret|token(?!\.endpoint\.url$)|jaas|pem$|key$", re.IGNORECASE)
_PLAIN_KEY, _ENCRYPTED_KEY = "-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----"


class Host(NamedTuple):
    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of PEM files. `authority` None: the system's trust."""

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    names_host: bool = True
    """Whether the broker's certificate must name the host that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """`login` is None without SASL, and for mechanisms that only librdkafka knows: their settings are in `for_librdkafka`."""

    hosts: tuple[Host, ...]
    protocol: str = "PLAINTEXT"
    login: Login | None = None
    tls: Tls | None = None
    client_id: str | None = None
    for_librdkafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    for_java: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, bootstrap: str, settings: Mapping[str, str]) -> Connection:
        """`bootstrap` is HOST:PORT, or several of them, separated by commas."""
        rest = dict(settings)
        for name in ADDRESSES:
            if name in rest:
                raise UsageError(f"{name}: the address is given as bootstrap; leave it out")
        protocol = rest.pop("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise UsageError(f"security.protocol {protocol}: known are {', '.join(PROTOCOLS)}")
        _refuse_without("sasl.", rest, protocol.startswith("SASL"), protocol)
        _refuse_without("ssl.", rest, protocol.endswith("SSL"), protocol)
        return cls(
            hosts=_hosts(bootstrap), protocol=protocol,
            login=_take_login(rest) if protocol.startswith("SASL") else None,
            tls=_take_tls(rest) if protocol.endswith("SSL") else None, client_id=rest.pop("client.id", None),
            for_java={name: rest.pop(name) for name in list(rest) if name.startswith(JAVA)}, for_librdkafka=rest,
        )  # fmt: skip

    @property
    def address(self) -> str:
        return ",".join(map(str, self.hosts))

    def hide(self, text: str) -> str:
        """Removes secrets from a message that somebody else has made."""
        secrets = [self.login.password] if self.login else []
        secrets += [self.tls.key_password] if self.tls and self.tls.key_password else []
        passed_on = {**self.for_librdkafka, **self.for_java}
        secrets += [value.strip() for name, value in passed_on.items() if _SECRET.search(name)]
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
        return address(text)


def _refuse_without(prefix: str, settings: Mapping[str, str], used: bool, protocol: str) -> None:
    """Refuses settings without effect: a user who names a certificate or a password believes that it is used."""
    for name in sorted(settings) if not used else ():
        if name.startswith(prefix):
            protocols = [other for other in PROTOCOLS if prefix.strip(".").upper() in other]
            raise UsageError(f"{name} has no meaning with security.protocol {protocol}: name {' or '.join(protocols)}")


def _hosts(bootstrap: str) -> tuple[Host, ...]:
    hosts = []
    for item in bootstrap.split(","):
        name, colon, port = item.strip().rpartition(":")
        if not colon or not name or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise UsageError(f"bootstrap {item}: expected HOST:PORT")
        hosts.append(Host(name.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(hosts)


def _take_login(rest: dict[str, str]) -> Login | None:
    names = {rest[name] for name in MECHANISMS if name in rest}
    if len(names) != 1:
        raise UsageError(f"SASL needs one sasl.mechanism: {', '.join((*LOGIN_MODULES, OAUTHBEARER))}")
    (mechanism,) = names
    if mechanism not in LOGIN_MODULES:
        return None
    for name in ("sasl.username", "sasl.password"):
        if name not in rest:
            raise UsageError(f"sasl.mechanism {mechanism} needs {name}")
    rest.pop("sasl.mechanism", None)
    rest.pop("sasl.mechanisms", None)
    return Login(mechanism=mechanism, user=rest.pop("sasl.username"), password=rest.pop("sasl.password"))


def _take_tls(rest: dict[str, str]) -> Tls:
    identification = rest.pop("ssl.endpoint.identification.algorithm", "https").lower()
    if identification not in IDENTIFICATION:
        raise UsageError(
            f"ssl.endpoint.identification.algorithm {identification}: known are {', '.join(IDENTIFICATION)}"
        )
    certificate, key = rest.pop("ssl.certificate.location", None), rest.pop("ssl.key.location", None)
    if (certificate is None) != (key is None):
        raise UsageError("ssl.certificate.location and ssl.key.location are named together, or none of them")
    return Tls(
        authority=rest.pop("ssl.ca.location", None), certificate=certificate, key=key,
        key_password=rest.pop("ssl.key.password", None), names_host=IDENTIFICATION[identification],
    )  # fmt: skip


def _refuse(names: Sequence[str], client: str, advice: str) -> None:
    if names:
        name = min(names, key=lambda name: (not name.startswith("sasl.mechanism"), name))
        raise UsageError(f"the Kafka setting {name} means nothing to {client}; {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """What our own client needs. `context` None: no TLS; `login` None: no SASL."""

    context: ssl.SSLContext | None
    login: Login | BearerLogin | None
    client_id: str | None


def wire_settings(connection: Connection) -> WireSettings:
    mechanisms = ", ".join((*LOGIN_MODULES, OAUTHBEARER))
    advice = f"it knows security.protocol, client.id, SASL ({mechanisms}) and certificates in PEM files"
    settings, login = dict(connection.for_librdkafka), connection.login
    bearer: BearerLogin | None = None
    if OAUTHBEARER in (settings.get("sasl.mechanism"), settings.get("sasl.mechanisms")):
        bearer = bearer_login(settings)
        settings = {name: value for name, value in settings.items() if name not in (*MECHANISMS, *BEARER_NAMES)}
    _refuse([*settings, *connection.for_java], "this command's own client", advice)
    context = tls_context(connection.tls) if connection.tls else None
    return WireSettings(context=context, login=bearer or login, client_id=connection.client_id)


def tls_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"ssl.ca.location {tls.authority}: {error}") from error
    # Python 3.13 and later refuse by default what Kafka's other clients accept, such as an authority without key identifiers.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = tls.names_host
    if tls.certificate is not None:
        try:
            # Not None: OpenSSL would ask for the password on the terminal.
            context.load_cert_chain(tls.certificate, tls.key, tls.key_password or "")
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"ssl.certificate.location {tls.certificate}, ssl.key.location {tls.key}: {error}; an encrypted key needs "
                "ssl.key.password"
            ) from error
    return context


def librdkafka_settings(connection: Connection, *, beside_spark: bool = False) -> dict[str, str]:
    """`beside_spark`: Spark is used as well, and Java's settings are for Spark."""
    if not beside_spark:
        _refuse([*connection.for_java], "librdkafka", "this command does not use Spark's Kafka source")
    given = {"bootstrap.servers": connection.address, "security.protocol": connection.protocol}
    if connection.client_id is not None:
        given["client.id"] = connection.client_id
    if connection.login is not None:
        login = connection.login
        given |= {"sasl.mechanism": login.mechanism, "sasl.username": login.user, "sasl.password": login.password}
    if connection.tls is not None:
        tls = connection.tls
        named = {
            "ssl.ca.location": tls.authority, "ssl.certificate.location": tls.certificate, "ssl.key.location": tls.key,
            "ssl.key.password": tls.key_password,
            "ssl.endpoint.identification.algorithm": "https" if tls.names_host else "none",
        }  # fmt: skip
        given |= {name: value for name, value in named.items() if value is not None}
    return given | dict(connection.for_librdkafka)


def spark_source_options(connection: Connection) -> dict[str, str]:
    """For Spark's Kafka source. Certificates are passed as text, so that executors need no file of this machine."""
    advice = "name it as kafka.NAME with the name of Kafka's Java client"
    _refuse([*connection.for_librdkafka], "Spark's Kafka source", advice)
    options = {"bootstrap.servers": connection.address, "security.protocol": connection.protocol}
    if connection.client_id is not None:
        options["client.id"] = connection.client_id
    if connection.login is not None:
        login = connection.login
        user, password = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (login.user, login.password))
        options["sasl.mechanism"] = login.mechanism
        options["sasl.jaas.config"] = (
            f'{LOGIN_MODULES[login.mechanism]} required username="{user}" password="{password}";'
        )
    if connection.tls is not None:
        options |= _java_tls(connection.tls)
    return {f"{JAVA}{name}": value for name, value in options.items()} | dict(connection.for_java)


def _java_tls(tls: Tls) -> dict[str, str]:
    options: dict[str, str] = {}
    if tls.authority is not None:
        options |= {
            "ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem("ssl.ca.location", tls.authority)
        }  # fmt: skip
    if tls.certificate is not None and tls.key is not None:
        key = _pem("ssl.key.location", tls.key)
        if _PLAIN_KEY not in key and _ENCRYPTED_KEY not in key:
            raise UsageError(
                f"ssl.key.location {tls.key}: Java reads PKCS #8 only; translate it: openssl pkcs8 -topk8 -nocrypt"
            )
        options |= {
            "ssl.keystore.type": "PEM", "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": _pem("ssl.certificate.location", tls.certificate),
        }  # fmt: skip
        if tls.key_password is not None:
            options["ssl.key.password"] = tls.key_password
    if not tls.names_host:
        options["ssl.endpoint.identification.algorithm"] = ""
    return options


def _pem(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} {path}: Spark's Kafka source needs one PEM file: {error}") from error
