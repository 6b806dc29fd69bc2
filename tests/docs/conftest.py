"""The S3 server that pages talk to, with their buckets."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

BUCKETS = ("backups", "bucket")


@pytest.fixture(scope="session")
def object_storage(moto_settings: Mapping[str, str]) -> Mapping[str, str]:
    """What the environment says of it."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=moto_settings["endpoint"], region_name="us-east-1",
        aws_access_key_id=moto_settings["access_key_id"], aws_secret_access_key=moto_settings["secret_access_key"],
    )  # fmt: skip
    for bucket in BUCKETS:
        client.create_bucket(Bucket=bucket)
    names = {"endpoint": "endpoint_url"}
    return {f"AWS_{names.get(name, name).upper()}": value for name, value in moto_settings.items()}
