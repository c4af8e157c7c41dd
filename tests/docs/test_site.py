"""What the site is made of: links and fetched things are found, drawings and tables are what their scripts say."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ptymesh.cli import main as module
from ptymesh.diagnosis import CAUSES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"


def load(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script of docs/ or benchmarks/."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, made)
    spec.loader.exec_module(made)
    return made


SOUND = '<p id="here"><a href="b.html#there">b</a> <a href="#here">a</a> <a href="https://example.org">far</a></p>'
FAULTS = {
    '<a href="c.html">c</a>': "c.html leads nowhere",
    '<a href="b.html#nowhere">b</a>': "b.html#nowhere names no part of that page",
    '<img src="lost.png">': "lost.png leads nowhere",
    '<script src="https://cdn.example.org/m.js"></script>': "https://cdn.example.org/m.js is fetched from a network",
    '<link rel="stylesheet" href="//example.org/a.css">': "//example.org/a.css is fetched from a network",
    '<p style="background: url(https://example.org/a.png)">': "https://example.org/a.png is fetched from a network",
}


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_faults_of_a_site_are_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.html").write_text(SOUND + fault)
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    (tmp_path / "site.css").write_text("p { color: red; }")
    wrong, pages, links = load(DOCS / "check_site.py", monkeypatch).faults(tmp_path)
    assert (wrong, pages) == ([f"a.html: {FAULTS[fault]}"] if fault else [], 2)
    assert links >= 2


@pytest.mark.parametrize(
    ("css", "said"),
    [("@import 'https://example.org/a.css';", "is fetched from a network"), ("p{background:url(x.png)}", "nowhere")],
)
def test_faults_of_a_style_sheet_are_found(
    css: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.css").write_text(css)
    (fault,), _, _ = load(DOCS / "check_site.py", monkeypatch).faults(tmp_path)
    assert said in fault


def test_the_drawing_of_the_packages_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = load(DOCS / "packages.py", monkeypatch)
    assert packages.DRAWING.read_text(encoding="utf-8") == packages.drawing(), "run: python docs/packages.py"


def test_the_gallery_has_commands_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(DOCS / "gallery.py", monkeypatch).examples()
    assert len(found) >= 5
    for name, lines in found.items():
        assert (DOCS / "figures" / f"{name}.png").stat().st_size
        words = [shlex.split(line, comments=True) for line in lines]
        assert all(line[1] in module.COMMANDS for line in words if line[0] == "ptymesh")
        assert re.search(r"\w\.png", lines[-1]), "the last line names the figure"


def test_tests_that_cases_name_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = load(DOCS / "measured.py", monkeypatch).cases()
    rows = [row for part in parts.values() for row in part]
    causes = {cause.name for cause in CAUSES}
    for row in rows:
        assert set(row) <= {"what", "before", "now", "cause", "tests"} and row["now"] and row["tests"], row
        assert set(row.get("cause", ())) <= causes, row
        for name in row["tests"]:
            file, _, function = name.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {function}\(", text, re.M), (
                f"{name} is gone; the case {row['what']!r} needs a test"
            )


def test_tables_are_those_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table that is written from a file of benchmarks/results."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    measured = load(DOCS / "measured.py", monkeypatch)
    named = []
    for page in measured.pages():
        text = page.read_text(encoding="utf-8")
        named += [found[1] for found in measured.MARKED.findall(text)]
        assert measured.written(text) == text, f"{page.name}: run python docs/measured.py"
    assert sorted(named) == sorted(measured.TABLES)


def test_results_say_where_and_when() -> None:
    """And the page of numbers names all of them."""
    page = (DOCS / "background" / "numbers.md").read_text(encoding="utf-8")
    files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    assert set(re.findall(r"`(2[\d-]+-[\w-]+\.json)`", page)) == set(files)
    for name, found in files.items():
        assert found["machine"]["cpu"] and found["machine"]["torch"], name
        assert name.startswith(found["started"][:10]), name


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*-solution.json"))[-1:], ids=lambda path: path.stem)
def test_times_to_solution_add_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One judge, and every program as good as its own loss says; nobody is as good before the seconds of the table."""
    found = json.loads(file.read_text(encoding="utf-8"))
    racing = load(ROOT / "benchmarks" / "peers" / "arrivals.py", monkeypatch)
    assert {case["program"] for case in found["cases"]} == {"ptymesh", *load(DOCS / "measured.py", monkeypatch).PEERS}
    for one in racing.arrivals(found["cases"]):
        curve = one.case["curve"]
        assert one.case["training"] == pytest.approx(one.case["own_training"], rel=0.15), one.case["about"]
        before = [point["held_out"] for point in curve if point["seconds"] < one.seconds]
        assert one.lowest == min(point["held_out"] for point in curve) < min([*before, math.inf]) / racing.ARRIVED


def test_questions_are_answered_within_two_clicks() -> None:
    """The start page leads to the questions, and each of these to a page with the answer."""
    assert "(questions.md)" in (DOCS / "index.md").read_text(encoding="utf-8")
    text = (DOCS / "questions.md").read_text(encoding="utf-8").partition("\n## ")[0]
    questions = re.findall(r"^\*\*([^*]+\?(?: [^*]+\?)?)\*\*(.*?)(?=^\*\*|\Z)", text, re.S | re.M)
    assert len(questions) >= 10
    for question, answer in questions:
        assert re.search(r"\]\([^)]+\)", answer), question


@pytest.mark.docs
def test_bars_of_an_equation_open_and_close(monkeypatch: pytest.MonkeyPatch) -> None:
    mathml = load(DOCS / "extensions" / "equations.py", monkeypatch).mathml
    for bars in (r"\lvert a \rvert + \lvert b \rvert^2", r"\lVert a \rVert = \lVert b \rVert"):
        assert re.findall('form="([a-z]+)"', mathml(bars)) == ["prefix", "postfix"] * 2
    assert "form=" not in mathml("a + b")


def test_docstrings_reach_sphinx_as_they_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = load(DOCS / "extensions" / "docstrings.py", monkeypatch).marked
    assert marked(["|P|^2 and `x_1`, *both*"]) == [r"\|P\|^2 and ``x_1``, \*both\*"]
    assert marked(["Say:", "", "    a = b*c"]) == ["Say:", "", "::", "", "    a = b*c"]
    assert marked(["Args:", "    a: the |A|"]) == ["Args:", r"    a: the \|A\|"]
