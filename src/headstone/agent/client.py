"""The agent's side of the conversation: one message, one answer, over HTTP, signed or by certificate.

An answer that is not the guard's is an error, just like no answer. Knows nothing of what is reported.
"""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headstone.agent.authentication import TlsFiles, check_token, client_context, same, signature
from headstone.agent.messages import (
    BODY_BYTES_MAX,
    HELLO,
    REPORT,
    SIGNED,
    BrokerReport,
    Hello,
    Receipt,
    UnreadableReport,
    Welcome,
    decode_receipt,
    decode_welcome,
    encode_hello,
    encode_report,
)
from headstone.errors import Unfinished, UsageError

SECONDS_MAX = 20.0
NO_FILES = TlsFiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardAddress:
    """The guard's address, and how the agent authenticates."""

    url: str
    token: str | None = field(default=None, repr=False)
    tls: TlsFiles = NO_FILES

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise UsageError(f"--guard {self.url}: expected http://HOST:PORT or https://HOST:PORT")
        if self.token is None and (parts.scheme == "http" or self.tls.certificate is None):
            raise UsageError(
                "the guard accepts reports signed with a token (--token), or over https with --tls-cert and --tls-key"
            )
        check_token(self.token)


class GuardClient:
    """Sends each message to the guard on a new connection."""

    def __init__(self, address: GuardAddress, *, seconds_max: float = SECONDS_MAX) -> None:
        self._address = address
        self._seconds_max = seconds_max
        self._parts = urlsplit(address.url)
        self._context = client_context(address.tls) if self._parts.scheme == "https" else None

    def hello(self, hello: Hello) -> Welcome:
        try:
            return decode_welcome(self._ask(HELLO, encode_hello(hello)))
        except UnreadableReport as error:
            raise self._failed(f"the answer is not a welcome: {error}") from error

    def report(self, report: BrokerReport) -> Receipt:
        try:
            return decode_receipt(self._ask(REPORT, encode_report(report)))
        except UnreadableReport as error:
            raise self._failed(f"the answer is not a receipt: {error}") from error

    def _ask(self, place: str, body: bytes) -> bytes:
        token = self._address.token
        sent = "" if token is None else signature(token, place.encode(), body)
        connection = self._connection()
        try:
            connection.request("POST", place, body, {"Content-Type": "application/json", SIGNED: sent})
            response = connection.getresponse()
            answer = response.read(BODY_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(_reason(error)) from error
        finally:
            connection.close()
        if len(answer) > BODY_BYTES_MAX:
            raise self._failed("the answer is too large")
        if token is not None:
            expected = signature(token, sent.encode(), str(response.status).encode(), answer)
            if not same(response.getheader(SIGNED, ""), expected):
                what = "refused the token" if response.status == 401 else "gave an answer that is not signed by it"
                raise self._failed(f"it {what}: check that --token matches the guard's --agents-token")
        if response.status != 200:
            raise self._failed(_refusal(answer, response.status))
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=self._seconds_max)
        return http.client.HTTPSConnection(host, port, timeout=self._seconds_max, context=self._context)

    def _failed(self, why: str) -> Unfinished:
        return Unfinished(f"the guard at {self._address.url}: {why}")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; --tls-ca names the authority"
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS as this agent does: http:// if it speaks none ({error.reason or error})"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection: check that this is the guard's --agents address, with http:// or https:// to match"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _refusal(answer: bytes, status: int) -> str:
    """The reason as received; text that is unsafe for a terminal is not shown."""
    try:
        message = json.loads(answer)
    except (ValueError, RecursionError):
        message = None
    reason = message.get("refused") if isinstance(message, dict) else None
    return reason if isinstance(reason, str) and reason.isprintable() else f"it answered with status {status}"
