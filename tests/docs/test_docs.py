"""The documentation is true: commands and programs run as they stand, the page of keys is the code's, links lead on."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from ptymesh.auto.python import reconstruct
from ptymesh.cli import main as module
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import RPIE
from ptymesh.io import load_measurement
from ptymesh.io.load import READERS
from ptymesh.io.options import DataOptions
from ptymesh.io.results import Result
from ptymesh.physics.backend import Backend
from ptymesh.problem import Batch
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from toy import make, relative

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page: str, language: str) -> list[str]:
    """Fenced blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("docs") / "scan.cxi"
    write(checked(kind="xray", views=30, window=48, seed=2), path)
    return path


def test_the_page_of_keys_is_up_to_date() -> None:
    generate = load(ROOT / "docs" / "generate.py", "generate")
    assert generate.PAGE.read_text(encoding="utf-8") == generate.Page().text(), "run: python docs/generate.py"
    assert generate.FORMATS.read_text(encoding="utf-8") == generate.formats(), "run: python docs/generate.py"
    assert generate.EXCHANGE.read_text(encoding="utf-8") == generate.exchange(), "run: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if not path.startswith("https://"):
            linked = (page.parent / path) if path else page
            assert linked.exists(), f"{page.name} links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.M)
                names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
                assert anchor in names, f"{page.name} links to {target}"


@pytest.mark.parametrize("word", ["at rest", "fidelity", "sweep", "noise floor", "held out", "verdict"])
def test_words_of_messages_are_explained(word: str) -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (ROOT / "docs/reference/words.md").read_text("utf-8"), re.M)
    assert word in [one for row in rows for one in row.split(", ")]


def test_figures_are_small() -> None:
    figures = list((ROOT / "docs" / "figures").iterdir())
    assert figures and all(figure.stat().st_size < 300_000 for figure in figures)


def run_lines(page: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What each line of a page's tour says, on 40 views of 32 x 32 pixels, and 6 epochs."""
    (tour,) = (block for block in blocks(page, "sh") if "ptymesh simulate" in block)
    smaller = {
        "--views 200 --window 64": "--views 40 --window 32",
        "epochs: 50": "epochs: 6",
        "epochs=50": "epochs=6 --set output.figures=false",
    }
    for old, new in smaller.items():
        tour = tour.replace(old, new)
    tour = re.sub(r"\\\n *", "", tour)
    said = {}
    for line in tour.splitlines():
        words = shlex.split(line, comments=True)
        if words[0] != "ptymesh":
            subprocess.run(line, shell=True, check=True)
            continue
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as left:
            module.main()
        said[line], err = capfd.readouterr()
        assert not left.value.code, err  # `resume` goes on from the last epoch's checkpoint, and finds nothing left
    return said


def nrmse(said: dict[str, str], path: str) -> float:
    """That the comparison with this file found."""
    agreement = next(out for line, out in said.items() if path in line)
    return float(re.findall(r"NRMSE (\S+)", agreement)[0])


@pytest.mark.docs
def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    said = run_lines("README.md", monkeypatch, capfd)
    assert nrmse(said, "scan.truth.h5") < 0.5, "so few views and epochs find the coarse of it"
    assert (tmp_path / "truth.png").stat().st_size


@pytest.mark.docs
def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Line by line as the first tutorial has it."""
    monkeypatch.chdir(tmp_path)
    said = run_lines("docs/tutorials/first-reconstruction.md", monkeypatch, capfd)
    one, two = (Result.load(tmp_path / name / "result.h5") for name in ("one", "two"))
    assert one.object.tobytes() == two.object.tobytes(), "any number of ranks, the same bits"
    assert nrmse(said, "two/result.h5") < 1e-5, "of which the alignment is the rounding"
    for name in ("scan.png", "one/result.h5", "two/result.h5", "truth.png", "one/object_phase.tiff"):
        assert (tmp_path / name).stat().st_size


@pytest.mark.docs
def test_the_crystal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Line by line as its tutorial has it, in its own size."""
    monkeypatch.chdir(tmp_path)
    said = run_lines("docs/tutorials/crystal.md", monkeypatch, capfd)
    found = Result.load(tmp_path / "crystal/result.h5")
    assert found.parameters["aberrations"]["C10"] == pytest.approx(-14.5e-9, abs=0.5e-9)
    agreement = next(out for line, out in said.items() if "compare" in line)
    slices = re.search(r"^slices +NRMSE (.*)$", agreement, re.M)
    assert slices and max(float(one) for one in slices[1].split(", ")) < 0.15
    for name in ("crystal-calibration/calibration.png", "crystal/slices.png", "crystal/object_phase.tiff"):
        assert (tmp_path / name).stat().st_size


@pytest.mark.parametrize(
    ("pages", "written"),
    [
        (["README.md", "docs/reference/results.md"], "result.h5"),
        (["docs/reference/python.md"], "result.h5"),
        (["docs/reference/data.md"], "mine.npz"),
        (["docs/how-to/many-devices.md"], "scan.cxi"),
        (["docs/how-to/notebooks.md"], "scan.cxi"),
        (["docs/how-to/single-shot.md"], "result.h5"),
        (["docs/tutorials/writing-methods.md"], "normalised.h5"),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else given,
)
def test_programs(pages: list[str], written: str, scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks of a page, one after the other; docs/reference/results.md reads what README.md has written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scan.cxi").symlink_to(scan)
    names: dict[str, Any] = {}
    for page in pages:
        found = blocks(page, "python")
        assert found
        for block in found:
            exec(compile(block, page, "exec"), names)  # our own documentation
    assert (tmp_path / written).exists()


def contributed(world: Any, path: str, scan: str) -> Any:
    """Object and residuals of the engine in CONTRIBUTING.md."""
    import ptymesh as pm

    engine = load(Path(path), "means").Means(epochs=6, batch=9, positions={"start": 3})
    recon = Reconstruction(pm.load(scan), device=world, precision="double")
    return [report.residual for report in recon.run(engine)], recon.object


def test_the_engine_of_the_guide(ranks: Any, scan: Path, tmp_path: Path) -> None:
    block = guide("Means")
    assert 25 <= len(block.splitlines()) <= 36
    (tmp_path / "means.py").write_text(block)
    arguments = (str(tmp_path / "means.py"), str(scan))
    ((residuals, alone),) = ranks(1, contributed, *arguments)
    assert residuals[-1] < 0.2 * residuals[0], "it reconstructs"
    assert relative(ranks(2, contributed, *arguments)[1][1], alone) < 1e-12


def guide(name: str) -> str:
    """The program of CONTRIBUTING.md that defines this class."""
    (block,) = [block for block in blocks("CONTRIBUTING.md", "python") if f"class {name}(" in block]
    return block


def test_the_constraint_of_the_guide(scan: Path) -> None:
    import ptymesh as pm

    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(guide("PurePhase"), "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    recon = Reconstruction(pm.load(scan), device="cpu")
    list(recon.run(pm.RPIE(epochs=2, constraints={"pure_phase": {"start": 2}})))
    assert abs(abs(recon.object) - 1).max() < 1e-6
    del names["CONSTRAINTS"]._own["pure_phase"]


@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam", "cg"])
def test_the_fidelity_of_the_guide(engine: str, scan: Path) -> None:
    import ptymesh as pm
    from ptymesh.engines import ENGINES
    from ptymesh.physics.fidelity import FIDELITIES

    names: dict[str, Any] = {"__name__": "guide"}
    try:
        exec(compile(guide("Readout"), "CONTRIBUTING.md", "exec", dont_inherit=True), names)
        I, y = (torch.rand(2, 1, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 20 + 1).split(1)
        kind, step = names["Readout"](), 1e-5
        assert torch.allclose(
            kind.slope(I, y), (kind.loss(I + step, y) - kind.loss(I - step, y)) / (2 * step), atol=1e-8
        )
        assert torch.allclose(
            kind.curvature(I, y), (kind.slope(I + step, y) - kind.slope(I - step, y)) / (2 * step), atol=1e-8
        )
        recon = Reconstruction(pm.load(scan), device="cpu")
        options = {} if engine == "cg" else {"batch": 10}
        reports = list(recon.run(ENGINES[engine](epochs=6, fidelity="readout", **options)))
        assert reports[-1].loss < 0.5 * reports[0].loss
    finally:
        FIDELITIES._own.pop("readout", None)


def run_absorber(world: World, guide: str, layout: str, engine: str, scan: str) -> dict[str, np.ndarray]:
    """What one rank ends with, of an object that is the guide's absorber."""
    import ptymesh as pm
    from ptymesh.engines import ENGINES
    from ptymesh.physics.object_models import OBJECT_MODELS

    try:
        exec(compile(guide, "CONTRIBUTING.md", "exec", dont_inherit=True), {"__name__": "guide"})
        recon = Reconstruction(pm.load(scan), device=world, layout=layout, object={"kind": "absorber"}, seed=2)
        reports = list(recon.run(ENGINES[engine](epochs=4, batch=10)))
        result = recon.result()
        return {"object": result.object, "residuals": np.array([one.residual for one in reports])}
    finally:
        OBJECT_MODELS._own.pop("absorber", None)


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam"])
def test_the_object_model_of_the_guide(engine: str, scan: Path, ranks: Any) -> None:
    one = run_absorber(Solo(), guide("Absorber"), "replicated", engine, str(scan))
    assert one["residuals"][-1] < 0.9 * one["residuals"][0], "although the truth turns phases"
    assert not one["object"].imag.any() and one["object"].real.std() > 0.01
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, run_absorber, guide("Absorber"), layout, engine, str(scan)):
            assert np.array_equal(one["object"], other["object"])


def test_the_operator_of_the_guide(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ptymesh as pm
    from ptymesh.models import OPTICS

    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(guide("Lamp"), "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    monkeypatch.setattr(OPTICS, "_own", OPTICS._own | {"lamp": names["Lamp"]})
    recon = Reconstruction(pm.load(scan), device="cpu", optics={"lamp": True})
    unknowns = {"object": True, "log_brightness": True}
    reports = list(recon.run(pm.Adam(epochs=8, batch=10, unknowns=unknowns)))
    assert reports[-1].residual < 0.5 * reports[0].residual
    assert recon.result().unknowns["log_brightness"].any()


def test_the_detector_piece_of_the_guide(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ptymesh as pm
    from ptymesh.models import OPTICS

    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(guide("Lag"), "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    monkeypatch.setattr(OPTICS, "_own", OPTICS._own | {"lag": names["Lag"]})
    start = {"lag": {"start": {"lag_share": 0.3}}}
    recon = Reconstruction(pm.load(scan), device="cpu", optics=start)
    reports = list(recon.run(pm.RPIE(epochs=10, batch=10, unknowns={"lag_share": True})))
    assert reports[-1].residual < 0.5 * reports[0].residual
    assert recon.result().unknowns["lag_share"] < 0.1, "the scan has none"


def test_the_reader_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ptymesh as pm

    reader = ModuleType("frames")
    (block,) = [block for block in blocks("CONTRIBUTING.md", "python") if "MappedSource(" in block]
    exec(compile(block, "CONTRIBUTING.md", "exec", dont_inherit=True), reader.__dict__)
    monkeypatch.setattr(READERS, "_own", READERS._own | {"frames": reader})
    counts = np.arange(5 * 16 * 16, dtype=np.uint16).reshape(5, 16, 16)
    about = {"frames": [16, 16], "energy_eV": 8e3, "distance_m": 2.0, "pixel_m": 75e-6}
    about["positions_m"] = [[0, step * 1e-6] for step in range(5)]
    path = tmp_path / "scan.frames"
    path.write_bytes(json.dumps(about).encode() + b"\n" + counts.tobytes())
    scan = pm.load(path)
    assert scan.views == 5 and scan.geometry.distance_m == 2.0
    assert np.array_equal(np.fft.fftshift(scan.patterns.read(np.arange(5)), axes=(1, 2)), counts)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(pm.BadInput, match=r"and should have \d+; copy it again"):
        pm.load(path)


def test_the_probe_start_of_the_guide(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ptymesh as pm
    from ptymesh.recipe.starts import PROBE_STARTS

    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(guide("Vortex"), "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    monkeypatch.setattr(PROBE_STARTS, "_own", PROBE_STARTS._own | {"vortex": names["Vortex"]})
    measured = pm.load(scan)
    pixel, (h, w) = measured.geometry.object_pixel_m, measured.window
    assert pixel is not None
    start = {"kind": "vortex", "width_m": 5 * pixel[0], "charge": -2}
    probe = Reconstruction(measured, device="cpu", probe={"start": start}).probe[0]
    assert probe[h // 2, w // 2] == 0
    ring = [probe[h // 2 + y, w // 2 + x] for y, x in ((0, 4), (4, 0), (0, -4), (-4, 0))]
    turns = np.angle(np.array(ring) / ring[0])
    assert np.allclose(np.exp(1j * turns), [1, -1, 1, -1], atol=1e-5)


def test_the_writer_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptymesh.io.results import Result
    from ptymesh.recipe.writers import WRITERS, write

    names: dict[str, Any] = {"__name__": "guide"}
    (block,) = [block for block in blocks("CONTRIBUTING.md", "python") if "def npz(" in block]
    exec(compile(block, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    monkeypatch.setattr(WRITERS, "_own", WRITERS._own | {"npz": names["npz"]})
    waves = np.full((1, 8, 8), 2j, np.complex64)
    (path,) = write("npz", Result(waves, waves, np.zeros((4, 2))), tmp_path)
    with np.load(path) as found:
        assert np.allclose(found["amplitude"], 2) and np.allclose(found["phase"], np.pi / 2)


def test_the_kernel_of_the_guide() -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(guide("OnePass"), "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    toy = make(modes=2, background=0.5)
    found = []
    for backend in (names["OnePass"](), Backend()):
        problem, estimate = toy.problem(), toy.start()
        problem.backend = backend
        problem.begin_epoch(estimate)
        sums = problem.gradients(estimate, Batch(np.arange(20)))
        found.append((sums.object.values, sums.probe, *problem.evaluator.running()))
    assert relative(found[0][0], found[1][0]) < 1e-12 and relative(found[0][1], found[1][1]) < 1e-12
    assert found[0][2:] == pytest.approx(found[1][2:], rel=1e-12)
    assert names["project"].signatures, "it was called"


def test_recipes_of_the_pages() -> None:
    for page in PAGES:
        for block in blocks(str(page.relative_to(ROOT)), "yaml"):
            Recipe.parse(yaml.safe_load(block))
    for recipe in (ROOT / "examples").glob("*.yaml"):
        if not recipe.name.startswith("tune-"):  # these have tests of their own
            load_recipe(recipe)


def test_names_of_the_architecture_exist() -> None:
    """Whatever is named as package.module.name is there."""
    page = (ROOT / "docs" / "background" / "architecture.md").read_text(encoding="utf-8")
    named = [name for name in re.findall(r"`([a-z_]+\.[\w.]+)`", page) if not name.endswith(".md")]
    assert len(named) > 40
    for name in named:
        found: Any = importlib.import_module(f"ptymesh.{name.split('.')[0]}")
        for part in name.split(".")[1:]:
            if not hasattr(found, part):
                found = importlib.import_module(f"{found.__name__}.{part}")
            else:
                found = getattr(found, part)


def test_commands_of_the_pages_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shown = re.findall(r"`(ptymesh [^`]+)`", text) + re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)
        for command in re.findall(r"^ptymesh ([a-z]+)", "\n".join(shown), re.M):
            assert command in module.COMMANDS, f"{page.name}: ptymesh {command}"


@pytest.mark.parametrize("name", ["siemens_star", "cryo_4dstem"])
def test_pictures_of_measured_scans_are_drawn(name: str, scan: Path, tmp_path: Path) -> None:
    """By the script that pages tell to run, here of another result."""
    result = reconstruct(load_measurement(DataOptions(path=scan)), RPIE(epochs=1), seed=1)
    figures = load(ROOT / "docs" / "figures.py", "figures")
    figures.write(getattr(figures, name)(result), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
