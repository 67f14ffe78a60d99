"""The fields of errors, which stay when an error is pickled, as between Spark's processes."""

import copy
import pickle
import subprocess
import sys

import pytest

import phalanx
from phalanx import errors
from phalanx.errors import CommitConflict, ForeignWrite, PartialWrite, PhalanxError, UnknownOutcome
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.table.transactions.strong_target import RetryableConflict

GERMANY, FRANCE = PartitionKey(1, ("DE", 2024)), PartitionKey(2, ("FR", None))
FULL = [
    CommitConflict("c", partitions=[GERMANY], snapshot=7),
    RetryableConflict("c", partitions=[GERMANY], snapshot=7),
    PartialWrite(
        "p", written=[GERMANY], not_written=[FRANCE], unknown=[GERMANY], duplicated=[FRANCE]
    ),
    UnknownOutcome("u", snapshot=8, partitions=[GERMANY, FRANCE], markers=["load 7"]),
    ForeignWrite("f", partitions=[FRANCE], locations=["/t/leaf"], version=3, snapshot=9),
]


def kinds() -> list[type[PhalanxError]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PhalanxError)
    ]


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_fields_survive_pickling(error: PhalanxError) -> None:
    for found in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(found) is type(error)
        assert (str(found), vars(found)) == (str(error), vars(error))
        assert all(value for value in vars(found).values())


@pytest.mark.parametrize("kind", kinds())
def test_every_error_is_made_of_a_message(kind: type[PhalanxError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what failed")))
    assert (type(error), str(error), error.args) == (kind, "what failed", ("what failed",))
    assert not any(vars(error).values())


_FAILS = """
import pickle, sys
from phalanx import PartialWrite, PartitionKey
error = PartialWrite("p", not_written=[PartitionKey(2, ("FR", None))])
sys.stdout.buffer.write(pickle.dumps(error))
"""


def test_fields_arrive_from_another_process() -> None:
    done = subprocess.run([sys.executable, "-c", _FAILS], capture_output=True, check=True)
    assert pickle.loads(done.stdout).not_written == (FRANCE,)


def test_an_invalid_argument_is_a_value_error() -> None:
    assert issubclass(phalanx.InvalidArgument, ValueError)
    assert issubclass(phalanx.InvalidArgument, PhalanxError)


def test_fields_are_documented() -> None:
    for error in FULL:
        kind = type(error).__mro__[1] if isinstance(error, RetryableConflict) else type(error)
        assert all(f"        {name}: " in (kind.__doc__ or "") for name in vars(error))
    for kind in kinds():
        assert f"{kind.__name__} " in (errors.__doc__ or "") or kind is PhalanxError
