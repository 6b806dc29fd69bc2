"""Bearer tokens for SASL OAUTHBEARER: by OIDC's client credentials, given, or unsecured for test brokers.

Settings have librdkafka's names, plus one of ours: `sasl.oauthbearer.token` is a token as it is (use file:PATH or env:NAME). A
fetched token is kept until shortly before it expires. Secrets go to the token endpoint and nowhere else.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headstone.errors import Unfinished, UsageError

OAUTHBEARER = "OAUTHBEARER"
PREFIX = "sasl.oauthbearer."
METHOD, TOKEN, ENDPOINT = f"{PREFIX}method", f"{PREFIX}token", f"{PREFIX}token.endpoint.url"
CLIENT_ID, CLIENT_SECRET, SCOPE = f"{PREFIX}client.id", f"{PREFIX}client.secret", f"{PREFIX}scope"
EXTENSIONS, UNSECURED_CLAIMS = f"{PREFIX}extensions", f"{PREFIX}config"
UNSECURED, AUTHORITY = "enable.sasl.oauthbearer.unsecure.jwt", "https.ca.location"
NAMES = (METHOD, TOKEN, ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE, EXTENSIONS, UNSECURED_CLAIMS, UNSECURED, AUTHORITY)
ENDPOINT_SECONDS_MAX = 10.0
ANSWER_BYTES_MAX = 1 << 20
EARLY_SECONDS = 60
"""A token that expires this soon is no longer used: brokers close connections whose token has expired."""
LIFE_SECONDS = 3600

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    authority: str | None = None


class BearerLogin:
    """A mechanism that proves itself with a token; one token serves all brokers."""

    mechanism = OAUTHBEARER

    def __init__(self, issue: Callable[[], tuple[str, float]], extensions: tuple[tuple[str, str], ...] = ()) -> None:
        """`issue` returns a token and its lifetime in seconds."""
        self.extensions = extensions
        self._issue = issue
        self._lock = threading.Lock()
        self._token: str | None = None
        self._until = 0.0

    def token(self, *, clock: Clock = time.monotonic) -> str:
        with self._lock:
            if self._token is None or clock() > self._until - EARLY_SECONDS:
                started = clock()
                self._token, seconds = self._issue()
                self._until = started + seconds
            return self._token


def bearer_login(settings: Mapping[str, str]) -> BearerLogin:
    extensions = tuple(_pairs(EXTENSIONS, settings.get(EXTENSIONS, ""), ",").items())
    given = settings.get(TOKEN)
    if given is not None:
        token = given.strip()
        return BearerLogin(lambda: (token, float("inf")), extensions)
    if settings.get(METHOD, "default").lower() == "oidc":
        for name in (ENDPOINT, CLIENT_ID, CLIENT_SECRET):
            if name not in settings:
                raise UsageError(f"{METHOD}=oidc needs {name}")
        endpoint = Endpoint(
            url=settings[ENDPOINT], client_id=settings[CLIENT_ID], client_secret=settings[CLIENT_SECRET],
            scope=settings.get(SCOPE), authority=settings.get(AUTHORITY),
        )  # fmt: skip
        if not endpoint.url.startswith(("https://", "http://")):
            raise UsageError(f"{ENDPOINT} {endpoint.url}: expected https://…")
        return BearerLogin(lambda: fetch_token(endpoint), extensions)
    if settings.get(UNSECURED, "false").lower() == "true":
        claims = _pairs(UNSECURED_CLAIMS, settings.get(UNSECURED_CLAIMS, ""), None)
        if "principal" not in claims:
            raise UsageError(f"{UNSECURED} needs {UNSECURED_CLAIMS} with principal=NAME")
        return BearerLogin(lambda: unsecured_token(claims, time.time()), extensions)
    raise UsageError(
        f"sasl.mechanism {OAUTHBEARER} needs {METHOD}=oidc with {ENDPOINT}, {CLIENT_ID} and {CLIENT_SECRET}, or {TOKEN}"
    )


def fetch_token(endpoint: Endpoint) -> tuple[str, float]:
    """By the client credentials grant (RFC 6749, 4.4)."""
    form = {"grant_type": "client_credentials"} | ({"scope": endpoint.scope} if endpoint.scope else {})
    secret = base64.b64encode(f"{endpoint.client_id}:{endpoint.client_secret}".encode()).decode()
    request = urllib.request.Request(
        endpoint.url, data=urllib.parse.urlencode(form).encode(),
        headers={"Authorization": f"Basic {secret}", "Accept": "application/json"},
    )  # fmt: skip
    try:
        context = ssl.create_default_context(cafile=endpoint.authority)
        with urllib.request.urlopen(request, timeout=ENDPOINT_SECONDS_MAX, context=context) as answer:
            document = json.loads(answer.read(ANSWER_BYTES_MAX))
    except (OSError, ValueError) as error:
        raise Unfinished(f"no token from {endpoint.url}: {error}") from error
    token = document.get("access_token") if isinstance(document, dict) else None
    if not isinstance(token, str) or not token:
        raise Unfinished(f"no token from {endpoint.url}: its answer has no access_token")
    lives = document.get("expires_in", LIFE_SECONDS)
    return token, float(lives) if isinstance(lives, int | float) else float(LIFE_SECONDS)


def unsecured_token(claims: Mapping[str, str], now: float) -> tuple[str, float]:
    """Unsigned: for test brokers, whose default handler accepts it."""
    seconds = int(claims.get("lifeSeconds", LIFE_SECONDS))
    body: dict[str, object] = {
        claims.get("principalClaimName", "sub"): claims["principal"], "iat": int(now), "exp": int(now) + seconds
    }  # fmt: skip
    if "scope" in claims:
        body[claims.get("scopeClaimName", "scope")] = claims["scope"].split(",")
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, body)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + ".", float(seconds)


def _pairs(name: str, text: str, separator: str | None) -> dict[str, str]:
    pairs = {}
    for item in filter(None, text.split(separator)):
        key, equals, value = item.strip().partition("=")
        if not equals:
            raise UsageError(f"{name}: {item} is not NAME=VALUE")
        pairs[key] = value
    return pairs
