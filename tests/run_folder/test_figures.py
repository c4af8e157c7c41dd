"""Figures and writers' files, made of a result once it is safe; and what becomes of the run where they fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptymesh.errors import PtymeshError
from ptymesh.io.results import Result
from ptymesh.recipe.writers import WRITERS
from ptymesh.run_folder import figures
from ptymesh.run_folder.figures import write_products
from ptymesh.run_folder.patterns import PatternPairs


@pytest.fixture
def truth() -> Result:
    """Of nine views, without a recipe: no patterns are shown."""
    y, x = np.mgrid[-8:8, -8:8]
    scan = np.stack(np.meshgrid([2.0, 6.0, 10.0], [2.0, 6.0, 10.0], indexing="ij"), axis=-1).reshape(-1, 2)
    return Result(
        object=np.exp(1j * np.add.outer(np.linspace(0, 1, 32), np.linspace(0, 0.5, 32)))[None].astype(np.complex64),
        probe=np.exp(-(y**2 + x**2) / 20 + 0j)[None].astype(np.complex64),
        positions_px=scan,
        history={name: np.array([1.0]) for name in ("epoch", "stage", "loss", "residual", "seconds")},
        attrs={"final_residual": 0.01, "engine": "rpie"},
    )


@pytest.fixture
def result(truth: Result, tmp_path: Path) -> Path:
    truth.save(tmp_path / "result.h5")
    return tmp_path / "result.h5"


@pytest.mark.usefixtures("coarse_figures")
def test_figures_and_files_are_named(result: Path) -> None:
    pair = np.ones((16, 16)), np.full((16, 16), 2.0)
    patterns = PatternPairs({"typical": pair, "worst": pair}, np.ones((16, 16), bool), True)
    made = write_products(result, figures=True, writers=("tiff",), patterns=patterns)
    names = [path.name for path in made]
    assert names[0] == "overview.png" and {"object.png", "probe.png", "patterns.png", "object_phase.tiff"} <= {*names}
    assert {*names} == {path.name for path in result.parent.iterdir()} - {"result.h5"}


def test_unknowns_on_the_objects_pixels_are_drawn_as_numbers(truth: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[np.ndarray, str]] = []
    monkeypatch.setattr(figures.plot, "field_figure", lambda planes, pixel, light, title: drawn.append((planes, title)))
    truth.unknowns["object_change"] = 0.1j * truth.object
    named = dict(figures._named_figures(truth, np.ones((32, 32)), None))
    named["object_change"]()
    ((planes, title),) = drawn
    assert planes is truth.unknowns["object_change"] and title == "object_change"


@pytest.mark.usefixtures("coarse_figures")
def test_without_its_data_there_are_no_patterns(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {path.name for path in write_products(result, figures=True, writers=(), patterns=None)}
    assert "overview.png" in names and "patterns.png" not in names
    assert "No patterns are shown: The result holds no recipe" in capsys.readouterr().err


def test_a_figure_that_fails_is_told_and_logged(
    result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> list[Path]:
        raise PtymeshError("The disk is full.")

    monkeypatch.setattr(figures, "write_figures", fails)
    (result.parent / "log.txt").write_text("before\n")
    assert write_products(result, figures=True, writers=(), patterns=None) == []
    sentence = f"No figures were drawn: The disk is full. The result is complete; `ptymesh view {result}` draws them.\n"
    assert capsys.readouterr().err.endswith(f"ptymesh: {sentence}")
    before, line = (result.parent / "log.txt").read_text().splitlines(keepends=True)
    assert before == "before\n" and line.endswith(sentence)


def test_a_writer_that_fails_is_told_and_the_others_write(
    result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(found: Result, folder: Path) -> None:
        found.object[:] = 0
        raise RuntimeError("no\nlicence")

    def writes(found: Result, folder: Path) -> list[Path]:
        (folder / "sum.txt").write_text(str(abs(found.object).sum()))
        return [folder / "sum.txt"]

    before = result.read_bytes()
    monkeypatch.setattr(WRITERS, "_own", WRITERS._own | {"fails": fails, "writes": writes})
    made = write_products(result, figures=False, writers=("fails", "writes"), patterns=None)
    sentence = "The writer fails failed: RuntimeError: no licence."
    again = f"The result is complete; `ptymesh view {result} --write fails` tries again."
    assert capsys.readouterr().err == f"ptymesh: {sentence} {again}\n"
    assert (result.parent / "log.txt").read_text().endswith(f"{again}\n")
    assert made == [result.parent / "sum.txt"] and float(made[0].read_text()) > 0
    assert result.read_bytes() == before and not list(result.parent.glob("*.png"))
