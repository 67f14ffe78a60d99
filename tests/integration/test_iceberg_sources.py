"""Iceberg tables that cannot be imported raise a one-line error without pyiceberg's messages."""

from pathlib import Path

import pytest

from phalanx.errors import PhalanxError
from phalanx.table.imports.sources import open_source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Invalid JSON"),
        ('{"format-version": 9}', "Input tag '9' .* any of the expected tags: 1, 2, 3"),
        ('{"format-version": 2}', "2: location: Field required; "),
    ],
)
def test_broken_metadata_name_the_file(tmp_path: Path, text: str, said: str) -> None:
    place = tmp_path / "v1.metadata.json"
    place.write_text(text)
    with pytest.raises(
        PhalanxError, match=f"Cannot open the Iceberg table {place}: {said}"
    ) as raised:
        open_source(str(place), "iceberg")
    assert "\n" not in str(raised.value)
    assert "pydantic" not in str(raised.value)
