"""What other packages offer: engines, models, constraints, functions and readers, by entry points."""

import sys
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from torch import Tensor
from typer.testing import CliRunner

import ptymesh as pm
from ptymesh import registry
from ptymesh.cli.main import app
from ptymesh.engines import ENGINES, RPIE, Constraint
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.io.formats import cxi
from ptymesh.io.formats.cxi import write_measurement
from ptymesh.io.load import READERS
from ptymesh.io.options import DataOptions
from ptymesh.io.results import Result
from ptymesh.io.scan import RawScan
from ptymesh.io.source import SlabSource
from ptymesh.measurement import Measurement
from ptymesh.physics.fidelity.amplitude import AmplitudeFidelity
from ptymesh.physics.object_models.potential import Potential
from ptymesh.problem import Problem
from ptymesh.recipe.initial import StartSettings, initial_estimate
from ptymesh.recipe.schema import Recipe
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions, ProbeStart
from ptymesh.recipe.writers import write
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.simulate import simulate
from toy import make


def first_frame(path: Path, data: DataOptions) -> RawScan:
    """The scan beside a note, or in a folder that has one, without all but its first five views."""
    whole = cxi.read(path / "scan.cxi" if path.is_dir() else path, data)
    assert whole.positions is not None
    return replace(whole, positions=whole.positions[:5], patterns=Few(whole.patterns, 5))


@dataclass
class Few:
    """The first views of patterns."""

    whole: SlabSource
    views: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.views, *self.whole.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.whole.dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        return self.whole.read(views, rows, columns)


frames = SimpleNamespace(
    NAME="CXI beside a note",
    recognises=lambda path, data: ((path if path.is_dir() else path.parent) / "note.txt").exists(),
    read=first_frame,
)


class Mine(RPIE):
    """A user's engine."""

    name: ClassVar[str] = "mine"
    boldness: float = 2.0


class Quieter(Constraint):
    """|P| a little smaller."""

    by: float = 0.5

    def apply(self, problem: Problem, estimate: Estimate, engine: pm.RPIE) -> None:
        estimate.probe *= self.by


def theirs(obj):  # type: ignore[no-untyped-def]
    """A regulariser."""
    return obj.abs()


upside_down = SimpleNamespace(
    NAME="upside-down CXI",
    recognises=lambda path, data: path.suffix == ".ixc",
    read=lambda path, data: cxi.read(path, data),
)


class Flat(ProbeStart):
    """The same everywhere."""

    kind: Literal["flat"] = "flat"
    side: int = 32
    value: float = 1.0

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> np.ndarray:
        return np.full((self.side, self.side), self.value if self.value else np.nan)


class Shade(Potential):
    """A potential under another name, whose values are not said to be phases."""

    name: ClassVar[str] = "shade"
    is_phase: ClassVar[bool] = False


class Half(AmplitudeFidelity):
    """Half of the amplitude's loss: steps of the same waves."""

    name: ClassVar[str] = "half"

    def loss(self, I: Tensor, y: Tensor) -> Tensor:
        return super().loss(I, y) / 2

    def slope(self, I: Tensor, y: Tensor) -> Tensor:
        return super().slope(I, y) / 2


def views(result: Result, folder: Path) -> None:
    """A writer."""
    (folder / "views.txt").write_text(str(len(result.positions_px)))


POINTS = [
    ("mine", "theirs:Mine", "ptymesh.engines"),
    ("odd", "pathlib:Path", "ptymesh.engines"),
    ("lost", "nowhere:Lost", "ptymesh.engines"),
    ("rpie", "theirs:Mine", "ptymesh.engines"),
    ("quieter", "theirs:Quieter", "ptymesh.constraints"),
    ("theirs", "theirs:theirs", "ptymesh.regularisers"),
    ("upside_down", "theirs:upside_down", "ptymesh.readers"),
    ("frames", "theirs:frames", "ptymesh.first_readers"),
    ("flat", "theirs:Flat", "ptymesh.probe_starts"),
    ("views", "theirs:views", "ptymesh.writers"),
    ("half", "theirs:Half", "ptymesh.fidelities"),
    ("shade", "theirs:Shade", "ptymesh.object_models"),
]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers one of each, and some that do not work."""
    package = ModuleType("theirs")
    for thing in (Mine, Quieter, theirs, Flat, views, Half, Shade):
        setattr(package, thing.__name__, thing)
    package.upside_down = upside_down  # type: ignore[attr-defined]
    package.frames = frames  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "theirs", package)
    points = EntryPoints(EntryPoint(*point) for point in POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: points.select(**wanted))


@pytest.mark.usefixtures("installed")
def test_an_installed_engine_is_found_by_name() -> None:
    raw = {"data": {"path": "scan.cxi"}, "stages": [{"engine": "mine", "boldness": 3}]}
    recipe = Recipe.parse(raw)
    assert recipe.stages == [Mine(boldness=3)]
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    assert {"rpie", "mine"} <= set(ENGINES.names())
    assert ENGINES["rpie"] is RPIE, "ptymesh's own come first"


@pytest.mark.usefixtures("installed")
def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(BadInput, match=r"odd = pathlib:Path is no engine; make it a subclass of"):
        ENGINES.find("odd")
    with pytest.raises(BadInput, match=r"lost = nowhere:Lost cannot be imported \(ModuleNotFoundError"):
        ENGINES.find("lost")
    with pytest.raises(BadInput, match="did you mean mine"):
        Recipe.parse({"data": {"path": "scan.cxi"}, "stages": [{"engine": "minee"}]})
    assert ENGINES.find("none") is None


@pytest.mark.usefixtures("installed")
def test_an_installed_fidelity_is_a_word_of_a_stage() -> None:
    losses = []
    for fidelity in ("half", "amplitude"):
        toy, state = make(modes=2), RunState(make(modes=2).start())
        losses.append(
            [report.loss for report in Loop(toy.problem(), state, [RPIE(epochs=2, fidelity=fidelity)]).epochs()]
        )
    assert losses[0] == pytest.approx([loss / 2 for loss in losses[1]], rel=1e-9)
    with pytest.raises(BadInput, match="'halff' is not a fidelity; did you mean half"):
        RPIE(fidelity="halff")


@pytest.mark.usefixtures("installed")
def test_an_installed_constraint_is_applied_on_its_schedule() -> None:
    found = []
    for constraints in ({}, {"quieter": {"by": 0.25, "start": 2}}):
        toy = make(modes=2)
        stage = RPIE(epochs=2, constraints=constraints)
        state = RunState(toy.start())
        for _ in Loop(toy.problem(), state, [stage], seed=3).epochs():
            found.append(state.estimate.probe.numpy().copy())
    assert np.array_equal(found[2], found[0]) and np.array_equal(found[3], 0.25 * found[1])
    with pytest.raises(BadInput, match="'quiter' is not a constraint; did you mean quieter"):
        RPIE(constraints={"quiter": True})
    with pytest.raises(BadInput, match=r"constraints\.quieter\.by is 'much'"):
        RPIE(constraints={"quieter": {"by": "much"}})


@pytest.mark.usefixtures("installed")
def test_an_installed_reader_reads(tmp_path: Path) -> None:
    scan = simulate(views=9, window=32).measurement
    write_measurement(scan, tmp_path / "scan.cxi")
    (tmp_path / "scan.cxi").rename(tmp_path / "scan.ixc")
    assert READERS.names() == [*READERS, "upside_down"]
    assert pm.load(tmp_path / "scan.ixc").views == 9


@pytest.mark.usefixtures("installed")
def test_an_installed_reader_may_be_asked_first_and_of_folders(tmp_path: Path) -> None:
    write_measurement(simulate(views=9, window=32).measurement, tmp_path / "scan.cxi")
    assert pm.load(tmp_path / "scan.cxi").views == 9
    with pytest.raises(BadInput, match=r"is a folder; give the data in it, .*scan\.cxi"):
        pm.load(tmp_path)
    (tmp_path / "note.txt").write_text("ours")
    assert pm.load(tmp_path / "scan.cxi").views == 5
    scan = pm.load(tmp_path)
    assert scan.views == 5 and len(scan.patterns.read(np.arange(5))) == 5


@pytest.mark.usefixtures("installed")
def test_an_installed_probe_start_makes_the_probe() -> None:
    raw = {"data": {"path": "scan.cxi"}, "probe": {"start": {"kind": "flat", "value": 2}}}
    recipe = Recipe.parse(raw)
    assert recipe.probe.start == Flat(value=2)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    scan = simulate(views=9, window=32).measurement
    mean = np.ones((32, 32))

    def begun(**start: Any) -> np.ndarray:
        probe = ProbeOptions(start={"kind": "flat", **start})
        settings = StartSettings("single", "cpu", margin_px=2, seed=0)
        return initial_estimate(scan, mean, settings, object=ObjectOptions(), probe=probe).probe[0].numpy()

    assert np.allclose(begun(), 1), "of the power of the mean pattern"
    expected = r"probe\.start is 'flt'; it should be one of auto, .* flat \(did you mean flat\?\)"
    with pytest.raises(BadInput, match=expected):
        Recipe.parse({**raw, "probe": {"start": "flt"}})
    with pytest.raises(BadInput, match=r"probe\.start\.valu is unknown; did you mean probe\.start\.value\?"):
        Recipe.parse({**raw, "probe": {"start": {"kind": "flat", "valu": 2}}})
    with pytest.raises(BadInput, match=r"The probe is \(16, 16\) and the window \(32, 32\); they must be equal"):
        begun(side=16)
    with pytest.raises(BadInput, match=r"The probe start flat makes values that are not finite; use another"):
        begun(value=0)


@pytest.mark.usefixtures("installed")
def test_an_installed_writer_writes(tmp_path: Path) -> None:
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}, "output": {"writers": ["views"], "tiff": True}})
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    assert recipe.output.all_writers == ("tiff", "views")
    flat = np.ones((1, 8, 8), np.complex64)
    assert write("views", Result(flat, flat, np.zeros((4, 2))), tmp_path) == []
    assert (tmp_path / "views.txt").read_text() == "4"


@pytest.mark.usefixtures("installed")
def test_all_are_listed() -> None:
    result = CliRunner().invoke(app, ["plugins"])
    lines = result.output.splitlines()
    assert "engines: epie, rpie, mpie, lsqml" in result.output
    assert "models: aberrations, scan_geometry, scan_shift" in lines
    assert f"readers: {', '.join(READERS)}" in lines and "writers: tiff" in lines
    assert "probe_starts: auto, file, data, electron, empty_beam, zone_plate, kb, pinhole, result, array" in lines
    assert "  flat = theirs:Flat" in lines and "  views = theirs:views" in lines
    assert "  mine = theirs:Mine" in lines and "  quieter = theirs:Quieter" in lines
    assert any(line.startswith("  rpie = theirs:Mine  not used: ptymesh has one") for line in lines)
    assert any("odd = pathlib:Path is no engine" in line for line in lines)
    assert isinstance(result.exception, BadInput) and "2 of what packages offer" in str(result.exception)


def test_without_packages_nothing_is_wrong() -> None:
    assert CliRunner().invoke(app, ["plugins"]).exit_code == 0


@pytest.mark.usefixtures("installed")
def test_an_installed_object_model_makes_the_object() -> None:
    scan = simulate(kind="electron", views=30, window=32, seed=4).measurement
    objects = []
    for kind in ("shade", "potential"):
        recon = pm.Reconstruction(scan, device="cpu", object={"kind": kind, "absorption": 0.1})
        list(recon.run(RPIE(epochs=2, batch=10)))
        result = recon.result()
        objects.append(result.object)
        assert result.attrs["object_kind"] == kind and (result.potential is None) == (kind == "shade")
    assert np.array_equal(*objects)
    recon = pm.Reconstruction(scan, device="cpu", object={"kind": "shade"})
    with pytest.raises(BadInput, match=r"object\.phase limits phases"):
        list(recon.run(RPIE(epochs=1, object={"phase": {"high": 1.0}})))
    with pytest.raises(BadInput, match="'shad' is not a kind of object; did you mean shade"):
        ObjectOptions.parse({"kind": "shad"}, "object")
