"""The conversations of SASL in Kafka: PLAIN, SCRAM, OAUTHBEARER. `say` exchanges one message at a time.

Knows no socket and no request. Secrets are sent and never shown.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable

from headstone.cluster.connection import Host, Login
from headstone.cluster.oauth import BearerLogin
from headstone.errors import Unfinished

DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
GO_ON = b"\x01"
"""After refusing a token, the broker waits for this before it ends the conversation (RFC 7628, 3.2.3)."""

Say = Callable[[bytes], bytes]


def log_in(host: Host, login: Login | BearerLogin, say: Say) -> None:
    """`say` raises if the broker refuses."""
    if isinstance(login, BearerLogin):
        _bearer(host, login, say)
    elif login.mechanism in DIGESTS:
        _scram(host, login, say)
    else:
        say(b"\0" + login.user.encode() + b"\0" + login.password.encode())


def _bearer(host: Host, login: BearerLogin, say: Say) -> None:
    extensions = "".join(f"{name}={value}\x01" for name, value in login.extensions)
    answer = say(f"n,,\x01auth=Bearer {login.token()}\x01{extensions}\x01".encode())
    if answer:
        say(GO_ON)
        raise Unfinished(f"broker {host} refused the login: {answer.decode(errors='replace')}")


def _scram(host: Host, login: Login, say: Say) -> None:
    digest = DIGESTS[login.mechanism]
    name = login.user.replace("=", "=3D").replace(",", "=2C")
    nonce = secrets.token_hex(16)
    first = f"n={name},r={nonce}"
    server = say(f"n,,{first}".encode()).decode()
    fields = dict(field.split("=", 1) for field in server.split(","))
    if not fields["r"].startswith(nonce):
        raise Unfinished(f"broker {host}: the SCRAM nonce does not match")
    salted = hashlib.pbkdf2_hmac(digest, login.password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    final = f"c=biws,r={fields['r']}"
    message = f"{first},{server},{final}".encode()
    key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, key).digest(), message, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    verified = say(f"{final},p={proof}".encode()).decode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
    if verified != f"v={base64.b64encode(expected).decode()}":
        raise Unfinished(f"broker {host} could not prove that it knows the password")
