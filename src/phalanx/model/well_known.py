"""Expressions that spell out a well-known transform (format: Partition Transform)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.sql.syntax import Call, Column, Literal, Node
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.model.transforms.truncate import Truncate, is_text


def well_known(node: Node, sources: int, result: pa.DataType) -> Transform | None:
    """The well-known transform that the expression spells out; None for any other expression.

    The result type decides between the two forms of truncate, which keeps the source's type.
    """
    if sources == 1:
        match node:
            case Column(path=("col0",)):
                return IDENTITY
            case Call(name="date_part", args=(Literal(value=part), Column(path=("col0",)))):
                return next((known for known in DATE_CHAIN if known.name == part.as_py()), None)
            case Call(name="left", args=(Column(path=("col0",)), Literal(value=width))):
                return _truncate(width) if is_text(result) else None
            case Call(
                name="-",
                args=(
                    Column(path=("col0",)),
                    Call(name="%", args=(Column(path=("col0",)), Literal(value=width))),
                ),
            ):
                return _truncate(width) if _is_number(result) else None
    match node:
        case Call(name="%", args=(Call(name="abs", args=(hashed,)), Literal(value=count))):
            return _well_known_bucket(hashed, count, sources)
    return None


def _well_known_bucket(hashed: Node, count: pa.Scalar, sources: int) -> Transform | None:
    if not pt.is_integer(count.type) or count.as_py() < 1:
        return None
    match hashed:
        case Call(name="murmur3", args=(Column(path=("col0",)),)) if sources == 1:
            return Bucket(count.as_py())
        case Call(name="murmur3_multi", args=args):
            if args == tuple(Column((f"col{place}",)) for place in range(sources)):
                return MultiBucket(count.as_py())
    return None


def _truncate(width: pa.Scalar) -> Transform | None:
    if not pt.is_integer(width.type) or width.as_py() < 1:
        return None
    return Truncate(width.as_py())


def _is_number(result: pa.DataType) -> bool:
    return bool(pt.is_integer(result) or pt.is_floating(result) or pt.is_decimal(result))
