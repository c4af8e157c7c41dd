"""What the site is made of: links and fetched things are found, drawings and tables are what their scripts say."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ptymesh.cli import main as module

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


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


def test_times_to_solution_are_those_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the page, from the file that it names."""
    page = (DOCS / "comparison.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"solution\.py (\S+\.json)", page)
    found = json.loads((ROOT / file).read_text(encoding="utf-8"))
    races = load(ROOT / "benchmarks" / "peers" / "solution.py", monkeypatch).races(found)
    assert len(races) == 10
    for race in races:
        numbers = (
            f"{race.residual:.4f} | {race.peer_epochs} | {race.peer_seconds:.1f} | {race.epochs} | {race.seconds:.2f}"
        )
        assert f"{numbers} | {race.peer_seconds / race.seconds:.1f} |" in page
        assert race.seconds == pytest.approx(sum(_seconds(found, race)[: race.epochs]))


def _seconds(found: dict, race: object) -> list[float]:
    (one,) = [
        one for one in found["comparisons"] if all(one[k] == getattr(race, k) for k in ("engine", "modes", "peer"))
    ]
    return one["seconds"]["ptymesh"]


def test_questions_are_answered_within_two_clicks() -> None:
    """The start page leads to the questions, and each of these to a page with the answer."""
    assert "(questions.md)" in (DOCS / "index.md").read_text(encoding="utf-8")
    text = (DOCS / "questions.md").read_text(encoding="utf-8").partition("\n## ")[0]
    questions = re.findall(r"^\*\*([^*]+\?(?: [^*]+\?)?)\*\*(.*?)(?=^\*\*|\Z)", text, re.S | re.M)
    assert len(questions) >= 10
    for question, answer in questions:
        assert re.search(r"\]\([^)]+\)", answer), question


def test_docstrings_reach_sphinx_as_they_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = load(DOCS / "extensions" / "docstrings.py", monkeypatch).marked
    assert marked(["|P|^2 and `x_1`, *both*"]) == [r"\|P\|^2 and ``x_1``, \*both\*"]
    assert marked(["Say:", "", "    a = b*c"]) == ["Say:", "", "::", "", "    a = b*c"]
    assert marked(["Args:", "    a: the |A|"]) == ["Args:", r"    a: the \|A\|"]
