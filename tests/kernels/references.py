"""What a fused pass is compared with its torch reference by: random inputs, and each comparison once for all kernels.

test_cpu.py and triton_checks.py choose sizes, modes, precisions, dtypes of counts and kinds of positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from ptymesh.physics import fidelity
from ptymesh.physics.backend import Adjoints, Backend, BatchCache, Chunk, Operation, reference_of
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.fidelity import UNLIT
from ptymesh.physics.fidelity.amplitude import AmplitudeFidelity
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.model import Intermediates, Model, SliceStack
from ptymesh.physics.operators import Place, Placed, ShiftOperator, Tables, Values, WaveOperator
from ptymesh.physics.rounding import narrowed, shifts_for
from toy import geometry_for

#: Sums of float64 in another order; of float32, with rows summed in vectors.
TOLERANCE = {torch.complex128: 1e-12, torch.complex64: 3e-6}
SIDE = 64

DTYPES = [torch.complex64, torch.complex128]
#: Windows of whole and part panels of rows and of columns, with stages of every kind.
DEEP = [(16, 16), (60, 36), (9, 14), (50, 35)]


class Case:
    """Random object, probe, chunk and waves, for the kernels of the CPU."""

    device, views = "cpu", 5

    def __init__(
        self,
        dtype: torch.dtype = torch.complex128,
        window: tuple[int, int] = (13, 22),
        modes: int = 2,
        subpixel: str = "fourier",
        counts: torch.dtype = torch.uint16,
        background: float = 0.0,
        opr: int = 0,
        propagation: str = "far_field",
        fidelity: str = "amplitude",
        slices: int = 1,
        seed: int = 1,
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        self.dtype, self.real, self.window, self.rng = dtype, real, window, rng
        self.model = Model.for_geometry(
            geometry_for(propagation, window),
            subpixel=subpixel,  # type: ignore[arg-type]
            fidelity=fidelity,  # type: ignore[arg-type]
            slices=SliceStack(slices, 5e-6, (0.01, -0.02)),
            dtype=dtype,
        )
        side = max(SIDE, max(window) + 42)
        self.object, self.probe = self.waves(slices, side, side), self.waves(modes, *window)
        self.opr = self.waves(opr, *window)
        anchors = torch.randint(2, side - max(window) - 4, (self.views, 2), generator=rng)
        fractions = (2 * torch.rand(self.views, 2, generator=rng, dtype=torch.float64) - 1).to(real)
        weights = 0.5 + torch.rand(self.views, 1 + opr, generator=rng, dtype=real)
        y = 3 * torch.rand(self.views, *window, generator=rng, dtype=torch.float64)
        if counts.is_floating_point or counts == torch.int32:
            y = torch.where(torch.rand(y.shape, generator=rng) < 0.1, -1.0, y)
        mask = torch.rand(window, generator=rng) < 0.8
        b = background * torch.rand(window, generator=rng, dtype=real)
        y = y.numpy().astype(str(counts).removeprefix("torch."))
        views = torch.arange(self.views)
        self.chunk = Chunk(views, views, anchors, fractions, weights, torch.from_numpy(y), mask, b)
        self._move()

    def _move(self) -> None:
        """To the device, on which they were not made lest it should matter to the numbers."""
        held = vars(self.model).items()
        of_model = {name: value.to(self.device) for name, value in held if isinstance(value, Tensor)}
        if self.model.tilt_rates is not None:
            of_model["tilt_rates"] = tuple(rates.to(self.device) for rates in self.model.tilt_rates)
        self.model = replace(self.model, **of_model)
        self.object, self.probe, self.opr = (t.to(self.device) for t in (self.object, self.probe, self.opr))
        moved = {name: value.to(self.device) for name, value in vars(self.chunk).items() if isinstance(value, Tensor)}
        self.chunk = replace(self.chunk, **moved)

    def waves(self, *shape: int) -> Tensor:
        """Complex normal numbers."""
        return torch.randn(shape, generator=self.rng, dtype=torch.complex128).to(self.dtype).to(self.device)

    def many(self) -> Tensor:
        """Waves (B, M, h, w), as many as the model makes."""
        return self.waves(self.views, len(self.probe) * self.model.fan_out, *self.window)

    def forwards(self, **changes: Tensor) -> list:
        """The reference's intermediates and the fused one's."""
        chunk = replace(self.chunk, **changes, cache=BatchCache())
        return [(p, chunk, p.forward(self.model, chunk, self.object, self.probe, self.opr)) for p in self.both]

    @property
    def fused(self) -> Backend:
        """The kernels."""
        from ptymesh.kernels.cpu.backend import CpuBackend  # kernels of GPUs are compared where there is no numba

        return CpuBackend(self.dtype)

    @property
    def both(self) -> tuple[Backend, Backend]:
        """The reference and the kernels."""
        return Backend(), self.fused

    def close(self, got: Tensor, wanted: Tensor) -> None:
        """To the precision, of the largest."""
        scale = float(wanted.abs().max())
        assert scale > 0
        assert float((got - wanted).abs().max()) <= TOLERANCE[self.dtype] * scale


#: Terms of these sums are below.
BOUND = 2.0**12


def nothing(case: Case, chunk: Chunk | None = None, parts: int = 0) -> Adjoints:
    """Sums before the first chunk, of so many parts, or as many as the precision asks for; of views that are shifted,
    if the case is one of those and the chunk not whole."""
    parts = parts or (1 if case.dtype == torch.complex64 else 2)
    complex_, real = (partial(torch.zeros, dtype=d, device=case.device) for d in (torch.complex128, torch.float64))
    (slices, height, width), (h, w) = case.object.shape, case.window
    shifts, _ = shifts_for(torch.full((SUMS,), BOUND), 4 * 3 * case.views)
    whole = chunk is not None and chunk.integer_positions and not len(case.opr)
    return Adjoints(
        complex_(parts * slices, height, width),
        real(parts * slices, height, width),
        complex_(parts * len(case.probe), h, w),
        real(parts, h, w),
        complex_(parts * len(case.opr), h, w),
        real(parts * len(case.opr), h, w),
        shifts.to(case.device),
        real(SUMS),
        parts,
        case.model.subpixel == "fourier" and not whole,
    )


def found_in(sums: Adjoints, name: str) -> Tensor:
    """The sum of this name, of all its parts."""
    values = getattr(sums, name)
    return narrowed(values, values.dtype, len(values) // sums.parts)


def same_reach(got: Adjoints, wanted: Adjoints, names: tuple[str, ...]) -> None:
    """The largest terms are known, or not less than they are."""
    for kind, name in enumerate(("object", "object_weight", "probe", "probe_weight", "opr", "opr_weight")):
        if name in names:
            high = float(wanted.reached[kind])
            assert 0.999 * high <= float(got.reached[kind]) <= 4.1 * high, name


def summed(
    case: Case, backend: Backend, chunk: Chunk, intermediates: object, waves: Tensor, twice: bool = True
) -> Adjoints:
    """Adjoints of the waves, of two chunks."""
    sums = nothing(case, chunk)
    for factor in (1, 0.5) if twice else (1,):
        backend.adjoint(case.model, chunk, intermediates, factor * waves, sums)  # type: ignore[arg-type]
    backend.finish(sums)
    return sums


def compare_scenes(case: Case, **changes: object) -> None:
    """Waves, and sums of their adjoints."""
    waves = case.many()
    (reference, chunk, wanted), (fused, other, got) = case.forwards(**changes)  # type: ignore[arg-type]
    for name in ("exit", "windows"):
        case.close(getattr(got, name), getattr(wanted, name))
    case.close(got.incoming[0].expand_as(wanted.incoming[0]), wanted.incoming[0])
    sums = [summed(case, *each, waves) for each in ((reference, chunk, wanted), (fused, other, got))]
    names = ("object", "object_weight", "probe", "probe_weight", *(("opr", "opr_weight") if len(case.opr) else ()))
    for name in names:
        case.close(found_in(sums[1], name), found_in(sums[0], name))
    same_reach(sums[1], sums[0], names)


def swept(case: Case, backend: Backend, chunk: Chunk, task: str, keep: bool) -> tuple[Adjoints, Tensor, Tensor, object]:
    """Sums of two chunks and of a single view; of the first chunk waves, found and its intermediates."""
    sums, whole = nothing(case, chunk), []
    parts = [slice(0, len(chunk.views)), slice(0, 1), slice(1, len(chunk.views))]
    names = ("views", "rows", "anchors", "fractions", "weights", "counts")
    for part in parts:
        some = replace(chunk, **{name: getattr(chunk, name)[part] for name in names}, cache=chunk.cache)
        intermediates = backend.forward(case.model, some, case.object, case.probe, case.opr)
        whole.append((*backend.sweep(case.model, some, intermediates, task, sums, keep), intermediates))  # type: ignore[arg-type]
    backend.finish(sums)
    return sums, *whole[0]


def compare_sweeps(case: Case, task: str, **changes: object) -> None:
    """Gradients, and what is kept for a second sweep."""
    chunk = replace(case.chunk, **changes, cache=BatchCache())  # type: ignore[arg-type]
    reference, fused = case.both
    wanted, waves, found, intermediates = swept(case, reference, chunk, task, keep=True)
    for keep in (False, True):
        sums, got, seen, other = swept(case, fused, replace(chunk, cache=BatchCache()), task, keep)
        for column in range(found.shape[1]):
            case.close(seen[:, column], found[:, column])
        names = ("object", "object_weight", "probe", "probe_weight", *(("opr", "opr_weight") if len(case.opr) else ()))
        for name in names:
            case.close(found_in(sums, name), found_in(wanted, name))
        same_reach(sums, wanted, names)
    case.close(got, waves)
    case.close(other.exit, intermediates.exit)  # type: ignore[attr-defined]


def compare_steps(case: Case, **changes: object) -> None:
    """Steps of positions."""
    chi = case.many()
    all_intermediates = case.forwards(**changes)  # type: ignore[arg-type]
    reference, fused = (
        p.position_step(case.model, c, case.object, case.probe, case.opr, s, chi) for p, c, s in all_intermediates
    )
    assert fused.dtype == torch.float64
    case.close(fused, reference)


def compare_weight_steps(case: Case, **changes: object) -> None:
    """Steps of weights, of any waves."""
    chi = case.many()
    reference, fused = (
        p.weight_step(case.model, c, case.probe, case.opr, s, chi)
        for p, c, s in case.forwards(**changes)  # type: ignore[arg-type]
    )
    assert fused.dtype == reference.dtype
    case.close(fused, reference)


def asked_in_a_sweep(case: Case, backend: Backend, chunk: Chunk, keep: bool = False) -> tuple[Tensor, ...]:
    """Steps of positions, where these have a derivative, and of weights, of waves that a sweep brings back."""
    chunk, sums = replace(chunk, cache=BatchCache()), nothing(case, chunk)
    made = backend.forward(case.model, chunk, case.object, case.probe, case.opr)
    chi, _ = backend.sweep(case.model, chunk, made, "exit_wave_update", sums, keep, steps=True)
    weights = backend.weight_step(case.model, chunk, case.probe, case.opr, made, chi)
    if case.model.subpixel == "none" or chunk.integer_positions:
        return (weights,)
    return weights, backend.position_step(case.model, chunk, case.object, case.probe, case.opr, made, chi)


def compare_asked(case: Case, **changes: object) -> None:
    """What a sweep finds of single views on its way."""
    chunk = replace(case.chunk, **changes)  # type: ignore[arg-type]
    wanted = asked_in_a_sweep(case, case.both[0], chunk)
    for keep in (False, True):
        for got, one in zip(asked_in_a_sweep(case, case.fused, chunk, keep), wanted, strict=True):
            assert got.dtype == one.dtype
            case.close(got, one)


def compare_systems(case: Case) -> None:
    """Systems of step lengths, for the first mode and for all."""
    d_object, d_probe, chi = case.waves(*case.object.shape), case.waves(*case.probe.shape), case.many()
    for few in {1, len(case.probe)}:
        reference, fused = (p.systems(case.model, c, s, d_object, d_probe, chi[:, :few]) for p, c, s in case.forwards())
        case.close(fused, reference)


def compare_gaps(case: Case) -> None:
    """What unknowns between slices ask for: one of them, and all three at once."""
    chi = case.many()
    rates = torch.cat([case.model.gap_rates(name) for name in ("slice_spacing", "tilt")])
    for some in (rates[:1], rates):
        reference, fused = (p.gap_products(case.model, c, s, some, chi) for p, c, s in case.forwards())
        for unknown in range(len(some)):
            case.close(fused[:, unknown], reference[:, unknown])


def compare_in_one_go(case: Case, task: str, **changes: object) -> None:
    """Waves that come back from the detector, and sums of views, where exit waves are made on the way."""
    for one in (task, "evaluate"):
        (reference, wanted), (fused, got) = (
            p.detector(case.model, c, s, one)  # type: ignore[arg-type]
            for p, c, s in case.forwards(**changes)  # type: ignore[arg-type]
        )
        case.close(got, wanted)
        if one != "evaluate":
            case.close(fused, reference)


def compare_detector(case: Case, task: str) -> None:
    """Waves and sums of one task: watch, revise or descend."""
    detected = case.many()
    least = UNLIT * case.chunk.data.y[0].mean() / detected.shape[1]
    detected[0, :, 0, 0], detected[0, :, 0, 1] = (0.9 * least).sqrt(), (1.1 * least).sqrt()
    changed, found = [], []
    for backend in case.both:
        waves = detected.clone()
        found.append(backend.at_detector(case.model, replace(case.chunk, cache=BatchCache()), waves, task))  # type: ignore[arg-type]
        changed.append(waves)
    assert (task == "evaluate") == torch.equal(changed[1], detected)
    if task != "evaluate":
        assert all(int(waves[0, :, 0, 0].count_nonzero()) == 0 for waves in changed), "there is no light"
        if case.model.fidelity == "amplitude" and int(case.chunk.data.y[0, 0, 1]):
            assert all(float(waves[0, 0, 0, 1].abs()) > 0 for waves in changed), "there is some light"
    finite = changed[0].abs() < 1e6  # of the dim pixel it may be a large number
    case.close(changed[1][finite], changed[0][finite])
    for column in range(found[0].shape[1]):
        case.close(found[1][:, column], found[0][:, column])


def check_pixels_without_data(case: Case) -> None:
    """What has no count, or is masked, stays as it is."""
    counts = case.chunk.counts.clone()
    counts[0, 5, 6], counts[1, 3, 4], counts[2, 5, 6] = 2.0, float("nan"), -1.0
    mask = torch.ones(case.window, dtype=torch.bool, device=case.device)
    mask[7, 8] = False
    detected = case.many()
    chunk = replace(case.chunk, counts=counts, mask=mask, cache=BatchCache())
    case.fused.at_detector(case.model, chunk, detected, "exit_wave_update")
    for view, y, x in ((1, 3, 4), (2, 5, 6), (0, 7, 8)):
        assert float(detected[view, :, y, x].abs().max()) == 0
    assert float(detected[0, :, 5, 6].abs().max()) > 0


def record_references(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the names of what the kernels of the CPU leave to the reference are added."""
    from ptymesh.kernels.cpu import from_probe
    from ptymesh.kernels.cpu.backend import CpuBackend

    left: list[str] = []
    kernel_for = CpuBackend.kernel_for

    def recording(self: CpuBackend, operation: Operation, model: Model, chunk: Chunk) -> Callable[..., object] | None:
        kernel = kernel_for(self, operation, model, chunk)
        left.extend([operation] if kernel is None else [])
        return kernel

    def reference(method: Callable[..., object]) -> Callable[..., object]:
        left.append(method.__name__)
        return reference_of(method)

    monkeypatch.setattr(CpuBackend, "kernel_for", recording)
    monkeypatch.setattr(from_probe, "reference_of", reference)
    return left


# --- pieces that no kernel knows ---


class Screen(WaveOperator):
    """A phase screen."""

    name: ClassVar[str] = "screen"

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        return psi * torch.exp(1j * tables[0])

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        return psi * torch.exp(-1j * tables[0])


class ExitScreen(Screen):
    """The same behind the last slice."""

    at: ClassVar[Place] = "exit"


class BetweenScreen(Screen):
    """The same behind each way from slice to slice."""

    at: ClassVar[Place] = "between"


class Smear(DetectorPiece):
    """A pixel gives a fifth of its light to the next one in its row."""

    name: ClassVar[str] = "smear"

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        return 0.8 * S + 0.2 * S.roll(1, -1)

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        return 0.8 * x + 0.2 * x.roll(-1, -1)


class Full(Smear):
    """The same of a detector that counts no further than to 2."""

    name: ClassVar[str] = "full"

    @property
    def saturation(self) -> fidelity.Saturation:
        return fidelity.Saturation(2.0)


class MirroredPositions(Model):
    """Windows that are cut from the object, and mirrored."""

    def windows(self, obj: Tensor, anchors: Tensor, fractions: Tensor, window: tuple[int, int]) -> Tensor:
        return super().windows(obj, anchors, fractions, window).flip(-1)

    def placed(self, windows: Tensor, anchors: Tensor, fractions: Tensor) -> tuple[Tensor, Tensor]:
        return super().placed(windows.flip(-1), anchors, fractions)


class MirroredProbes(Model):
    """Probes that are mirrored."""

    def probes(self, probe: Tensor, fractions: Tensor, weights: Tensor, opr: Tensor | None = None) -> Tensor:
        return super().probes(probe, fractions, weights, opr).flip(-2)

    def unshifted_terms(self, waves: Tensor, fractions: Tensor, weights: Tensor) -> Tensor:
        return super().unshifted_terms(waves.flip(-2), fractions, weights)


class MirroredDetector(Model):
    """A detector that sees the near field mirrored, too."""

    def detect(self, exit_waves: Tensor, fractions: Tensor) -> Tensor:
        return super().detect(exit_waves, fractions).flip(-1)

    def detect_adjoint(self, detected: Tensor, fractions: Tensor) -> Tensor:
        return super().detect_adjoint(detected.flip(-1), fractions)


def _with_operator(case: Case, operator: WaveOperator) -> Model:
    screen = 2 * torch.rand(case.window, generator=case.rng, dtype=torch.float64).to(case.real).to(case.device)
    return replace(case.model, operators=(Placed(operator, (screen,), {}),))


def _as(case: Case, kind: type[Model]) -> Model:
    return kind(**vars(case.model))


def _saturated(case: Case) -> Model:
    model = replace(case.model, detector=(Placed(Full(), (), {}),))
    case.chunk = replace(case.chunk, saturation=model.saturation)
    return model


#: Models with a piece that no kernel knows, by where it acts.
PIECES: dict[str, Callable[[Case], Model]] = {
    "operator at the probe": lambda case: _with_operator(case, Screen()),
    "operator at the exit": lambda case: _with_operator(case, ExitScreen()),
    "operator between slices": lambda case: _with_operator(case, BetweenScreen()),
    "positions": lambda case: _as(case, MirroredPositions),
    "named positions": lambda case: replace(case.model, subpixel="nearest"),  # type: ignore[arg-type]
    "probe": lambda case: _as(case, MirroredProbes),
    "detector": lambda case: _as(case, MirroredDetector),
    "response": lambda case: replace(case.model, detector=(Placed(Smear(), (), {}),)),
    "saturation": _saturated,
    "fidelity": lambda case: replace(case.model, fidelity="quartic"),
}


# --- pieces around which there are kernels ---


class Copies(ShiftOperator):
    """Three copies along a line of each view's own."""

    name: ClassVar[str] = "copies"

    @property
    def fan_out(self) -> int:
        return 3

    def copies(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        places, factors = tables
        return values["line"][:, None] * places[:, None], factors


class Ladder(ShiftOperator):
    """Two copies, each propagated by a distance of each view's own, or by one for all."""

    name: ClassVar[str] = "ladder"
    shared: bool = False

    @property
    def fan_out(self) -> int:
        return 2

    def copies(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        return tables[0].new_zeros((1, 2, 2)), tables[1]

    def distances(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        return 10 * (values["line"][:1] if self.shared else values["line"]), tables[0]


class Turn(ExitScreen):
    """A phase screen behind the last slice that says what it does to products: nothing."""

    keeps_products: ClassVar[bool] = True


def _with_copies(case: Case, *others: WaveOperator) -> Model:
    line = torch.randn(case.views, 2, generator=case.rng, dtype=torch.float64).to(case.real).to(case.device)
    case.chunk = replace(case.chunk, values={"line": line})
    tables = torch.tensor([-1.0, 0.2, 0.9]), torch.tensor([0.6, 0.5, 0.62449980])
    copies = Placed(Copies(), tuple(t.to(case.real).to(case.device) for t in tables), {})
    if others and isinstance(others[0], Ladder):
        rate = _with_operator(case, others[0]).operators[0].tables[0]
        copies, others = Placed(others[0], (rate, copies.tables[1][:2]), {}), others[1:]
    return replace(case.model, operators=(copies, *(_with_operator(case, one).operators[0] for one in others)))


AROUND: dict[str, Callable[[Case], Model]] = {
    "copies": _with_copies,
    "propagated copies": lambda case: _with_copies(case, Ladder()),
    "copies propagated alike": lambda case: _with_copies(case, Ladder(shared=True), Turn()),
    "copies before a turn": lambda case: _with_copies(case, Turn()),
    "copies before a screen": lambda case: _with_copies(case, Screen()),
    "pieces of the detector": lambda case: replace(case.model, detector=(Placed(Smear(), (), {}),)),
    "copies and pieces": lambda case: replace(_with_copies(case), detector=(Placed(Smear(), (), {}),)),
    "turn": lambda case: _with_operator(case, Turn()),
}


class Quartic(AmplitudeFidelity):
    """Half of the amplitude's loss, with half of its factor: none of those that kernels know."""

    name: ClassVar[str] = "quartic"

    def loss(self, I: Tensor, y: Tensor) -> Tensor:
        return 0.5 * super().loss(I, y)

    def slope(self, I: Tensor, y: Tensor) -> Tensor:
        return 0.5 * super().slope(I, y)

    def revision(self, S: Tensor, data: fidelity.Data) -> Tensor:
        return 0.5 * super().revision(S, data)


def add_fidelity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the reference know a fidelity "quartic", which is none of the others."""
    monkeypatch.setitem(fidelity.FIDELITIES._own, "quartic", Quartic)


def all_entries(case: Case, backend: Backend) -> dict[str, tuple[Tensor, ...]]:
    """What each entry of a backend gives, by name; waves are the same for every backend."""
    model, chunk = case.model, replace(case.chunk, cache=BatchCache())
    case.rng.manual_seed(5)
    chi, d_object, d_probe = case.many(), case.waves(*case.object.shape), case.waves(*case.probe.shape)
    made: Intermediates = backend.forward(model, chunk, case.object, case.probe, case.opr)
    found: dict[str, tuple[Tensor, ...]] = {
        "forward": (made.windows, made.exit, *(wave.expand_as(made.exit) for wave in made.incoming)),
        "illumination": (backend.illumination(model, chunk, made, case.probe.real.square()),),
        "weight_step": (backend.weight_step(model, chunk, case.probe, case.opr, made, chi),),
        "systems": (backend.systems(model, chunk, made, d_object, d_probe, chi),),
    }
    if model.subpixel in ("fourier", "bilinear"):
        given = case.object, case.probe, case.opr, made, chi
        found["position_step"] = (backend.position_step(model, chunk, *given),)
    if model.slice_kernel is not None:
        found["gap_products"] = (backend.gap_products(model, chunk, made, model.gap_rates("tilt"), chi),)
    sums = nothing(case, chunk)
    backend.adjoint(model, chunk, made, chi, sums)
    light = torch.zeros((1, *case.object.shape[1:]), dtype=torch.float64, device=case.device)
    backend.illuminate(model, chunk, case.probe[0].real.abs().contiguous(), sums.shifts, light)
    backend.finish(sums)
    found |= {"adjoint": _sums_of(case, sums), "illuminate": (light,)}
    for task in ("evaluate", "exit_wave_update", "loss_gradient"):
        detected = chi.clone()
        columns = backend.at_detector(model, chunk, detected, task)  # type: ignore[arg-type]
        found[f"at_detector {task}"] = detected, columns
        for name, given in (("apply_at_detector", chi.clone()), ("detector", made)):
            waves, columns = getattr(backend, name)(model, chunk, given, task)
            found[f"{name} {task}"] = (columns,) if task == "evaluate" else (waves, columns)
        if task == "evaluate":
            continue
        for steps in {False, backend.supports(model, chunk, "steps")}:
            sums, chunk = nothing(case, chunk), replace(chunk, cache=BatchCache())
            again = backend.forward(model, chunk, case.object, case.probe, case.opr)
            waves, columns = backend.sweep(model, chunk, again, task, sums, True, steps)  # type: ignore[arg-type]
            backend.finish(sums)
            found[f"sweep {task}"] = waves, columns, *_sums_of(case, sums)
            found[f"recompute_waves {task}"] = (backend.recompute_waves(model, chunk, again, task),)  # type: ignore[arg-type]
            if steps:
                weights = backend.weight_step(model, chunk, case.probe, case.opr, again, waves)
                found[f"weight_step of a sweep {task}"] = (weights,)
    return found


def _sums_of(case: Case, sums: Adjoints) -> tuple[Tensor, ...]:
    names = ("object", "object_weight", "probe", "probe_weight", *(("opr", "opr_weight") if len(case.opr) else ()))
    return tuple(found_in(sums, name) for name in names)


def compare_entries(case: Case) -> None:
    """All entries of the kernels against those of the reference."""
    wanted, got = all_entries(case, Backend()), all_entries(case, case.fused)
    for name, values in wanted.items():
        if name in got:  # what a sweep finds of steps is only asked for where the backend says so
            for one, other in zip(got[name], values, strict=True):
                case.close(one, other)
