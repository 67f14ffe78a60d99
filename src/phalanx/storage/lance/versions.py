"""New versions of Lance tables: how an operation is committed, restored and detached versions.

Lance tables with v1 manifest paths cannot have detached versions. Lance can migrate them, but a
client that has the table open keeps using the old paths: its commits are lost, or the table can no
longer be opened. So the owner of the table decides when to migrate.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import lance
from lance import LanceDataset, LanceOperation
from obstore.exceptions import AlreadyExistsError, NotFoundError

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.storage.lance.checksums import record_new_files
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.files import Folder, open_store, translate_store_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.schema import encode_varint

_V1_PATHS_MESSAGE = "v1 manifest paths"
# The end of a manifest file: the position of the message `Manifest`, two format numbers, a magic.
_FOOTER = struct.Struct("<QHH4s")
_MAGIC = b"LANC"
# The length before a message.
_LENGTH = struct.Struct("<I")
# The tag of `version` in the protobuf message Manifest, as a varint.
_VERSION = b"\x18"


def apply_operation(
    location: Location,
    dataset: lance.LanceDataset,
    operation: LanceOperation.BaseOperation,
    **options: Any,
) -> lance.LanceDataset:
    """Commit an operation as a new version of a Lance table and return that version.

    Also records the checksums of the new files. `options` are those of `LanceDataset.commit`.
    """
    committed = LanceDataset.commit(
        dataset, operation, read_version=dataset.version, **options, **location.write_options
    )
    record_new_files(location, dataset, committed)
    return committed


def restore_as_next(
    location: Location, main: lance.LanceDataset, version: int, message: str | None = None
) -> None:
    """Make the contents of a version the one that follows `main`; fail if that exists by then.

    Lance's `Restore` conflicts with nothing: it would replace versions that were committed since
    `main` was opened. So it is committed as a detached version, and its manifest is then put in
    place under the next number, which only one writer can do.

    Raises:
        OSError: A commit conflict; nothing changed.
    """
    store = open_store(location)
    staged = LanceDataset.commit(
        main,
        LanceOperation.Restore(version),
        read_version=main.version,
        detached=True,
        commit_message=message,
        **location.write_options,
    )
    fault_point(FaultPoint.RESTORE_STAGED)
    detached, number = f"_versions/d{staged.version}.manifest", int(main.version) + 1
    path = f"_versions/{(1 << 64) - 1 - number:020}.manifest"
    with translate_store_errors(f"restore a version of {location}"):
        manifest = set_manifest_version(bytes(store.get(detached).bytes()), number)
        is_ours = True
        try:
            store.put(path, manifest, mode="create")
        except (AlreadyExistsError, FileExistsError):
            # If the client repeated a request, the existing file is its own; it contains the
            # transaction id.
            is_ours = _read_if_exists(store, path) == manifest
    with suppress(StorageFailure):
        # Vacuum would remove it too.
        Folder(location).delete([detached])
    if not is_ours:
        raise OSError(f"Commit conflict: {location} has a version {number} already.")


def _read_if_exists(store: Any, path: str) -> bytes | None:
    try:
        return bytes(store.get(path).bytes())
    except (NotFoundError, FileNotFoundError):
        return None


def set_manifest_version(manifest: bytes, version: int) -> bytes:
    """Return the bytes of a manifest file with another version number."""
    try:
        start, *_, magic = _FOOTER.unpack(manifest[-_FOOTER.size :])
        (length,) = _LENGTH.unpack_from(manifest, start)
    except struct.error:
        start, length, magic = 0, 0, b""
    end = start + _LENGTH.size + length
    if magic != _MAGIC or end != len(manifest) - _FOOTER.size:
        raise ValueError("the manifest of a version has another form than this Lance writes")
    # Of repeated values in a protobuf message the last one counts.
    message = manifest[start + _LENGTH.size : end] + _VERSION + encode_varint(version)
    return manifest[:start] + _LENGTH.pack(len(message)) + message + manifest[-_FOOTER.size :]


def is_v1_paths_error(error: OSError) -> bool:
    """Whether Lance refused a detached version because of v1 manifest paths."""
    return _V1_PATHS_MESSAGE in str(error).lower()


def check_detachable(dataset: lance.LanceDataset, location: Location, purpose: str) -> None:
    """Refuse a table with v1 manifest paths.

    Commits an empty detached version to find out, which vacuum removes later.
    """
    try:
        # Lance has no other way to ask for the naming scheme.
        LanceDataset.commit(
            dataset,
            LanceOperation.Append([]),
            read_version=dataset.version,
            detached=True,
            **location.write_options,
        )
    except OSError as error:
        if not is_v1_paths_error(error):
            raise
        raise PhalanxError(
            f"Cannot {purpose}: {location} has v1 manifest paths, expected v2. Call "
            f"lance.dataset({location.uri!r}).migrate_manifest_paths_v2() while no client has the "
            "table open, and try again."
        ) from None
