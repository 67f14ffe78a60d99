"""A partitioned namespace for every client of Lance's own catalog interface, to read.

    lance_namespace.connect("phalanx.PartitionedNamespace", {"root": "/data/events"})

Levels are as the format has them: the root, a namespace for each spec version (`v1`), one for
each partition value below it, and in the last a table named `dataset`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import lance_namespace as catalog

from phalanx.errors import PhalanxError
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import TRUE
from phalanx.storage.commit.late_commits import FIRST_DETACHED
from phalanx.storage.commit.publishing import shows
from phalanx.storage.lance.failures import Guarded, told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.schema import schema_of
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.objects import (
    NAMESPACE,
    TABLE,
    Entry,
    children,
    descendants,
    find,
    runtime_properties,
)
from phalanx.storage.state.naming import SEPARATOR
from phalanx.storage.state.properties import format_properties

_STORAGE_OPTION = "storage."
_TRUST = "trust_locations"
Request = TypeVar("Request")


class PartitionedNamespace(Guarded, catalog.LanceNamespace):
    """Lists and describes what a partitioned namespace holds, as it is at the time of the call.

    `root` is a path or URI. With the property `trust_locations` = `true` tables outside of the root
    are opened too that are not recorded as the namespace's. Options of the object store are
    properties named `storage.<key>`; tables are described with them, so that clients can open what
    they find. A namespace for a partition value has the property `partition.<field_id>`; a NULL
    value has none.
    """

    def __init__(self, root: str | os.PathLike[str], **properties: str) -> None:
        trusts = properties.get(_TRUST, "false").lower()
        stores = {name: text for name, text in properties.items() if name != _TRUST}
        if trusts not in ("true", "false"):
            raise catalog.InvalidInputError(
                f"PartitionedNamespace cannot have {_TRUST}={trusts!r}: expected true or false."
            )
        unknown = [name for name in stores if not name.startswith(_STORAGE_OPTION)]
        if unknown:
            raise catalog.InvalidInputError(
                f"PartitionedNamespace has no property {unknown[0]!r}: expected root, {_TRUST}, "
                f"and {_STORAGE_OPTION}<key> for what the object store needs."
            )
        options = {name[len(_STORAGE_OPTION) :]: text for name, text in stores.items()}
        self._properties = {"root": os.fspath(root), **properties}
        location = Location.of(root, options or None, trusts == "true")
        with told(f"open {location}"):
            self._manifest = Manifest.open(location)

    def _stored_at(self) -> Location:
        return self._manifest.root

    def __repr__(self) -> str:
        return self.namespace_id()

    def __reduce__(self) -> tuple[Callable[..., catalog.LanceNamespace], tuple[Any, ...]]:
        return catalog.connect, ("phalanx.PartitionedNamespace", self._properties)

    def namespace_id(self) -> str:
        """What tells this namespace from others."""
        return f'PartitionedNamespace {{ root: "{self._manifest.root}" }}'

    # ── namespaces ───────────────────────────────────────────────────────────────────────────

    def list_namespaces(
        self, request: catalog.ListNamespacesRequest
    ) -> catalog.ListNamespacesResponse:
        """The names of the namespaces directly in one, in order."""
        request = _typed(catalog.ListNamespacesRequest, request)
        manifest, parent = self._existing_namespace(request.id)
        names, token = _page(
            lambda after, limit: children(manifest, parent, NAMESPACE, after, limit), request
        )
        return catalog.ListNamespacesResponse(namespaces=names, page_token=token)

    def describe_namespace(
        self, request: catalog.DescribeNamespaceRequest
    ) -> catalog.DescribeNamespaceResponse:
        """The properties of a namespace (format: Appendix E), of its own level only."""
        request = _typed(catalog.DescribeNamespaceRequest, request)
        manifest = self._latest()
        if not request.id:
            properties = format_properties(manifest.dataset.metadata)
        else:
            entry = _namespace(manifest, request.id)
            properties = {**entry.stored_properties, **runtime_properties(manifest, entry)}
        return catalog.DescribeNamespaceResponse(properties=properties)

    def namespace_exists(
        self, request: catalog.NamespaceExistsRequest
    ) -> catalog.NamespaceExistsResponse:
        """Raises `NamespaceNotFoundError` if there is no such namespace."""
        request = _typed(catalog.NamespaceExistsRequest, request)
        self._existing_namespace(request.id)
        return catalog.NamespaceExistsResponse()

    # ── tables ───────────────────────────────────────────────────────────────────────────────

    def list_tables(self, request: catalog.ListTablesRequest) -> catalog.ListTablesResponse:
        """The names of the tables directly in a namespace, in order."""
        request = _typed(catalog.ListTablesRequest, request)
        manifest, parent = self._existing_namespace(request.id)
        names, token = _page(
            lambda after, limit: children(manifest, parent, TABLE, after, limit), request
        )
        return catalog.ListTablesResponse(tables=names, page_token=token)

    def list_all_tables(self, request: catalog.ListTablesRequest) -> catalog.ListTablesResponse:
        """The full ids of the tables in a namespace at any depth, in order."""
        request = _typed(catalog.ListTablesRequest, request)
        manifest, parent = self._existing_namespace(request.id)
        names, token = _page(
            lambda after, limit: descendants(manifest, parent, TABLE, after, limit), request
        )
        return catalog.ListTablesResponse(tables=names, page_token=token)

    def describe_table(
        self, request: catalog.DescribeTableRequest
    ) -> catalog.DescribeTableResponse:
        """Where a table is, and the version to read where the namespace says which.

        In strong mode that is the number which the committed rows have on the main branch; there is
        none until the main branch has followed.
        """
        request = _typed(catalog.DescribeTableRequest, request)
        if request.tag is not None or request.branch is not None:
            raise catalog.UnsupportedOperationError(
                f"Cannot describe {request.id} at a tag or a branch: a partitioned "
                "namespace knows versions only. Open the table at its location with lance.dataset."
            )
        manifest = self._latest()
        entry = _table(manifest, request.id)
        location = _location(manifest, entry)
        if location.is_outside:
            # Whoever gets the store's options would send them to wherever the manifest says.
            _open(location, None, entry)
        version = entry.read_version if request.version is None else request.version
        schema, stats = manifest.properties.schema, None
        if request.load_detailed_metadata or request.version is not None:
            dataset = _open(location, version, entry)
            version = dataset.version
            schema = schema if request.version is None else schema_of(dataset)
            fragments = [fragment.metadata for fragment in dataset.get_fragments()]
            deleted = sum(fragment.num_deletions for fragment in fragments)
            stats = {"num_deleted_rows": deleted, "num_fragments": len(fragments)}
        if version is not None and version >= FIRST_DETACHED:
            version = _on_main(location, version, entry)
        *namespace, name = entry.object_id.split(SEPARATOR)
        local = "file://" if location.uri.startswith("/") else ""
        options = None if request.vend_credentials is False else location.storage_options
        described = {
            "table": name,
            "namespace": namespace,
            "version": version,
            "location": location.uri,
            "table_uri": local + location.uri if request.with_table_uri else None,
            "schema": json.loads(schema.to_json()),
            "storage_options": options,
            "stats": stats,
            "properties": entry.stored_properties,
            "is_only_declared": False if request.check_declared else None,
        }
        return catalog.DescribeTableResponse.model_validate(described)

    def table_exists(self, request: catalog.TableExistsRequest) -> catalog.TableExistsResponse:
        """Raises `TableNotFoundError` if there is no such table."""
        request = _typed(catalog.TableExistsRequest, request)
        manifest = self._latest()
        entry = _table(manifest, request.id)
        if request.version is not None:
            _open(_location(manifest, entry), request.version, entry)
        return catalog.TableExistsResponse()

    def count_table_rows(
        self, request: catalog.CountTableRowsRequest
    ) -> catalog.CountTableRowsResponse:
        """How many rows of one table match."""
        request = _typed(catalog.CountTableRowsRequest, request)
        manifest = self._latest()
        entry = _table(manifest, request.id)
        schema = manifest.properties.schema
        version = entry.read_version if request.version is None else request.version
        try:
            predicate = TRUE if request.predicate is None else bind(request.predicate, schema)
        except PhalanxError as error:
            raise catalog.InvalidInputError(str(error)) from None
        location = _location(manifest, entry)
        _open(location, version, entry)
        scan = LeafScan(location, version, schema, schema.names, predicate)
        return catalog.CountTableRowsResponse(count=scan.count_rows())

    def _latest(self) -> Manifest:
        self._manifest = self._manifest.latest()
        return self._manifest

    def _existing_namespace(self, id: Sequence[str] | None) -> tuple[Manifest, str]:
        """The manifest, and the object id of the namespace in it; "" for the root."""
        manifest = self._latest()
        return manifest, _namespace(manifest, id).object_id if id else ""


def _typed(kind: Callable[..., Request], request: Request | Mapping[str, Any]) -> Request:
    """The request; Lance's native code calls with a mapping in place of the model."""
    return kind(**request) if isinstance(request, Mapping) else request


def _page(
    listed: Callable[[str | None, int | None], list[str]],
    request: catalog.ListNamespacesRequest | catalog.ListTablesRequest,
) -> tuple[list[str], str | None]:
    """One page of names, and the token of the next one if there is one: the last name."""
    limit = request.limit
    if limit is not None and limit < 1:
        raise catalog.InvalidInputError(
            f"Cannot list {limit} names: expected a limit of 1 or more."
        )
    names = listed(request.page_token or None, None if limit is None else limit + 1)
    if limit is None or len(names) <= limit:
        return names, None
    return names[:limit], names[limit - 1]


def _namespace(manifest: Manifest, id: Sequence[str]) -> Entry:
    entry = _find(manifest, id, NAMESPACE)
    if entry is None:
        raise catalog.NamespaceNotFoundError(
            f"{manifest.root} has no namespace {id}: see list_namespaces."
        )
    return entry


def _table(manifest: Manifest, id: Sequence[str] | None) -> Entry:
    if not id:
        raise catalog.InvalidInputError(
            "A table needs an id: expected its path, for example ['v1', '<partition>', 'dataset']."
        )
    entry = _find(manifest, id, TABLE)
    if entry is None or entry.location is None:
        raise catalog.TableNotFoundError(f"{manifest.root} has no table {id}: see list_all_tables.")
    return entry


def _find(manifest: Manifest, id: Sequence[str], kind: str) -> Entry | None:
    # A name with the separator in it would be taken for a path.
    if any(SEPARATOR in name for name in id):
        return None
    return find(manifest, SEPARATOR.join(id), kind)


def _location(manifest: Manifest, entry: Entry) -> Location:
    assert entry.location is not None
    return manifest.root.child(entry.location)


def _open(location: Location, version: int | None, entry: Entry) -> Any:
    try:
        return location.open(version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        if version is None:
            raise catalog.TableNotFoundError(
                f"Table {entry.object_id} is listed, but {location} holds no Lance table."
            ) from None
        raise catalog.TableVersionNotFoundError(
            f"Table {entry.object_id} ({location}) has no version {version}."
        ) from None


def _on_main(location: Location, version: int, entry: Entry) -> int | None:
    """The number on the main branch of a version that is on none; None if it is not there yet.

    Clients count versions in 63 bits, and can open no others.
    """
    main = _open(location, None, entry)
    return int(main.version) if shows(main, main.version, version) else None


_ALSO = "write through phalanx.Table, or read the location that describe_table gives with lance"
_INSTEAD = {
    "create_namespace": "use phalanx.Table.append, which makes the partitions that rows need",
    "create_table": "use phalanx.create, and phalanx.Table.append for its partitions",
    "register_table": "use phalanx.Table.adopt",
    **dict.fromkeys(
        ("drop_namespace", "drop_table", "deregister_table"),
        "remove rows with phalanx.Table.delete",
    ),
    "alter_table_add_columns": "use phalanx.Table.add_column, which changes all partitions",
    "alter_table_alter_columns": "use phalanx.Table.rename_column or promote_column",
    "alter_table_drop_columns": "use phalanx.Table.drop_column, which changes all partitions",
    "query_table": "use phalanx.Table.scan, or lance.dataset on the location of describe_table",
    "get_table_stats": "use phalanx.Table.partitions or files",
}


def _refusal(name: str) -> Callable[..., NoReturn]:
    instead = _INSTEAD.get(name, _ALSO)

    def refuse(self: PartitionedNamespace, *_: object, **__: object) -> NoReturn:
        raise catalog.UnsupportedOperationError(
            f"PartitionedNamespace does not do {name}: {instead}."
        )

    refuse.__doc__ = f"Refused: {instead}."
    return refuse


# Every operation of the interface that is not done here says what does it.
for _name in set(vars(catalog.LanceNamespace)) - set(vars(PartitionedNamespace)):
    if not _name.startswith("_"):
        setattr(PartitionedNamespace, _name, _refusal(_name))
