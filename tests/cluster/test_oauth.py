"""Bearer tokens: where they come from, how long one serves, and that no secret is shown."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headstone.cluster.connection import Connection, librdkafka_settings, wire_settings
from headstone.cluster.oauth import BearerLogin, bearer_login, unsecured_token
from headstone.errors import Unfinished, UsageError
from headstone.storage.secrets import NAMES

OIDC = {
    "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "guard", "sasl.oauthbearer.client.secret": "s3cret", "sasl.oauthbearer.scope": "kafka",
}  # fmt: skip
URL = "sasl.oauthbearer.token.endpoint.url"


@contextmanager
def endpoint(*answers: bytes) -> Iterator[tuple[str, list[tuple[str | None, bytes]]]]:
    """One answer after the other, as JSON; and what it was asked."""
    asked: list[tuple[str | None, bytes]] = []
    left = iter(answers)

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.headers["Authorization"], self.rfile.read(int(self.headers["Content-Length"]))))
            answer = next(left, b"")
            self.send_response(200 if answer else 401)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Not on the terminal."""

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token", asked
        finally:
            server.shutdown()
            thread.join()


def test_a_token_is_fetched_with_the_clients_credentials_and_kept_until_it_is_nearly_over() -> None:
    answers = [json.dumps({"access_token": f"t{number}", "expires_in": 300}).encode() for number in (1, 2)]
    with endpoint(*answers) as (url, asked):
        login = wire_settings(Connection.parse("h:1", {**OIDC, URL: url})).login
        assert isinstance(login, BearerLogin)
        assert [login.token(clock=lambda now=now: now) for now in (0.0, 239.0, 241.0)] == ["t1", "t1", "t2"]
    credentials = base64.b64encode(b"guard:s3cret").decode()
    assert asked == [(f"Basic {credentials}", b"grant_type=client_credentials&scope=kafka")] * 2


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]", b'{"access_token": 5}', b"<html>"])
def test_an_endpoint_without_a_token_is_told_without_the_secret(answer: bytes) -> None:
    with endpoint(answer) as (url, _), pytest.raises(Unfinished, match=f"no token from {url}") as caught:
        bearer_login({**OIDC, URL: url}).token()
    assert "s3cret" not in str(caught.value)


def test_a_token_that_is_given_is_used_as_it_is() -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "abc\n"}
    connection = Connection.parse("h:1", given)
    login = wire_settings(connection).login
    assert isinstance(login, BearerLogin)
    assert (login.token(), login.mechanism) == ("abc", "OAUTHBEARER")
    assert ("abc" in repr(connection), connection.hide("abc")) == (False, "***")


def test_where_tokens_come_from_is_no_secret() -> None:
    """A configuration file names it, and an error shows it."""
    connection = Connection.parse("h:1", {**OIDC, URL: "https://id/token"})
    assert connection.hide("https://id/token by s3cret") == "https://id/token by ***"
    assert [bool(NAMES.search(name)) for name in (URL, "sasl.oauthbearer.token", *OIDC)] == [
        False, True, False, False, False, False, True, False,
    ]  # fmt: skip


def test_an_unsecured_token_says_who_and_until_when() -> None:
    token, seconds = unsecured_token({"principal": "guard", "scope": "a,b", "lifeSeconds": "60"}, 1000.5)
    head, body, signature = token.split(".")
    decoded = [json.loads(base64.urlsafe_b64decode(part + "==")) for part in (head, body)]
    assert decoded == [{"alg": "none"}, {"sub": "guard", "iat": 1000, "exp": 1060, "scope": ["a", "b"]}]
    assert (signature, seconds) == ("", 60.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "needs sasl.oauthbearer.method=oidc with sasl.oauthbearer.token.endpoint.url"),
        ({"sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.method=oidc needs sasl.oauthbearer.token.endpoint.url"),
        ({**OIDC, URL: "ftp://x"}, f"{URL} ftp://x: expected https://"),
        ({"enable.sasl.oauthbearer.unsecure.jwt": "true"}, "needs sasl.oauthbearer.config with principal=NAME"),
        ({"sasl.oauthbearer.token": "t", "sasl.oauthbearer.extensions": "x"}, "x is not NAME=VALUE"),
    ],
)
def test_what_is_missing_is_told_by_its_name(settings: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        bearer_login(settings)
    assert said in str(caught.value)


def test_the_same_settings_are_librdkafkas_and_others_are_still_refused() -> None:
    connection = Connection.parse("h:1", {**OIDC, URL: "https://id/token"})
    assert librdkafka_settings(connection).items() >= {**OIDC, URL: "https://id/token"}.items()
    with pytest.raises(
        UsageError, match=r"the Kafka setting socket\.timeout\.ms means nothing to this command's own client"
    ):
        wire_settings(Connection.parse("h:1", {**OIDC, URL: "https://id/token", "socket.timeout.ms": "5"}))
