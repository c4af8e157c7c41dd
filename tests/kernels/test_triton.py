"""Triton's passes: right by its interpreter or on a GPU (triton_checks.py), and compiled for GPUs that are not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ptymesh as pm
from ptymesh import kernels
from ptymesh.engines import ENGINES
from ptymesh.physics.backend import Backend
from ptymesh.simulate import simulate
from toy import relative

pytest.importorskip("triton", reason="Triton is not installed (pip install 'ptymesh[gpu]')")

from ptymesh.kernels.gpu import backend as triton_backend
from ptymesh.kernels.gpu import blocks as triton_blocks
from ptymesh.kernels.gpu import detector as triton_detector
from ptymesh.kernels.gpu import windows as triton_kernels
from ptymesh.kernels.gpu.backend import GpuBackend

#: All kernels, and the types of their arguments.
SIGNATURES = triton_kernels.SIGNATURES | triton_detector.SIGNATURES | triton_blocks.SIGNATURES

GPU = torch.cuda.is_available()
on_a_gpu = pytest.mark.skipif(not GPU, reason="there is no CUDA device")
#: What a kernel's argument is, by its letter in SIGNATURES; patterns as most detectors have them.
TYPES = {"c": "*fp32", "d": "*fp64", "n": "*i64", "u": "*u16", "b": "*i1", "i": "i32"}
#: Backend, architecture, threads of a warp, kind of assembly and what it must hold.
TARGETS = [
    ("cuda", 80, 32, "ptx", "sm_80"),
    ("cuda", 90, 32, "ptx", "sm_90"),
    ("hip", "gfx942", 64, "amdgcn", "gfx942"),
]


def checks(device: str, file: str = "triton_checks.py", marked: str | None = None) -> None:
    """Runs a file of checks in a process of its own: those that `make test` has, or those so marked, "" for all."""
    environment = {**os.environ, "PTYMESH_TRITON_DEVICE": device, kernels.VARIABLE: "torch"}
    environment |= {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    some = [] if marked is None else ["-m", marked]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *some]
    here = Path(__file__).with_name(file)
    done = subprocess.run([*command, str(here)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout.replace("[100%]", " passed"), done.stdout[-4000:]


@pytest.mark.stand_in
def test_right_by_the_interpreter() -> None:
    checks("cpu")


@pytest.mark.stand_in
def test_no_batch_waits_for_a_gpu() -> None:
    checks("cpu", "wait_checks.py")


@pytest.mark.stand_in
@pytest.mark.parametrize("file", ["triton_checks.py", "wait_checks.py", "graph_checks.py"])
def test_more_checks(file: str) -> None:
    checks("cpu", file, marked="stand_in")


@pytest.mark.stand_in
def test_late_devices_that_round_otherwise_give_the_same() -> None:
    checks("cpu", "device_checks.py")


@pytest.mark.stand_in
def test_launches_waits_and_compiled_kernels_only_become_less() -> None:
    checks("cpu", "ratchet_checks.py")


@pytest.mark.stand_in
def test_captured_sweeps_are_right() -> None:
    checks("cpu", "graph_checks.py")


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
def test_compiled_without_a_gpu(target: tuple[str, object, int, str, str]) -> None:
    *gpu, kind, word = target
    for kernel in SIGNATURES:
        text = assembly(kernel, tuple(gpu), kind, {})
        assert word in text and kernel.__name__ in text


#: Other constants than those of SIGNATURES; Triton takes arguments that are 1 for constants too.
VARIANTS = [
    {"M": 1, "KIND": 0, "TASK": 1, "AXIS": -1, "SHARED": 1, "D_SHARED": 1, "BILINEAR": 0, "SHIFTED": 0}
    | {"count": 1, "size": 1, "spans": 1, "FIRST": 1, "EACH": 0, "ADD": 0},
    {"KIND": 2, "TASK": 2, "AXIS": 0, "SHARED": 1, "PARTS": 1, "PLACES": 0},
]


@pytest.mark.long
@pytest.mark.parametrize("constants", VARIANTS, ids=["one mode", "one part"])
def test_variants_compile(constants: dict[str, int]) -> None:
    found = [assembly(kernel, ("cuda", 90, 32), "ptx", constants) for kernel in SIGNATURES]
    plain = [assembly(kernel, ("cuda", 90, 32), "ptx", {}) for kernel in SIGNATURES]
    assert sum(a != b for a, b in zip(found, plain, strict=True)) >= 8, "constants make a difference"


def assembly(kernel: Any, gpu: tuple[Any, ...], kind: str, constants: dict[str, int]) -> str:
    """What a kernel becomes for a GPU: (backend, architecture, threads of a warp)."""
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    letters = dict(zip(kernel.arg_names, SIGNATURES[kernel].split(), strict=True))
    fixed = {name: int(letter) for name, letter in letters.items() if letter not in TYPES}
    fixed |= {name: value for name, value in constants.items() if name in letters}
    signature = {name: "constexpr" if name in fixed else TYPES[letter] for name, letter in letters.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    return str(compiled(source, target=GPUTarget(*gpu)).asm[kind])


@pytest.mark.parametrize("wrong", ["no C compiler was found", ""])
def test_without_a_compiler_torch_does_it(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tried(device: torch.device) -> None:
        if wrong:
            raise RuntimeError(wrong)

    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(triton_backend, "tried", tried)
    kernels._launches.cache_clear()
    found = [type(kernels.kernel_backend(torch.device("cuda", 0), torch.complex64)) for _ in range(2)]
    assert found == [Backend if wrong else GpuBackend] * 2
    said = capsys.readouterr().err
    assert said.count("Triton runs no kernel on cuda:0 (RuntimeError: no C compiler was found)") == bool(wrong), "once"
    assert bool(said) == bool(wrong)
    kernels._launches.cache_clear()


def test_gpus_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(kernels, "_launches", lambda device: True)
    single = torch.complex64
    for name in ("cuda", "xpu"):
        assert type(kernels.kernel_backend(torch.device(name), single)) is GpuBackend
    assert type(kernels.kernel_backend(torch.device("mps"), single)) is Backend
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert type(kernels.kernel_backend(torch.device("cuda"), single)) is Backend
    monkeypatch.setenv(kernels.VARIABLE, "torch")
    assert type(kernels.kernel_backend(torch.device("cuda"), single)) is Backend


def test_graphs_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_launches", lambda device: True)
    for choice, wanted in (("auto", True), ("launched", False)):
        monkeypatch.setenv(kernels.VARIABLE, choice)
        backend = kernels.kernel_backend(torch.device("cuda"), torch.complex64)
        assert isinstance(backend, GpuBackend) and (backend.graphs is not None) == wanted


@pytest.mark.gpu
@on_a_gpu
def test_right_on_a_gpu() -> None:
    checks("cuda", marked="")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam"])
@pytest.mark.parametrize("subpixel", ["none", "fourier"])
def test_a_reconstruction_on_a_gpu_is_that_on_the_cpu(engine: str, subpixel: str) -> None:
    scan = simulate(views=60, window=64, modes=2).measurement
    found = []
    for device in ("cpu", "cuda"):
        recon = pm.Reconstruction(scan, probe_modes=2, subpixel=subpixel, precision="double", device=device)  # type: ignore[arg-type]
        for _ in recon.run(ENGINES[engine](epochs=3, batch=20)):
            pass
        found.append(recon.object)
    # double precision, sums in another order; three epochs let differences grow a little
    assert relative(found[1], found[0]) < 1e-8


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("subpixel", ["none", "fourier", "bilinear"])
def test_captured_sweeps_are_right_on_a_gpu(
    subpixel: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scan = simulate(views=70, window=64, modes=2).measurement
    found = []
    for choice in ("launched", "auto"):
        monkeypatch.setenv(kernels.VARIABLE, choice)
        recon = pm.Reconstruction(scan, probe_modes=2, subpixel=subpixel, precision="double", device="cuda")  # type: ignore[arg-type]
        for _ in recon.run(ENGINES["rpie"](epochs=3, batch=20)):
            pass
        found.append(recon.object)
    backend = recon.problem.backend
    assert isinstance(backend, GpuBackend) and backend.graphs is not None
    assert backend.graphs._graphs and "cannot be captured" not in capsys.readouterr().err
    assert relative(found[1], found[0]) < 1e-8


@pytest.mark.gpu
@on_a_gpu
def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("an object of more than 2^31 pixels needs 40 GB of a GPU's memory")
    width, window = 46368, (16, 16)
    obj = torch.zeros(width, width, dtype=torch.complex64, device="cuda")
    corner = torch.tensor([[width - 20, width - 18]], device="cuda")
    obj[-20:-4, -18:-2] = torch.randn(window, dtype=torch.complex64, device="cuda")
    from ptymesh.kernels.gpu import backend

    beams, out = torch.ones(1, 1, *window, dtype=torch.complex64, device="cuda"), obj.new_empty((1, 1, *window))
    given = (obj, corner, beams, torch.ones(1, device="cuda"), out)
    backend._launch_views(triton_kernels.exit_waves, out, *given, *backend._sizes(out, obj), SHARED=True)
    assert torch.equal(out[0, 0], obj[-20:-4, -18:-2])
