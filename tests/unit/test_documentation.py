"""The Python snippets of the documentation run, and print what their comments say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_SNIPPETS = [page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: page.stem)
def test_snippets_print_what_they_promise(
    page: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = page.read_text(encoding="utf-8")
    example = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    exec(compile(example, str(page), "exec"), {})
    printed = capsys.readouterr().out
    results = re.findall(r"^ *print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert results
    assert len(results) == example.count("print(")
    for result in results:
        start = result.removesuffix(" …")
        assert any(
            line.startswith(start) if result.endswith(" …") else line == result
            for line in printed.splitlines()
        ), result
    if page.name == "README.md":
        # The filter that the plan is said to have; the SQL of Spark is tried in tests/spark.
        promised, *_ = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
        assert " ".join(promised.split()) in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
