"""Engines with kernels end where engines with the torch references end; and who decides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from references import record_references

from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.kernels import VARIABLE, kernel_backend
from ptymesh.kernels.cpu import compiling, ready
from ptymesh.physics.backend import Backend
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, relative

CASES = {
    "fourier": dict(modes=2, varying=True),
    "none, poisson": dict(subpixel="none", fidelity="poisson", noise=True),
    "bilinear, background": dict(subpixel="bilinear", background=2.0),
    "near field": dict(propagation="angular_spectrum"),
    "intensity": dict(fidelity="intensity", noise=True),
    "slices": dict(slices=3, modes=2, varying=True),
}
#: Engines for which an exit wave means nothing that several slices make of it.
SINGLE = ("dm",)
#: Sums in another order, for two epochs; gates and line searches make more of it.
TOLERANCE = {"lbfgs": 1e-9, "bh": 1e-9, "cg": 1e-9, "lsqml": 1e-10}
CELLS = [(engine, "fourier") for engine in ENGINES] + [
    (engine, case)
    for engine in ("rpie", "lsqml", "adam", "dm")
    for case in CASES
    if case != "fourier" and not (case == "slices" and engine in SINGLE)
]


def outcome(engine: str, case: str, **more: object) -> tuple[RunState, float]:
    toy = make(views=20, **CASES[case])  # type: ignore[arg-type]
    options: dict = {"epochs": 2, "fidelity": toy.model.fidelity, **more}
    if ENGINES[engine].model_fields["batch"].annotation is not type(None):
        options["batch"] = 7
    if toy.model.subpixel != "none":
        options["positions"] = {"gain": 1}
    if case == "slices":
        options["probe"] = {"intensity": True}
    problem = toy.problem()
    state = RunState(toy.start(position_error=0.4))
    Loop(problem, state, [ENGINES[engine](**options)], seed=7).run()
    return state, problem.residual(state.estimate)[0]


@pytest.mark.sample(24)
@pytest.mark.parametrize(("engine", "case"), CELLS)
def test_twins(engine: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fused, residual = outcome(engine, case)
    monkeypatch.setenv(VARIABLE, "torch")
    plain, wanted = outcome(engine, case)
    tolerance = TOLERANCE.get(engine, 1e-11)
    for name in ("object", "probe", "positions"):
        assert relative(getattr(fused.estimate, name), getattr(plain.estimate, name)) <= tolerance, name
    for column in ("loss", "residual"):
        assert fused.history[column] == pytest.approx(plain.history[column], rel=10 * tolerance)
    assert residual == pytest.approx(wanted, rel=10 * tolerance)


@pytest.mark.parametrize("engine", ["epie", "rpie", "mpie", "lsqml", "adam"])
def test_several_slices_leave_no_pass_to_torch(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With positions and intensities refined."""
    left = record_references(monkeypatch)
    more = {"unknowns": {"slice_spacing": True, "tilt": True}} if engine == "adam" else {}
    state, _ = outcome(engine, "slices", **more)
    assert not left
    assert float((state.estimate.weights - 1).abs().max()) > 0, "intensities have moved"
    assert (state.estimate.tilt_rad != (0.0, 0.0)) == bool(more)


def test_what_is_between_slices_is_found_as_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    unknowns = {"slice_spacing": {"lr": 0.01}, "tilt": {"lr": 0.05}}
    fused, _ = outcome("adam", "slices", unknowns=unknowns)
    monkeypatch.setenv(VARIABLE, "torch")
    plain, _ = outcome("adam", "slices", unknowns=unknowns)
    assert fused.estimate.slice_spacing_m == pytest.approx(plain.estimate.slice_spacing_m, rel=1e-9)
    assert fused.estimate.tilt_rad == pytest.approx(plain.estimate.tilt_rad, rel=1e-7)
    assert relative(fused.estimate.object, plain.estimate.object) < 1e-9


def test_who_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert type(kernel_backend(cpu, torch.complex64)) is not Backend
    assert type(kernel_backend(torch.device("meta"), torch.complex64)) is Backend
    monkeypatch.setenv(VARIABLE, "torch")
    assert type(kernel_backend(cpu, torch.complex64)) is Backend
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(BadInput, match=r"PTYMESH_KERNELS is 'cuda'; set it to auto, torch or launched, or remove it"):
        kernel_backend(cpu, torch.complex64)


#: A reconstruction, and commands about kernels, in a process that cannot import numba.
WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
import torch
import ptymesh
from ptymesh.cli import doctor, warm
from ptymesh.kernels import kernel_backend, start_preparing
from ptymesh.physics.backend import Backend
from toy import make
start_preparing(torch.device("cpu"), torch.complex64)
toy = make(views=4, window=(16, 16), blocks=1)
assert type(toy.problem().backend) is type(kernel_backend(torch.device("cpu"), torch.complex64)) is Backend
assert doctor.kernels() == {}
try:
    warm.command()
except ptymesh.BadInput as error:
    print(error)
"""


def test_without_numba_torch_computes_and_one_sentence_says_so() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    environment.pop(VARIABLE, None)
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "There is nothing to compile kernels with; install a numba that goes with this numpy.\n"
    (said,) = done.stderr.splitlines()
    assert said.startswith("ptymesh: the kernels of CPUs are off, as numba cannot be imported (import of numba halted")


#: Makes ready a single small kernel, having done what `first` says; prints how often it was found on disk.
MAKE_READY = """
import sys, ptymesh.kernels
assert not {{'numba', 'llvmlite'}} & set(sys.modules), 'the package itself loads no compiler'
import torch; torch.set_num_threads(1)
from ptymesh.kernels.cpu.compiled import blocks as compiled_blocks
from ptymesh.kernels.cpu import compiling
from ptymesh.kernels.cpu import ready
kernel = compiled_blocks.clear
for room in compiling.KERNEL_MODULES:
    if room is not compiled_blocks:
        room.SIGNATURES = {{}}
compiled_blocks.SIGNATURES = {{kernel: compiled_blocks.SIGNATURES[kernel]}}
{first}
ready.make_ready(torch.complex64)
assert torch.get_num_threads() == 1 and len(kernel.signatures) == 1
print(sum(kernel.stats.cache_hits.values()))
"""


def made_ready(cache: Path, first: str = "") -> tuple[str, str]:
    code, environment = MAKE_READY.format(first=first), {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("stale", [False, pytest.param(True, marks=pytest.mark.long)])
def test_compiled_once_and_by_nobody_who_computes(stale: bool, tmp_path: Path) -> None:
    """An empty cache is filled by order of the first process, which says so, and then reads it as the second does,
    unless it was compiled from other files."""
    assert made_ready(tmp_path) == ("1\n", f"{ready.MESSAGE}\n")
    (mark,) = tmp_path.rglob(compiling.MARK)
    if stale:
        mark.write_text("of other files")
    assert made_ready(tmp_path) == ("1\n", f"{ready.MESSAGE}\n" if stale else "")


def test_what_was_compiled_from_other_files_is_deleted_alone(tmp_path: Path) -> None:
    names = ("windows.exit_waves-60.py311.nbi", "probes.ramped-9.py311.1.nbc", "others.sweep-1.py311.nbi")
    for name in names:
        (tmp_path / name).touch()
    compiling.mark_as(tmp_path, "new")
    assert {path.name for path in tmp_path.iterdir()} == {names[2], compiling.MARK}
    (tmp_path / names[0]).touch()
    compiling.mark_as(tmp_path, "new")
    assert (tmp_path / names[0]).exists()


@pytest.mark.long
def test_compiled_where_nobody_else_can(tmp_path: Path) -> None:
    assert made_ready(tmp_path, "sys.executable = ''") == ("0\n", f"{ready.MESSAGE}\n")
