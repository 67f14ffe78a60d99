"""Where a location leads, from its text alone."""

from __future__ import annotations

import pytest

from phalanx.errors import UntrustedLocation
from phalanx.model.locations import LeafPath, display_location, resolve_location

S3, LOCAL, FILE = "s3://bucket/lake/table", "/lake/table", "file:///lake/table"


@pytest.mark.parametrize(
    ("root", "location", "expected"),
    [
        (LOCAL, "leaf", LeafPath("/lake/table/leaf", "leaf")),
        (LOCAL, "./a//leaf/", LeafPath("/lake/table/a/leaf", "a/leaf")),
        (LOCAL, "/lake/table/leaf", LeafPath("/lake/table/leaf", "leaf")),
        (LOCAL, "file:///lake/table/leaf", LeafPath("/lake/table/leaf", "leaf")),
        (LOCAL, "/lake/tables/leaf", LeafPath("/lake/tables/leaf", None)),
        (LOCAL, "/lake/table/../other/leaf", None),
        (LOCAL, "../other/leaf", LeafPath("/lake/other/leaf", None)),
        (LOCAL, "../../../x", None),
        (
            LOCAL,
            "k=a%2F..%2Fb.lance",
            LeafPath("/lake/table/k=a%2F..%2Fb.lance", "k=a%2F..%2Fb.lance"),
        ),
        (LOCAL, "s3://other/leaf", LeafPath("s3://other/leaf", None)),
        (S3, "leaf", LeafPath(f"{S3}/leaf", "leaf")),
        (S3, f"{S3}/leaf", LeafPath(f"{S3}/leaf", "leaf")),
        (S3, f"{S3}s/leaf", LeafPath(f"{S3}s/leaf", None)),
        (S3, "s3://other/lake/table/leaf", LeafPath("s3://other/lake/table/leaf", None)),
        (S3, "../other/leaf", LeafPath("s3://bucket/lake/other/leaf", None)),
        (S3, "../../../other/leaf", None),
        (S3, "/etc/leaf", LeafPath("/etc/leaf", None)),
        (S3, "%2e%2e/other", None),
        (S3, "a%2F..%2F..%2Fother", None),
        (S3, f"{S3}/%2E%2E/other", None),
        (S3, "s3://other/a/../b", None),
        (
            S3,
            "k=a%252F..%252Fb.lance",
            LeafPath(f"{S3}/k=a%252F..%252Fb.lance", "k=a%252F..%252Fb.lance"),
        ),
        (FILE, "..\\victim", None),
        (FILE, ".\t./victim", None),
        (FILE, "leaf", LeafPath(f"{FILE}/leaf", "leaf")),
        (S3, "__manifest", None),
        (S3, f"{S3}/__manifest/data", None),
        (S3, f"{S3}/", None),
    ],
)
def test_places(root: str, location: str, expected: LeafPath | None) -> None:
    if expected is not None:
        assert resolve_location(root, location) == expected
        assert display_location(root, location) == expected.uri
        return
    with pytest.raises(UntrustedLocation, match="correct the column location"):
        resolve_location(root, location)
    assert isinstance(display_location(root, location), str)
