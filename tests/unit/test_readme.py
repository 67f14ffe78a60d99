"""What the README shows runs as printed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_example_prints_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (promised,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    assert " ".join(promised.split()) in capsys.readouterr().out
