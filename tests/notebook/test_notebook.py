"""What a notebook shows: one line as text, facts and thumbnails as HTML."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.notebook import results
from ptymesh.run_folder.progress import EpochLines, show_progress
from ptymesh.simulate import simulate


@pytest.fixture(scope="module")
def scan() -> pm.Measurement:
    return simulate(kind="xray", views=40, window=32, seed=1).measurement


@pytest.fixture(scope="module")
def recon(scan: pm.Measurement) -> pm.Reconstruction:
    made = pm.Reconstruction(scan, probe_modes=2, device="cpu")
    assert "0 epochs done" in repr(made)
    before = made._repr_html_()
    assert "none yet" in before and len(thumbnails(before)) == 1
    for _ in made.run(pm.RPIE(batch=20), epochs=3):
        pass
    return made


def thumbnails(html: str) -> list[np.ndarray]:
    """Pictures of a fragment, (H, W, 4), none of which is of one colour."""
    found = [
        matplotlib.image.imread(io.BytesIO(base64.b64decode(data)))
        for data in re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    ]
    assert all(image.std() > 0.02 for image in found)
    return found


def test_a_scan(scan: pm.Measurement) -> None:
    named = replace(scan, name="<b>one & two", notes=("Guessed.",))
    assert repr(named) == "<Measurement <b>one & two: 40 views of 32 x 32 pixels, far field, photon>"
    html = named._repr_html_()
    assert "&lt;b&gt;one &amp; two" in html and "<b>one" not in html, "names are text"
    assert "photon, 8 keV" in html and "20 nm" in html and "Guessed." in html and len(thumbnails(html)) == 1
    plain = replace(scan.geometry, object_pixel_m=None, distance_m=None)
    assert re.search(r"<td[^>]*>[\d.]+ x [\d.]+ px</td>", replace(scan, geometry=plain)._repr_html_())


def test_a_scan_whose_file_is_gone(scan: pm.Measurement) -> None:
    class Gone:
        shape, dtype = scan.patterns.shape, scan.patterns.dtype

        def read(self, views: np.ndarray) -> np.ndarray:
            raise BadInput("There is no file scan.cxi; check the path.")

    html = replace(scan, patterns=Gone())._repr_html_()
    assert "There is no file scan.cxi" in html and not thumbnails(html)


def test_few_patterns_are_read(scan: pm.Measurement) -> None:
    asked: list[int] = []

    class Counted:
        shape, dtype = (100_000, 32, 32), np.dtype(np.uint16)

        def read(self, views: np.ndarray) -> np.ndarray:
            asked.extend(views)
            return np.ones((len(views), 32, 32), np.uint16)

    places = np.random.default_rng(0).random((100_000, 2)) * 1000
    replace(scan, patterns=Counted(), positions=places, intensity=None)._repr_html_()
    assert len(asked) == 16 and asked[0] == 0 and asked[-1] == 99_999


def test_a_reconstruction(recon: pm.Reconstruction) -> None:
    residual = recon.state.history["residual"][-1]
    assert repr(recon) == f"<Reconstruction of simulated-xray: 40 views, 3 epochs done, residual {residual:.4g}>"
    html = recon._repr_html_()
    assert "3 of rpie" in html and "2 modes of 32 x 32 pixels" in html and len(thumbnails(html)) == 1


def test_a_result(recon: pm.Reconstruction) -> None:
    result = recon.result()
    slices, height, width = result.object.shape
    assert re.fullmatch(
        rf"<Result: object {slices} x {height} x {width}, 2 modes, 40 views, rpie, "
        r"final residual [\d.e-]+, (good|poor)>",
        repr(result),
    )
    html = result._repr_html_()
    assert f"{height} x {width} pixels" in html and "1 rank, cpu, single" in html and len(thumbnails(html)) == 1
    assert f"{result.verdict}: " in html
    assert np.allclose(result.amplitude * np.exp(1j * result.phase), result.object, atol=1e-5)
    bare = pm.Result(result.object, result.probe[:1], result.positions_px)
    assert "1 mode" in bare._repr_html_() and "1 mode," in repr(bare)


def test_figures_show_themselves(recon: pm.Reconstruction) -> None:
    for figure in (recon.plot(), recon.result().plot()):
        shown = matplotlib.image.imread(io.BytesIO(figure._repr_png_()))
        assert shown.std() > 0.05 and 400 < shown.shape[1] < 1200


def test_large_objects_are_averaged_first() -> None:
    """Unwrapping all pixels would take seconds."""
    noise = np.exp(1j * np.random.default_rng(0).random((1, 900, 700)))
    drawn = results.strip(noise, np.ones((1, 8, 8), complex), {}, None, None)
    assert drawn.axes[1].images[0].get_array().shape == (300, 233)


def test_a_study(tmp_path: Path) -> None:
    session = pytest.importorskip("ptymesh.tune.session")
    from ptymesh.recipe.schema import Recipe
    from ptymesh.tune.records import Record

    def record(number: int, value: float | None, state: str = "done") -> Record:
        return Record(number, state, value, {"stages.0.alpha": number / 10}, {}, 0, "cpu", 1.0, "", None, {}, "")

    trials = [record(0, 0.3), record(1, 0.1), record(2, None, "failed"), record(3, 0.2)]
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}})
    study = session.StudyOutcome(tmp_path, trials[1], trials, recipe, None)
    assert repr(study) == f"<Outcome of {tmp_path}: 4 trials, the best is 1 with 0.1: alpha 0.1>"
    html = study._repr_html_()
    assert "3 done, 1 failed" in html and len(thumbnails(html)) == 1
    listed = re.findall(r"<tr><td[^>]*>(\d+)</td>", html)
    assert listed == ["1", "3", "0"], "best first"
    assert study.plot().axes[0].lines[1].get_ydata() == [0.1]
    largest = session.StudyOutcome(tmp_path, trials[0], trials, recipe, None)
    assert re.findall(r"<tr><td[^>]*>(\d+)</td>", largest._repr_html_()) == ["0", "3", "1"]


class Page:
    """What IPython's display would show: outputs that are replaced."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []

    def __call__(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Page:
        assert raw and display_id
        self.outputs.append(content)
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        self.outputs.append(content)


def test_progress_in_a_notebook(scan: pm.Measurement, monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display")
    page = Page()
    monkeypatch.setattr(display, "display", page)
    monkeypatch.setattr("ptymesh.run_folder.progress.in_notebook", lambda: True)
    monkeypatch.setattr("ptymesh.run_folder.progress.EVERY_S", 0.0)
    pm.reconstruct(scan, [pm.RPIE(epochs=2, batch=20), pm.LSQML(epochs=1, batch=40)], device="cpu")
    said = [one["text/plain"] for one in page.outputs]
    assert said[0] == "" and said[1].startswith("rpie, epoch 1 of 2") and "0:0" in said[1] and "left" in said[1]
    assert any(line.startswith("lsqml, epoch 1 of 1, residual ") for line in said)
    assert said[-1].startswith("done after 3 of 3 epochs in 0:0") and "residual" in said[-1]
    values = [float(re.findall(r'value="([\d.]+)" max="3"', one["text/html"])[0]) for one in page.outputs]
    assert values == sorted(values) and {0, 0.5, 1, 1.5, 2, 3} <= set(values)
    page.outputs.clear()
    pm.reconstruct(scan, pm.RPIE(epochs=1), device="cpu", progress=False)
    assert not page.outputs


def test_progress_ends_where_a_run_does(scan: pm.Measurement, monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display")
    page = Page()
    monkeypatch.setattr(display, "display", page)
    monkeypatch.setattr("ptymesh.run_folder.progress.in_notebook", lambda: True)

    def refuse(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pm.RPIE, "step", refuse)
    with pytest.raises(KeyboardInterrupt):
        pm.reconstruct(scan, pm.RPIE(epochs=5), device="cpu")
    assert page.outputs[-1]["text/plain"].startswith("stopped after 0 of 5 epochs")


def test_progress_elsewhere(scan: pm.Measurement, capsys: pytest.CaptureFixture[str]) -> None:
    pm.reconstruct(scan, pm.RPIE(epochs=2), device="cpu")
    assert capsys.readouterr().out == ""
    pm.reconstruct(scan, pm.RPIE(epochs=2), device="cpu", progress=True)
    assert [line.split("  loss")[0] for line in capsys.readouterr().out.splitlines()] == [
        "stage 1 (rpie)  epoch 1/2",
        "stage 1 (rpie)  epoch 2/2",
    ]
    with show_progress([pm.RPIE()], None) as none, show_progress([pm.RPIE()], True) as lines:
        assert not none and isinstance(*lines, EpochLines)
    with pytest.raises(BadInput, match="progress is 'yes'; give True, False or None"):
        pm.reconstruct(scan, pm.RPIE(epochs=1), progress="yes")
