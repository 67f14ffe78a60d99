"""A simulated S3 that fails on demand, before or after a request takes effect."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from pyarrow.fs import S3FileSystem
from werkzeug.serving import WSGIRequestHandler, make_server

from integration.stores import Store

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Failure(Enum):
    """How a request fails."""

    ERROR = "500 before it takes effect"
    BUSY = "503 before it takes effect"
    CUT = "the connection is reset before it takes effect"
    LOST = "it takes effect, and the connection is reset before the answer"
    LOST_ERROR = "it takes effect, and the answer is 500"


@dataclass(frozen=True)
class Request:
    """A request of a client."""

    method: str
    path: str

    @property
    def commits_manifest(self) -> bool:
        """Whether this is the conditional write that creates a version of the manifest."""
        return self.method == "PUT" and "__manifest/_versions/" in self.path


class FailingStore:
    """The store, with a rule that decides which requests fail, and how."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._rule: Callable[[Request], Failure | None] = lambda _: None
        self.failed: list[tuple[Request, Failure]] = []

    @contextmanager
    def fail_by(self, rule: Callable[[Request], Failure | None]) -> Iterator[None]:
        """Fail requests by the rule, which is called for one request at a time."""
        with self._lock:
            self._rule = rule
            self.failed = []
        try:
            yield
        finally:
            with self._lock:
                self._rule = lambda _: None

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        with self._lock:
            failure = self._rule(request)
            if failure is not None:
                self.failed.append((request, failure))
        if failure is None:
            return self._app(environ, start_response)  # type: ignore[no-any-return]
        if failure in (Failure.LOST, Failure.LOST_ERROR):
            for _ in self._app(environ, lambda *_: None):
                pass
        else:
            _drain(environ)
        if failure in (Failure.CUT, Failure.LOST):
            return _reset(environ["werkzeug.socket"])
        busy = failure is Failure.BUSY
        start_response("503 Slow Down" if busy else "500 Internal Server Error", [])
        return [b""]


def _drain(environ: dict[str, Any]) -> None:
    """Read the request to its end. Otherwise the server takes the rest for the next request."""
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))


def _reset(connection: socket.socket) -> Iterable[bytes]:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    # `close` would wait for the streams of the server on this socket.
    os.close(connection.detach())
    raise ConnectionAbortedError


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass

    # A connection that was reset on purpose no longer has a socket.
    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()


@contextmanager
def serve_failing_s3() -> Iterator[tuple[FailingStore, Store]]:
    """Serve an S3 store with one bucket, which fails on demand. Yield it and how to connect."""
    app = FailingStore()
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"127.0.0.1:{server.server_port}"
    S3FileSystem(
        access_key="testing",
        secret_key="testing",
        endpoint_override=endpoint,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    ).create_dir("tables")
    options = {
        "aws_access_key_id": "testing",
        "aws_secret_access_key": "testing",
        "aws_region": "us-east-1",
        "allow_http": "true",
        "aws_endpoint": f"http://{endpoint}",
    }
    try:
        yield app, Store("s3://tables", options)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
