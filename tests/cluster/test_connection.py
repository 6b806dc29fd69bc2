"""Settings by librdkafka's names, in the words of three clients; what one of them has no word for is refused by name."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from headstone.cluster.connection import (
    Connection,
    Host,
    Login,
    Tls,
    librdkafka_settings,
    spark_source_options,
    wire_settings,
)
from headstone.errors import UsageError
from tests.cluster.certificates import Certificate, self_signed

SCRAM = {
    "security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": 'p"q',
}  # fmt: skip


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificates"))


def test_settings_are_parsed_once_into_one_value() -> None:
    given = {
        **SCRAM, "ssl.ca.location": "/ca.pem", "ssl.endpoint.identification.algorithm": "none", "client.id": "me",
        "socket.keepalive.enable": "true", "kafka.request.timeout.ms": "5",
    }  # fmt: skip
    assert Connection.parse("a:1, [::1]:9092", given) == Connection(
        hosts=(Host("a", 1), Host("::1", 9092)), protocol="SASL_SSL",
        login=Login(mechanism="SCRAM-SHA-512", user="u", password='p"q'), tls=Tls(authority="/ca.pem", names_host=False),
        client_id="me", for_librdkafka={"socket.keepalive.enable": "true"}, for_java={"kafka.request.timeout.ms": "5"},
    )  # fmt: skip
    assert Connection.parse("a:1,[::1]:9092", {}).address == "a:1,[::1]:9092"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"security.protocol": "TLS"}, "security.protocol TLS: known are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"bootstrap.servers": "b:2"}, "bootstrap.servers: the address is given as bootstrap; leave it out"),
        (
            {"sasl.password": "x"},
            "sasl.password has no meaning with security.protocol PLAINTEXT: name SASL_PLAINTEXT or SASL_SSL",
        ),
        (
            {"ssl.ca.location": "x", "security.protocol": "SASL_PLAINTEXT"},
            "ssl.ca.location has no meaning with security.protocol SASL_PLAINTEXT: name SSL or SASL_SSL",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": "p"},
            "SASL needs one sasl.mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"},
            "sasl.mechanism PLAIN needs sasl.password",
        ),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "no"},
            "ssl.endpoint.identification.algorithm no: known are https, none",
        ),
        (
            {"security.protocol": "SSL", "ssl.key.location": "k"},
            "ssl.certificate.location and ssl.key.location are named together, or none of them",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Connection.parse("h:1", settings)
    assert str(caught.value) == said


@pytest.mark.parametrize("bootstrap", ["h", "h:", ":1", "h:0", "h:65536", "h:1,", "h:x"])
def test_an_address_is_host_and_port(bootstrap: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        Connection.parse(bootstrap, {})


def test_librdkafka_gets_its_own_names_back(ours: Certificate) -> None:
    given = {
        **SCRAM, "ssl.ca.location": ours.certificate, "ssl.certificate.location": ours.certificate,
        "ssl.key.location": ours.key, "ssl.key.password": "k", "client.id": "me", "socket.keepalive.enable": "true",
    }  # fmt: skip
    expected = {**given, "bootstrap.servers": "h:1", "security.protocol": "SASL_SSL"}
    expected |= {"sasl.mechanism": expected.pop("sasl.mechanisms"), "ssl.endpoint.identification.algorithm": "https"}
    assert librdkafka_settings(Connection.parse("h:1", given)) == expected


def test_spark_gets_the_names_of_java_and_certificates_as_text(ours: Certificate) -> None:
    given = {
        **SCRAM, "ssl.ca.location": ours.certificate, "ssl.certificate.location": ours.certificate,
        "ssl.key.location": ours.key, "ssl.key.password": "k", "ssl.endpoint.identification.algorithm": "none",
        "client.id": "me", "kafka.request.timeout.ms": "5",
    }  # fmt: skip
    text = Path(ours.certificate).read_text()
    assert spark_source_options(Connection.parse("h:1", given)) == {
        "kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SASL_SSL", "kafka.client.id": "me",
        "kafka.request.timeout.ms": "5", "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" '
        'password="p\\"q";',
        "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": text,
        "kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.certificate.chain": text,
        "kafka.ssl.keystore.key": Path(ours.key).read_text(), "kafka.ssl.key.password": "k",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }  # fmt: skip


def test_a_key_that_java_does_not_read_is_refused(ours: Certificate, tmp_path: Path) -> None:
    old = tmp_path / "old.pem"
    subprocess.run(
        ["openssl", "rsa", "-in", ours.key, "-traditional", "-out", str(old)], check=True, capture_output=True
    )
    given = {
        "security.protocol": "SSL", "ssl.certificate.location": ours.certificate, "ssl.key.location": str(old)
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"ssl.key.location .*old.pem: Java reads PKCS #8 only"):
        spark_source_options(Connection.parse("h:1", given))
    assert wire_settings(Connection.parse("h:1", given)).context is not None


def test_the_wire_client_verifies_the_broker_and_shows_its_certificate(ours: Certificate) -> None:
    given = {
        **SCRAM, "ssl.ca.location": ours.certificate, "ssl.certificate.location": ours.certificate,
        "ssl.key.location": ours.key,
    }  # fmt: skip
    settings = wire_settings(Connection.parse("h:1", given))
    context = settings.context
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (len(context.get_ca_certs()), settings.login) == (
        1, Login(mechanism="SCRAM-SHA-512", user="u", password='p"q')
    )  # fmt: skip
    lenient = wire_settings(Connection.parse("h:1", {**given, "ssl.endpoint.identification.algorithm": "none"})).context
    assert lenient is not None
    assert (lenient.verify_mode, lenient.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_files_that_are_not_there_or_can_not_be_opened_are_named(ours: Certificate, tmp_path: Path) -> None:
    """A key with a password is not asked for on the terminal."""
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "rsa", "-in", ours.key, "-aes256", "-passout", "pass:open", "-out", str(locked)],
        check=True, capture_output=True,
    )  # fmt: skip
    pair = {"ssl.certificate.location": ours.certificate, "ssl.key.location": str(locked)}
    for wrong, said in (
        ({"ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location /nowhere.pem"),
        (pair, "an encrypted key needs ssl.key.password"),
        ({**pair, "ssl.key.password": "wrong"}, "an encrypted key needs ssl.key.password"),
    ):
        connection = Connection.parse("h:1", {"security.protocol": "SSL", **wrong})
        with pytest.raises(UsageError, match=said):
            wire_settings(connection)
    right = Connection.parse("h:1", {"security.protocol": "SSL", **pair, "ssl.key.password": "open"})
    assert wire_settings(right).context is not None
    with pytest.raises(UsageError, match=r"ssl\.ca\.location /nowhere\.pem: Spark's Kafka source needs one PEM file"):
        spark_source_options(Connection.parse("h:1", {"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}))


@pytest.mark.parametrize(
    ("name", "settings", "refusing"),
    [
        ("socket.timeout.ms", {"socket.timeout.ms": "1"}, {"wire", "spark"}),
        ("kafka.request.timeout.ms", {"kafka.request.timeout.ms": "1"}, {"wire", "librdkafka"}),
        ("ssl.ca.pem", {"security.protocol": "SSL", "ssl.ca.pem": "x"}, {"wire", "spark"}),
        (
            "sasl.mechanism",
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "x"},
            {"wire", "spark"},
        ),
    ],
)
def test_what_a_client_has_no_word_for_is_refused_by_name(
    name: str, settings: dict[str, str], refusing: set[str]
) -> None:
    clients = {"wire": wire_settings, "librdkafka": librdkafka_settings, "spark": spark_source_options}
    connection = Connection.parse("h:1", settings)
    for client, translate in clients.items():
        if client in refusing:
            with pytest.raises(UsageError, match=f"the Kafka setting {name} means nothing to"):
                translate(connection)
        else:
            assert settings.keys() <= {*translate(connection)}  # type: ignore[misc]


def test_settings_for_java_are_no_fault_where_spark_is_used_as_well() -> None:
    connection = Connection.parse("h:1", {"kafka.request.timeout.ms": "1"})
    assert librdkafka_settings(connection, beside_spark=True) == {
        "bootstrap.servers": "h:1", "security.protocol": "PLAINTEXT"
    }  # fmt: skip


def test_secrets_are_in_no_repr_and_no_message() -> None:
    given = {
        **SCRAM, "sasl.password": "hunter2", "ssl.certificate.location": "c", "ssl.key.location": "k",
        "ssl.key.password": "opensesame", "sasl.oauthbearer.client.secret": "oauth", "kafka.ssl.truststore.password": "trust",
    }  # fmt: skip
    connection = Connection.parse("h:1", given)
    secrets = ("hunter2", "opensesame", "oauth", "trust")
    assert [secret in repr(connection) for secret in secrets] == [False] * 4
    message = "user u: " + "; ".join(f'"{secret}"' for secret in secrets) + "; hunter2345"
    assert connection.hide(message) == 'user u: "***"; "***"; "***"; "***"; hunter2345'
    assert connection.hide('jaas: password="other";') == "jaas: password=***"
