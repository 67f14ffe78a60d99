"""What the README shows runs as printed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_example_prints_what_the_readme_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = README.read_text(encoding="utf-8")
    example = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    # The first one: those of Spark are tried in tests/spark/test_sql_catalog.py.
    promised, *_ = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    printed = capsys.readouterr().out
    assert " ".join(promised.split()) in printed
    results = re.findall(r"^ *print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert len(results) == example.count("print(")
    for result in results:
        start = result.removesuffix(" …")
        assert any(
            line.startswith(start) if result.endswith(" …") else line == result
            for line in printed.splitlines()
        ), result
