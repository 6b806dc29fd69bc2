"""Who may report: a shared token that signs every message, challenges that make each report count once, names in certificates.

The token is never sent. Knows no network, and nothing of what is reported.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headstone.errors import HeadstoneError, UsageError

TOKEN_LENGTH_MIN = 16
CHALLENGE_AGE_MS_MAX = 600_000
"""An agent reads its files between the challenge and the report, which takes a while on a large broker."""
_BROKER_NAME = re.compile(r"broker-(\d{1,10})")


class Refusal(StrEnum):
    """Why a message is refused."""

    WRONG_TOKEN = "wrong token"
    WRONG_CERTIFICATE = "certificate of another broker"
    REPLAYED = "replayed"
    OTHER_CLUSTER = "of another cluster"
    UNKNOWN_BROKER = "of an unknown broker"
    SECOND_AGENT = "of a second agent"
    WRONG_CLOCK = "of a wrong clock"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too large"
    NO_SUCH_PLACE = "no such place"
    NOT_READY = "not ready"


class Refused(HeadstoneError):
    """A refused message, and why. The text goes to its sender, who may be hostile."""

    def __init__(self, kind: Refusal, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files: this side's certificate and key, and the authority that it trusts. None: no certificate; the system's
    trust."""

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """The guard's side. With an authority in `tls`, a client must show a certificate from it: mutual TLS."""

    token: str | None = field(default=None, repr=False)
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        mutual = self.tls is not None and self.tls.authority is not None
        if self.token is None and not mutual:
            raise UsageError("accepting reports needs a token, or TLS with the CA of the agents' certificates")
        check_token(self.token)


def check_token(token: str | None) -> None:
    if token is not None and len(token) < TOKEN_LENGTH_MIN:
        raise UsageError(f"the token has fewer than {TOKEN_LENGTH_MIN} characters; `openssl rand -hex 32` makes one")


def signature(token: str, *parts: bytes) -> str:
    """Over all parts with their lengths, so that no other split of the same bytes has the same signature."""
    mac = hmac.new(token.encode(), digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "big") + part)
    return mac.hexdigest()


def same(signature_given: str, expected: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(signature_given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


class Challenges:
    """Challenges: moments of the guard's clock that a report must quote, each valid for one broker and one guard process.
    Stores nothing."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(32)

    def give(self, broker: int, now_ms: int) -> str:
        return f"{now_ms}.{self._proof(broker, now_ms)}"

    def moment_ms(self, broker: int, challenge: str, now_ms: int) -> int:
        """When the challenge was given."""
        digits, _, proof = challenge.partition(".")
        given_ms = int(digits)
        if not same(proof, self._proof(broker, given_ms)):
            raise Refused(
                Refusal.REPLAYED, "this challenge was not issued by this guard for this broker: start over with a hello"
            )
        if now_ms - given_ms > CHALLENGE_AGE_MS_MAX:
            age = f"{CHALLENGE_AGE_MS_MAX // 1000} s"
            raise Refused(Refusal.REPLAYED, f"this challenge is older than {age}: start over with a hello")
        return given_ms

    def _proof(self, broker: int, now_ms: int) -> str:
        return signature(self._key, str(broker).encode(), str(now_ms).encode())


def broker_named(certificate: Mapping[str, Any] | None) -> int | None:
    """The broker that a verified certificate belongs to, from a name such as `broker-3`; None if it names no broker."""
    if not certificate:
        return None
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    names += [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    numbers = {int(match[1]) for match in (_BROKER_NAME.fullmatch(name) for name in names) if match}
    if len(numbers) > 1:
        raise Refused(Refusal.WRONG_CERTIFICATE, "this certificate names more than one broker")
    return numbers.pop() if numbers else None


def server_context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, tls)
    if tls.authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.authority is None:
        context.load_default_certs()
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: TlsFiles) -> None:
    # Python 3.13 and later refuse by default what Kafka's clients accept, such as an authority without key identifiers.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.authority is not None:
        try:
            context.load_verify_locations(cafile=tls.authority)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{tls.authority}: cannot load the CA certificates: {error}") from error
    if tls.certificate is not None:
        try:
            # Not None: OpenSSL would ask for the password on the terminal.
            context.load_cert_chain(tls.certificate, tls.key, "")
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"{tls.certificate}, {tls.key}: cannot load the certificate with its key: {error}"
            ) from error
