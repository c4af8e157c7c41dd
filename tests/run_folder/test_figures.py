"""Figures and writers' files, made of a result once it is safe; and what becomes of the run where they fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptymesh.errors import PtymeshError
from ptymesh.geometry import electron_wavelength_m
from ptymesh.io.results import Result
from ptymesh.physics.beam.probes import aberrated
from ptymesh.physics.beam.pupil import LensFit
from ptymesh.plot import Sections
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


def test_vectors_of_views_are_drawn_as_arrows(truth: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shifts of patterns are drawn at the middle of their windows, with their unit; a number of each view is not."""
    drawn: list[tuple[np.ndarray, np.ndarray, str, str]] = []
    monkeypatch.setattr(
        figures.plot, "view_vectors_figure", lambda place, arrows, pixel, *words: drawn.append((place, arrows, *words))
    )
    truth.unknowns |= {"descan": np.ones((9, 2)), "defocus": np.ones(9)}
    named = dict(figures._named_figures(truth, np.ones((32, 32)), None))
    assert "defocus" not in named
    named["descan"]()
    ((place, arrows, name, unit),) = drawn
    np.testing.assert_array_equal(place, truth.positions_px + 7.5)
    assert arrows is truth.unknowns["descan"] and (name, unit) == ("descan", "px")


def test_what_is_drawn_of_a_stack(truth: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """A potential in V nm is cut as it is, and its spectrum is that of the sum; else phases are."""
    drawn: list[tuple[Sections, str]] = []
    monkeypatch.setattr(
        figures.plot, "sections_figure", lambda cuts, pixel, spacing, label: drawn.append((cuts, label))
    )
    light, phase = np.ones((32, 32)), np.angle(truth.object[0])
    bump = np.zeros((32, 32))
    bump[12, 14] = 0.4
    stack = np.exp(1j * np.stack([phase + bump, phase + 2 * bump]))
    plain = replace(truth, object=stack)
    potential = replace(plain, potential=np.angle(stack), attrs={**truth.attrs, "interaction_rad_per_V_nm": 0.0065})
    for one in (plain, potential):
        dict(figures._named_figures(one, light, None))["sections"]()
    (cuts, label), (of_potential, in_volts) = drawn
    assert (label, in_volts) == ("arg O (rad)", "potential (V nm)")
    assert cuts.total[12, 14] == pytest.approx(1.2, abs=0.02)
    np.testing.assert_allclose(of_potential.total, (2 * phase + 3 * bump) / 0.0065, atol=1e-3)
    spectra = [figures._spectrum_of(one, light) for one in (plain, potential)]
    assert all(one is not None for one in spectra)
    np.testing.assert_allclose(spectra[0].radial, spectra[1].radial, rtol=1e-3)
    monkeypatch.setattr(figures, "LONGEST_PHASE", 20)
    monkeypatch.setattr(figures, "LONGEST_SLICE", 16)
    cut = [figures._spectrum_of(one, light) for one in (plain, potential)]
    assert [one.power.shape for one in cut if one is not None] == [(16, 16), (20, 20)]
    assert figures._spectrum_of(plain, np.pad(np.ones((5, 5)), (0, 27))) is None


def test_a_pupil_has_aberrations_where_the_wavelength_is_known(truth: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[LensFit | None, bool]] = []
    monkeypatch.setattr(figures.plot, "pupil_figure", lambda *given, is_electron: drawn.append((given[4], is_electron)))
    wave = aberrated((16, 16), (2e-11, 2e-11), electron_wavelength_m(3e5), 0.03, {"C10": 2e-9}).numpy()
    energy = {"radiation": "electron", "energy_eV": 3e5}
    known = replace(truth, probe=wave[None], pixel_size_m=(2e-11, 2e-11), attrs=energy)
    for one in (known, replace(known, attrs={}), replace(known, probe=np.ones((1, 16, 16), complex))):
        dict(figures._named_figures(one, np.ones((32, 32)), None))["pupil"]()
    (lens, of_electrons), unknown, parallel = drawn
    assert lens is not None and lens.aberrations[0].size_m == pytest.approx(2e-9) and of_electrons
    assert unknown == (None, False) and parallel == (None, True), "a parallel beam has a pupil of one pixel"
    near = replace(known, attrs={**energy, "propagation": "fresnel"})
    assert "pupil" not in dict(figures._named_figures(near, np.ones((32, 32)), None))


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
