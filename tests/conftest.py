"""How hard the property tests try, and which tests share a process.

PHALANX_PROFILE is `test` (the default) or `soak`.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "test",
    max_examples=300,
    deadline=None,
    # The same examples in every run: a change is judged by itself. The soak looks for new ones.
    derandomize=True,
    print_blob=True,
    # Drawing schemas with matching data is slow by nature.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak", parent=settings.get_profile("test"), max_examples=5000, derandomize=False
)
settings.load_profile(os.environ.get("PHALANX_PROFILE", "test"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of one Spark session in one process: each session takes seconds and memory."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
