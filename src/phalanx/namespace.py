"""A partitioned namespace as a read-only catalog, for every client of `lance_namespace`.

    lance_namespace.connect("phalanx.PartitionedNamespace", {"root": "/data/events"})

The levels are those of the format: the root, a namespace for each spec version (`v1`), one below it
for each partition value, and in the last one a table named `dataset`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import lance_namespace as catalog

from phalanx.errors import PhalanxError
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import TRUE
from phalanx.storage.commit.late_commits import FIRST_DETACHED
from phalanx.storage.commit.publishing import has_contents_of
from phalanx.storage.lance.failures import ErrorTranslator, translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.schema import read_lance_schema
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.objects import (
    NAMESPACE,
    TABLE,
    NamespaceObject,
    derive_properties,
    find_object,
    list_child_names,
    list_descendant_ids,
)
from phalanx.storage.state.naming import SEPARATOR
from phalanx.storage.state.properties import format_properties

_STORAGE_OPTION = "storage."
_TRUST = "trust_locations"
_Request = TypeVar("_Request")


class PartitionedNamespace(ErrorTranslator, catalog.LanceNamespace):
    """Lists and describes a partitioned namespace, as it is at the time of each call.

    `root` is a path or URI. Options of the object store are properties named `storage.<key>`; they
    are returned with each table, so that clients can open it. With the property
    `trust_locations=true`, tables outside of the root that were not adopted are opened too. A
    namespace for a partition value has the property `partition.<field_id>`, unless the value is
    NULL.
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
        with translate_errors(f"open {location}"):
            self._manifest = Manifest.open(location)

    def _error_location(self) -> Location:
        return self._manifest.root

    def __repr__(self) -> str:
        return self.namespace_id()

    def __reduce__(self) -> tuple[Callable[..., catalog.LanceNamespace], tuple[Any, ...]]:
        return catalog.connect, ("phalanx.PartitionedNamespace", self._properties)

    def namespace_id(self) -> str:
        """Return a text that identifies this namespace."""
        return f'PartitionedNamespace {{ root: "{self._manifest.root}" }}'

    # ── namespaces ───────────────────────────────────────────────────────────────────────────

    def list_namespaces(
        self, request: catalog.ListNamespacesRequest
    ) -> catalog.ListNamespacesResponse:
        """Return the names of the namespaces directly in a namespace, sorted."""
        request = _parse_request(catalog.ListNamespacesRequest, request)
        manifest, parent = self._load_namespace(request.id)
        names, token = _list_page(
            lambda after, limit: list_child_names(manifest, parent, NAMESPACE, after, limit),
            request,
        )
        return catalog.ListNamespacesResponse(namespaces=names, page_token=token)

    def describe_namespace(
        self, request: catalog.DescribeNamespaceRequest
    ) -> catalog.DescribeNamespaceResponse:
        """Return the properties of a namespace (format: Appendix E), of its own level only."""
        request = _parse_request(catalog.DescribeNamespaceRequest, request)
        manifest = self._load_latest()
        if not request.id:
            properties = format_properties(manifest.dataset.metadata)
        else:
            entry = _find_namespace(manifest, request.id)
            properties = {**entry.stored_properties, **derive_properties(manifest, entry)}
        return catalog.DescribeNamespaceResponse(properties=properties)

    def namespace_exists(
        self, request: catalog.NamespaceExistsRequest
    ) -> catalog.NamespaceExistsResponse:
        """Raise `NamespaceNotFoundError` if there is no such namespace."""
        request = _parse_request(catalog.NamespaceExistsRequest, request)
        self._load_namespace(request.id)
        return catalog.NamespaceExistsResponse()

    # ── tables ───────────────────────────────────────────────────────────────────────────────

    def list_tables(self, request: catalog.ListTablesRequest) -> catalog.ListTablesResponse:
        """Return the names of the tables directly in a namespace, sorted."""
        request = _parse_request(catalog.ListTablesRequest, request)
        manifest, parent = self._load_namespace(request.id)
        names, token = _list_page(
            lambda after, limit: list_child_names(manifest, parent, TABLE, after, limit), request
        )
        return catalog.ListTablesResponse(tables=names, page_token=token)

    def list_all_tables(self, request: catalog.ListTablesRequest) -> catalog.ListTablesResponse:
        """Return the full ids of the tables in a namespace at any depth, sorted."""
        request = _parse_request(catalog.ListTablesRequest, request)
        manifest, parent = self._load_namespace(request.id)
        names, token = _list_page(
            lambda after, limit: list_descendant_ids(manifest, parent, TABLE, after, limit), request
        )
        return catalog.ListTablesResponse(tables=names, page_token=token)

    def describe_table(
        self, request: catalog.DescribeTableRequest
    ) -> catalog.DescribeTableResponse:
        """Return the location of a table, and the version to read if the namespace pins one.

        In strong mode that is the version of the main branch with the committed rows; None until
        they are published there.
        """
        request = _parse_request(catalog.DescribeTableRequest, request)
        if request.tag is not None or request.branch is not None:
            raise catalog.UnsupportedOperationError(
                f"Cannot describe {request.id} at a tag or a branch: a partitioned "
                "namespace has versions only. Open the table at its location with lance.dataset."
            )
        manifest = self._load_latest()
        entry = _find_table(manifest, request.id)
        location = _location_of(manifest, entry)
        if location.is_outside:
            # A client would send the store's options to wherever the manifest says.
            _open_version(location, None, entry)
        version = entry.read_version if request.version is None else request.version
        schema, stats = manifest.properties.schema, None
        if request.load_detailed_metadata or request.version is not None:
            dataset = _open_version(location, version, entry)
            version = dataset.version
            schema = schema if request.version is None else read_lance_schema(dataset)
            fragments = [fragment.metadata for fragment in dataset.get_fragments()]
            deleted = sum(fragment.num_deletions for fragment in fragments)
            stats = {"num_deleted_rows": deleted, "num_fragments": len(fragments)}
        if version is not None and version >= FIRST_DETACHED:
            version = _find_on_main(location, version, entry)
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
        """Raise `TableNotFoundError` if there is no such table."""
        request = _parse_request(catalog.TableExistsRequest, request)
        manifest = self._load_latest()
        entry = _find_table(manifest, request.id)
        if request.version is not None:
            _open_version(_location_of(manifest, entry), request.version, entry)
        return catalog.TableExistsResponse()

    def count_table_rows(
        self, request: catalog.CountTableRowsRequest
    ) -> catalog.CountTableRowsResponse:
        """Count the rows of one table that match."""
        request = _parse_request(catalog.CountTableRowsRequest, request)
        manifest = self._load_latest()
        entry = _find_table(manifest, request.id)
        schema = manifest.properties.schema
        version = entry.read_version if request.version is None else request.version
        try:
            predicate = (
                TRUE if request.predicate is None else bind_predicate(request.predicate, schema)
            )
        except PhalanxError as error:
            raise catalog.InvalidInputError(str(error)) from None
        location = _location_of(manifest, entry)
        _open_version(location, version, entry)
        scan = LeafScan(location, version, schema, schema.names, predicate)
        return catalog.CountTableRowsResponse(count=scan.count_rows())

    def _load_latest(self) -> Manifest:
        self._manifest = self._manifest.load_latest()
        return self._manifest

    def _load_namespace(self, id: Sequence[str] | None) -> tuple[Manifest, str]:
        """Return the manifest, and the object id of a namespace in it; "" for the root."""
        manifest = self._load_latest()
        return manifest, _find_namespace(manifest, id).object_id if id else ""


def _parse_request(
    kind: Callable[..., _Request], request: _Request | Mapping[str, Any]
) -> _Request:
    """Return the request as a model; Lance's native code passes a mapping."""
    return kind(**request) if isinstance(request, Mapping) else request


def _list_page(
    list_names: Callable[[str | None, int | None], list[str]],
    request: catalog.ListNamespacesRequest | catalog.ListTablesRequest,
) -> tuple[list[str], str | None]:
    """Return one page of names, and the token of the next page, which is the last name."""
    limit = request.limit
    if limit is not None and limit < 1:
        raise catalog.InvalidInputError(
            f"Cannot list {limit} names: expected a limit of 1 or more."
        )
    names = list_names(request.page_token or None, None if limit is None else limit + 1)
    if limit is None or len(names) <= limit:
        return names, None
    return names[:limit], names[limit - 1]


def _find_namespace(manifest: Manifest, id: Sequence[str]) -> NamespaceObject:
    entry = _find_object(manifest, id, NAMESPACE)
    if entry is None:
        raise catalog.NamespaceNotFoundError(
            f"{manifest.root} has no namespace {id}: see list_namespaces."
        )
    return entry


def _find_table(manifest: Manifest, id: Sequence[str] | None) -> NamespaceObject:
    if not id:
        raise catalog.InvalidInputError(
            "A table needs an id: expected its path, for example ['v1', '<partition>', 'dataset']."
        )
    entry = _find_object(manifest, id, TABLE)
    if entry is None or entry.location is None:
        raise catalog.TableNotFoundError(f"{manifest.root} has no table {id}: see list_all_tables.")
    return entry


def _find_object(manifest: Manifest, id: Sequence[str], kind: str) -> NamespaceObject | None:
    # A name that contains the separator would look like a path.
    if any(SEPARATOR in name for name in id):
        return None
    return find_object(manifest, SEPARATOR.join(id), kind)


def _location_of(manifest: Manifest, entry: NamespaceObject) -> Location:
    assert entry.location is not None
    return manifest.root.leaf(entry.location)


def _open_version(location: Location, version: int | None, entry: NamespaceObject) -> Any:
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


def _find_on_main(location: Location, version: int, entry: NamespaceObject) -> int | None:
    """Return the version on the main branch with the rows of a detached version, if there is one.

    Clients count versions in 63 bits, and cannot open detached ones.
    """
    main = _open_version(location, None, entry)
    return int(main.version) if has_contents_of(main, main.version, version) else None


_DEFAULT_ADVICE = (
    "write through phalanx.Table, or read the location that describe_table gives with lance"
)
_ADVICE = {
    "create_namespace": "use phalanx.Table.append, which creates the partitions of its rows",
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


def _make_refusal(name: str) -> Callable[..., NoReturn]:
    instead = _ADVICE.get(name, _DEFAULT_ADVICE)

    def refuse(self: PartitionedNamespace, *_: object, **__: object) -> NoReturn:
        raise catalog.UnsupportedOperationError(
            f"PartitionedNamespace does not support {name}: {instead}."
        )

    refuse.__doc__ = f"Not supported: {instead}."
    return refuse


# Every other operation of the interface raises an error that names the method to use instead.
for _name in set(vars(catalog.LanceNamespace)) - set(vars(PartitionedNamespace)):
    if not _name.startswith("_"):
        setattr(PartitionedNamespace, _name, _make_refusal(_name))
