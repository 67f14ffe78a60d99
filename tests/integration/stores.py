"""Stores of tables in tests: a local folder, or a bucket of a simulated S3."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pyarrow.fs as pafs


@dataclass(frozen=True)
class Store:
    """A place for tables, and the options to reach it."""

    base: str
    storage_options: dict[str, str] | None = None

    def fresh(self) -> str:
        """A URI where nothing exists."""
        return f"{self.base}/{uuid.uuid4().hex[:12]}"

    def files(self, uri: str) -> dict[str, int]:
        """Every file below a URI, with its size."""
        filesystem, path = self._filesystem(uri)
        selector = pafs.FileSelector(path, recursive=True, allow_not_found=True)
        found = filesystem.get_file_info(selector)
        return {info.path: info.size for info in found if info.is_file}

    def folders(self, uri: str) -> set[str]:
        """The names of the folders right below a URI that hold a version of a Lance table."""
        _, path = self._filesystem(uri)
        inside = (name[len(path) :].lstrip("/").split("/") for name in self.files(uri))
        return {parts[0] for parts in inside if len(parts) > 2 and parts[1] == "_versions"}

    def _filesystem(self, uri: str) -> tuple[pafs.FileSystem, str]:
        if self.storage_options is None:
            return pafs.LocalFileSystem(), uri
        options = self.storage_options
        filesystem = pafs.S3FileSystem(
            access_key=options["aws_access_key_id"],
            secret_key=options["aws_secret_access_key"],
            endpoint_override=options["aws_endpoint"].removeprefix("http://"),
            region=options["aws_region"],
            scheme="http",
        )
        return filesystem, uri.removeprefix("s3://")
