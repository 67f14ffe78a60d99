"""The store that tests use: local by default, S3 by moto when PHALANX_TEST_STORE is `s3`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyarrow.fs import S3FileSystem

from integration.stores import Store

CREDENTIALS = {
    "aws_access_key_id": "testing",
    "aws_secret_access_key": "testing",
    "aws_region": "us-east-1",
    "allow_http": "true",
}


@pytest.fixture(scope="session")
def s3() -> Iterator[Store]:
    """A bucket of a server that speaks the protocol of S3."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    options = {**CREDENTIALS, "aws_endpoint": f"http://127.0.0.1:{port}"}
    S3FileSystem(
        access_key="testing",
        secret_key="testing",
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    ).create_dir("tables")
    yield Store("s3://tables", options)
    server.stop()


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The store to test on."""
    if os.environ.get("PHALANX_TEST_STORE") == "s3":
        found: Store = request.getfixturevalue("s3")
        return found
    return Store(str(tmp_path))


@pytest.fixture
def root(store: Store) -> str:
    """A URI in the store where nothing exists."""
    return store.fresh()
