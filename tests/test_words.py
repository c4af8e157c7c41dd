"""How the source speaks: docstrings that are sentences, files that exist, a row of the guide for each package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ptymesh"
#: Words that begin a fragment, where a sentence says what is done or what a thing is.
FRAGMENTS = re.compile(r"(Of|Whether|What|As|Those|That|In|On|By|Its|From|Where|Who|Whose|Which|How|All that)\b")
#: Paths in backticks or in brackets, as comments and pages name files of this repository.
PATHS = re.compile(r"[`(]((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md|json))[`)]")


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield every docstring of the source, with where it stands."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = getattr(node, "name", "")
                    yield f"{file.relative_to(SOURCE)}:{getattr(node, 'lineno', 1)} {name}", text


def test_docstrings_begin_with_a_sentence() -> None:
    fragments = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings() if FRAGMENTS.match(text)]
    assert not fragments, "\n".join(fragments)


def test_files_that_are_named_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    pages = [page for page in pages if page.name != "CHANGELOG.md"]  # it tells of files that were
    missing = []
    for file in [*SOURCE.rglob("*.py"), *pages]:
        for path in PATHS.findall(file.read_text(encoding="utf-8")):
            if not any((base / path).exists() for base in (ROOT, SOURCE, ROOT / "docs", *file.parents[:3])):
                missing.append(f"{file.relative_to(ROOT)}: {path}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("package", sorted(p.parent.name for p in SOURCE.glob("*/__init__.py")))
def test_the_guide_says_what_a_package_is_for(package: str) -> None:
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines() if "|" in line]
    assert any(f"`{package}/`" in row.split("|")[1] for row in rows), f"no row of CONTRIBUTING.md is about {package}/"
