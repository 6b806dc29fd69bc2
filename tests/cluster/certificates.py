"""Certificates for the tests, made by openssl: of 127.0.0.1, signed by themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """PEM files; `store` is both of them in PKCS #12, with password `changeit`."""

    certificate: str
    key: str
    store: str


def self_signed(root: Path, name: str = "headstone") -> Certificate:
    key, certificate, store = (root / f"{name}-{file}" for file in ("key.pem", "cert.pem", "store.p12"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(
        ["openssl", "pkcs12", "-export", "-in", str(certificate), "-inkey", str(key), "-out", str(store), "-passout",
         "pass:changeit", "-name", name],
        check=True, capture_output=True,
    )  # fmt: skip
    return Certificate(str(certificate), str(key), str(store))
