"""The forward model of a chunk of views, and its adjoint.

B, M, L     views of the chunk, modes, slices
O_jl        S_j O_l, window of slice l             (B, L, h, w)
P_jm        T_{f_j}(w_j0 P_m), to m = 0 adds sum_k w_jk V_k: probe of view j (B, M, h, w)
V_k         variable-probe (OPR) modes (Odstrcil et al., Opt. Express 24, 8360, 2016)
phi_l       wave that enters slice l: phi_1 = P_j, phi_{l+1} = H (phi_l . O_jl); with a mirror behind the object O_j2 is
            O_j1, and H the way to the mirror and back
psi         exit wave phi_L . O_jL;   Psi = D psi on the detector;   I = sum_m |Psi_m|^2 + b

Operators with unknowns of their own (operators.py) may stand between the shifted probe and the first slice, between
slices, where they commute with H, and behind the last one; P_j, H phi and psi are then the waves behind them. One may
make several waves of each (its `fan_out` K): behind it, M stands for M K, the K waves of a mode beside each other.
Pieces of the detector (detector/pieces.py) may stand between sum_m |Psi_m|^2 and I.

An object of Q incoherent modes (object_modes.py) has Q L planes, the slices of one mode after the other's: L stands for
these wherever it counts planes here.

D: far field F, or near field F^H K F; with Fourier sub-pixel positions the near field carries exp(+2 pi i k.f_j),
which undoes on the detector the shift of the probe. H: angular spectrum over the slice spacing
(Maiden, Humphry & Rodenburg 2012), times exp(i z (K_y tan t_y + K_x tan t_x)) for slices stacked along a tilted axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.estimate import REACH
from ptymesh.geometry import Geometry
from ptymesh.physics import window_shifts
from ptymesh.physics.background import raised_signals
from ptymesh.physics.detector.pieces import DetectorPiece, Response, binning_of
from ptymesh.physics.elementwise import over_few, over_window, overlap, times
from ptymesh.physics.fidelity import Data, Saturation
from ptymesh.physics.object_modes import ObjectModes
from ptymesh.physics.operators import (
    NOTHING,
    MirrorPiece,
    Piece,
    Placed,
    Values,
    WaveOperator,
    apply_operator_adjoints,
    apply_operators,
    fan_out_of,
    slopes,
    sum_in_order,
    views_for,
)
from ptymesh.physics.propagate import (
    Pair,
    angular_spectrum_kernel,
    apply_kernel,
    apply_kernel_adjoint,
    fft,
    fresnel_kernel,
    ifft,
    phase_rate,
    tilt_rates,
    try_transforms,
)
from ptymesh.physics.scan_energies import ScanEnergies
from ptymesh.unknowns import Unknown

Subpixel = Literal["fourier", "bilinear", "none"]


def reach_of(subpixel: Subpixel) -> int:
    """Return by how many pixels views may reach beyond their windows: 0 unless pixels are interpolated."""
    return REACH if subpixel == "bilinear" else 0


@dataclass(frozen=True)
class SliceStack:
    """Slices that an object is cut into along the beam.

    Attributes:
        count: number of slices.
        spacing_m: distance between slices.
        tilt_rad: tilt (y, x) of the axis along which they are stacked.
    """

    count: int = 1
    spacing_m: float = 0.0
    tilt_rad: Pair = (0.0, 0.0)


@dataclass(frozen=True)
class Intermediates:
    """Windows and waves of a chunk of views on their way through the object.

    Attributes:
        windows: (B, L, h, w) complex, of the object; of Q object modes (B, Q L, h, w); of both passes with a mirror,
            (B, 2, h, w).
        incoming: waves that enter each slice, (B, M, h, w) complex each.
        exit: (B, M, h, w) complex, waves behind the last slice and its operators.
        probes: (B, M, h, w) complex, shifted probes before the model's operators; None without operators.
        values: unknowns of these operators, by name.
        derivative: (B, L, h, w) complex, of the windows by those of the object in the first scan (scan_energies.py);
            None where they are the same.
    """

    windows: Tensor
    incoming: tuple[Tensor, ...]
    exit: Tensor
    probes: Tensor | None = None
    values: Values = field(default_factory=dict)
    derivative: Tensor | None = None


@dataclass(frozen=True)
class Model:
    """The forward model: how an object and a probe become intensities.

    Attributes:
        subpixel: how fractions of positions act.
        fidelity: name of the loss to which the step of `exit_wave_update` belongs.
        kernel: near-field transfer function (h, w) from sample to detector; None in the far field.
        slice_kernel: transfer function (h, w) between slices; None for a single slice.
        slice_rate: (h, w), phase of that function per metre.
        slice_spacing_m: distance between slices.
        tilt_rates: phase of that function per radian of tilt along y (h, 1) and x (1, w).
        tilt_rad: tilt (y, x) of the axis along which slices are stacked.
        operators: operators with unknowns of their own, in their order.
        detector: pieces between intensities and counts, in their order.
        energies: of scans that share a potential; None for a single one.
        mirror: behind the object, from which waves come back through it; None where they pass it once.
    """

    subpixel: Subpixel = "fourier"
    fidelity: str = "amplitude"
    kernel: Tensor | None = None
    slice_kernel: Tensor | None = None
    slice_rate: Tensor | None = None
    slice_spacing_m: float = 0.0
    tilt_rates: tuple[Tensor, Tensor] | None = None
    tilt_rad: Pair = (0.0, 0.0)
    operators: tuple[Placed[WaveOperator], ...] = ()
    detector: tuple[Placed[DetectorPiece], ...] = ()
    energies: Placed[ScanEnergies] | None = None
    mirror: Placed[MirrorPiece] | None = None

    @classmethod
    def for_geometry(
        cls,
        geometry: Geometry,
        *,
        subpixel: Subpixel = "fourier",
        fidelity: str = "amplitude",
        slices: SliceStack = SliceStack(),
        optics: Sequence[Piece] = (),
        dtype: torch.dtype = torch.complex64,
        device: torch.device | str = "cpu",
    ) -> Model:
        """Return the model of a geometry; kernels are computed in double precision and cast to `dtype`.

        Args:
            geometry: window, pixel sizes, wavelength and distances.
            subpixel: how fractions of positions act.
            fidelity: loss of the exit-wave update.
            slices: of the object; by default a single one.
            optics: pieces between probe and counts, in their order.
            dtype: complex dtype of the waves.
            device: where kernels and tables are kept.

        Raises:
            BadInput: a kernel needs a wavelength or pixel size that the geometry does not have.
        """
        kernel = None
        if geometry.propagation != "far_field":
            make = angular_spectrum_kernel if geometry.propagation == "angular_spectrum" else fresnel_kernel
            lengths = geometry.pixel_and_wavelength("Propagation to a near-field detector")
            kernel = make(geometry.shape, *lengths, geometry.effective_distance_m).to(device, dtype)
        operators = tuple(Placed.of(one, geometry, dtype, device) for one in optics if isinstance(one, WaveOperator))
        if slices.count == 1 and (gaps := [one.operator for one in operators if one.operator.at == "between"]):
            raise BadInput(f"{gaps[0].label} acts between slices, and there is one; ask for object.slices: 2 or more.")
        on_counts = [one for one in optics if isinstance(one, DetectorPiece)]
        on_counts.sort(key=lambda one: one.adds_counts)  # counts are added behind all else
        detector: tuple[Placed[DetectorPiece], ...] = ()
        at_piece, finer = geometry, binning_of(on_counts)
        for piece in on_counts:
            if finer > 1 and any("v" in unknown.axes for unknown in piece.unknowns):
                raise BadInput(f"{piece.label} is of pixels of the detector; name it behind optics.binned_detector.")
            detector += (Placed.of(piece, at_piece, dtype, device),)
            at_piece, finer = at_piece.binned(piece.binning), finer // piece.binning
        if detector and torch.device(device).type != "cpu":
            try_transforms(torch.device(device), torch.complex128, geometry.shape)
        for one in optics:
            if not any(unknown.scope == "tiled" for unknown in one.unknowns):
                continue
            if not isinstance(one, WaveOperator):
                raise BadInput(f"{one.label} acts on no wave, and has an unknown on the object's pixels; leave it out.")
            if subpixel == "bilinear":
                raise BadInput(f"{one.label} is not interpolated between pixels; use positions.subpixel: fourier.")
        energies = next(
            (Placed.of(one, geometry, dtype, device) for one in optics if isinstance(one, ScanEnergies)), None
        )
        mirrors = [one for one in optics if isinstance(one, MirrorPiece)]
        planes = max(slices.count, *(one.modes for one in optics if isinstance(one, ObjectModes)), 1)
        if mirrors and max(planes, len(mirrors)) > 1:
            raise BadInput(
                f"{mirrors[0].label} is a mirror behind an object of one slice and one mode; use object.slices: 1, "
                "object.modes: 1 and a single mirror."
            )
        mirror = Placed.of(mirrors[0], geometry, dtype, device) if mirrors else None
        model = cls(
            subpixel, fidelity, kernel, operators=operators, detector=detector, energies=energies, mirror=mirror
        )
        return model.spaced(geometry, slices.spacing_m, slices.tilt_rad, dtype, device) if slices.count > 1 else model

    def spaced(
        self, geometry: Geometry, spacing_m: float, tilt_rad: Pair, dtype: torch.dtype, device: torch.device | str
    ) -> Model:
        """Return the same model with another distance and tilt of the slices.

        Args:
            geometry: window, pixel sizes and wavelength.
            spacing_m: distance between slices.
            tilt_rad: tilt (y, x) of the axis along which slices are stacked.
            dtype: complex dtype of the waves.
            device: where kernels are kept.

        Raises:
            BadInput: the geometry has no wavelength or pixel size.
        """
        shape, optics = geometry.shape, geometry.pixel_and_wavelength("Propagation through slices")
        kernel = angular_spectrum_kernel(shape, *optics, spacing_m, tilt_rad).to(device, dtype)
        rate = phase_rate(shape, *optics, tilt_rad).to(device, kernel.real.dtype)
        y, x = (r.to(device, kernel.real.dtype) for r in tilt_rates(shape, optics[0], spacing_m, tilt_rad))
        return replace(
            self,
            slice_kernel=kernel,
            slice_rate=rate,
            slice_spacing_m=spacing_m,
            tilt_rates=(y, x),
            tilt_rad=tilt_rad,
        )

    @property
    def pieces(self) -> tuple[Placed[Any], ...]:
        """Operators, energies, mirror and pieces of the detector: all that may have unknowns or ask for views."""
        further_pieces = [one for one in (self.energies, self.mirror) if one is not None]
        return (*self.operators, *further_pieces, *self.detector)

    @property
    def saturation(self) -> Saturation | None:
        """Counts from which on the detector counts no further; None if no piece of it says so."""
        return next((found for one in self.detector if (found := one.operator.saturation) is not None), None)

    @property
    def binning(self) -> int:
        """Number of the model's pixels along a side of one of the detector's."""
        return binning_of(placed.operator for placed in self.detector)

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """Unknowns that the pieces add to those that are solved for."""
        return tuple(unknown for placed in self.pieces for unknown in placed.operator.unknowns)

    @property
    def tiled(self) -> tuple[Unknown, ...]:
        """Unknowns of the pieces that are distributed as the object is."""
        return tuple(one for one in self.unknowns if one.scope == "tiled")

    @property
    def replaced(self) -> frozenset[str]:
        """Names of the unknowns that operators' unknowns replace, so that no engine moves them."""
        return frozenset[str]().union(*(placed.operator.replaces for placed in self.pieces))

    def axes(self, window: tuple[int, int]) -> dict[str, int]:
        """Return the lengths of axes that only unknowns of the pieces have, by name; window is (h, w)."""
        return {name: n for placed in self.pieces for name, n in placed.operator.axes(window).items()}

    @property
    def sizes(self) -> dict[str, float]:
        """Size of a change that matters, by name of the pieces' unknowns, in their units."""
        sizes = {name: size for placed in self.pieces for name, size in placed.sizes.items()}
        over = self.slice_spacing_m or 1.0
        return sizes | {name: size / over for placed in self._between for name, size in placed.sizes.items()}

    @property
    def fan_out(self) -> int:
        """Number of waves on the detector that the operators make of each mode of the probe."""
        return fan_out_of(placed.operator for placed in self.operators)

    @property
    def unknowns_of_copies(self) -> frozenset[str]:
        """Names of the unknowns of operators that make several waves of each."""
        several = [placed.operator for placed in self.operators if placed.operator.fan_out > 1]
        return frozenset(one.name for operator in several for one in operator.unknowns)

    @property
    def object_modes(self) -> int:
        """Number of incoherent modes of the object, Q."""
        return next((one.operator.modes for one in self.operators if isinstance(one.operator, ObjectModes)), 1)

    @property
    def reach(self) -> int:
        """Pixels by which a view may reach beyond its window at the anchor, on each side."""
        return reach_of(self.subpixel)

    # --- forward ---

    def probes(self, probe: Tensor, fractions: Tensor, weights: Tensor, opr: Tensor | None = None) -> Tensor:
        """Return the probe of each view, P_jm, (B, M, h, w).

        Args:
            probe: (M, h, w) complex.
            fractions: (B, 2) sub-pixel parts of the positions, in pixels.
            weights: (B, 1 + K), of the probe and of the OPR modes.
            opr: (K, h, w) complex, variable-probe modes.
        """
        fourier = self.subpixel == "fourier"
        modes = (fft(probe) if fourier else probe) * weights[:, :1, None, None]
        if opr is not None and len(opr):
            # Added one by one: a matrix product rounds a view's sum differently when the view is alone.
            first = modes[:, 0]
            for share, mode in zip(weights[:, 1:].unbind(1), fft(opr) if fourier else opr, strict=True):
                first = first + share[:, None, None] * mode
            modes = torch.cat((first[:, None], modes[:, 1:]), dim=1)
        return ifft(times(modes, window_shifts.ramps(fractions, _window(probe))[:, None])) if fourier else modes

    def windows(self, obj: Tensor, anchors: Tensor, fractions: Tensor, window: tuple[int, int]) -> Tensor:
        """Return the windows O_jl, (B, L, h, w).

        Args:
            obj: (L, H, W) complex.
            anchors: (B, 2) int64, corners of the windows in object pixels.
            fractions: (B, 2) sub-pixel parts of the positions; used by `bilinear` alone.
            window: (h, w).
        """
        if self.subpixel == "bilinear":
            return window_shifts.cut_bilinear(obj, anchors, fractions, window)
        return window_shifts.cut(obj, anchors, window)

    def forward(self, windows: Tensor, probes: Tensor, values: Values = NOTHING) -> Intermediates:
        """Propagate the probes through operators and all slices.

        Args:
            windows: (B, L, h, w) complex.
            probes: (B, M, h, w) complex.
            values: unknowns of the operators, by name.
        """
        if self.energies is not None:
            piece = self.energies.operator
            windows, derivative = piece.powers(windows, **views_for(piece, "powers", values))
            return replace(replace(self, energies=None).forward(windows, probes, values), derivative=derivative)
        windows = self._of_passes(windows)
        incoming = [apply_operators(self.operators, "probe", probes, values)]
        last = windows.shape[1] // self.object_modes - 1
        for index in range(last):
            incoming.append(self.to_next(self.pass_slice(incoming[-1], windows, index), values))
        exit_waves = self.pass_slice(incoming[-1], windows, last)
        if not self.operators:
            return Intermediates(windows, tuple(incoming), exit_waves)
        return Intermediates(
            windows, tuple(incoming), apply_operators(self.operators, "exit", exit_waves, values), probes, values
        )

    def detect(self, exit_waves: Tensor, fractions: Tensor) -> Tensor:
        """Propagate exit waves (B, M, h, w) to the detector: Psi = D psi; fractions are (B, 2)."""
        if self.kernel is None:
            return fft(exit_waves)
        return apply_kernel(exit_waves, self._near_field(fractions))

    def intensity(
        self,
        obj: Tensor,
        probe: Tensor,
        anchors: Tensor,
        fractions: Tensor,
        weights: Tensor | None = None,
        background: Tensor | None = None,
        opr: Tensor | None = None,
        values: Values = NOTHING,
    ) -> Tensor:
        """Return the modelled intensities I_j, (B, h, w).

        Args:
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            anchors: (B, 2) int64, corners of the windows in object pixels.
            fractions: (B, 2) sub-pixel parts of the positions, in pixels.
            weights: (B, 1 + K), of the probe and of the OPR modes; None for 1 and no OPR modes.
            background: (h, w) or (B, h, w) intensity; None for zero.
            opr: (K, h, w) complex, variable-probe modes.
            values: unknowns of the operators, by name.
        """
        if weights is None:
            weights = fractions.new_ones((len(fractions), 1))
        windows = self.windows(obj, anchors, fractions, _window(probe))
        intermediates = self.forward(windows, self.probes(probe, fractions, weights, opr), values)
        S = self.signal(power(self.detect(intermediates.exit, fractions)), values)
        return S + self.counts_without_light(S.new_zeros(()) if background is None else background, values)

    def detector_slopes(
        self, S: Tensor, data: Data, values: Values, loss_derivatives: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return slope and norm of each view, (B, ...) float64, by the unknowns of the detector's pieces.

        Pixels without light say of added counts what all others do, as these need no light.

        Args:
            S: (B, h, w) real, intensities before the pieces.
            data: counts and background.
            values: unknowns of the pieces, by name.
            loss_derivatives: returns dL/dI (B, h, w) at a signal behind the pieces, and half of the second derivative
                there.
        """
        slopes: dict[str, tuple[Tensor, Tensor]] = {}
        signal, on_light = self.signal(S, values), self.on_light
        adding = tuple(one for one in self.detector if one not in on_light)
        if on_light:
            slopes |= Response(on_light, values).slopes(S, *loss_derivatives(signal))
        if adding:
            slopes |= Response(adding, values).slopes(S, *loss_derivatives(raised_signals(signal, data)))
        return slopes

    @property
    def on_light(self) -> tuple[Placed[DetectorPiece], ...]:
        """The pieces of the detector that act on light."""
        return tuple(one for one in self.detector if not one.operator.adds_counts)

    def response(self, values: Values) -> Response | None:
        """Return the pieces that act on light with the values of their unknowns; None without any."""
        pieces = self.on_light
        return Response(pieces, values) if pieces else None

    def signal(self, S: Tensor, values: Values) -> Tensor:
        """Return what the detector makes of intensities S (B, h, w), without counts that are there without light."""
        response = self.response(values)
        return S if response is None else response.signal(S)

    def counts_without_light(self, background: Tensor, values: Values) -> Tensor:
        """Return the background with the counts that pieces add, b (h, w); itself where none does.

        Args:
            background: (h, w) counts, or 0-d.
            values: unknowns of the pieces, by name.
        """
        for one in self.detector:
            if one.operator.adds_counts:
                background = background + one.operator.added(values, one.tables)
        return background

    # --- adjoint ---

    def detect_adjoint(self, detected: Tensor, fractions: Tensor) -> Tensor:
        """Propagate waves on the detector (B, M, h, w) back to the exit by D^H; fractions are (B, 2)."""
        if self.kernel is None:
            return ifft(detected)
        return apply_kernel_adjoint(detected, self._near_field(fractions))

    def forward_adjoint(self, intermediates: Intermediates, chi: Tensor) -> tuple[Tensor, Tensor]:
        """Propagate chi (B, M, h, w) at the exit back through all slices and operators.

        Returns:
            sum_m conj(phi_lm) chi_lm at each slice's window, (B, L, h, w); and the wave at the probes, (B, M, h, w).
        """
        to_windows: list[Tensor] = []
        if self.operators:
            chi = apply_operator_adjoints(self.operators, "exit", chi, intermediates.values)
        for index in range(len(intermediates.incoming) - 1, -1, -1):
            to_windows.append(self._sum_over_probe_modes(times(intermediates.incoming[index].conj(), chi)))
            chi = self.pass_slice_back(chi, intermediates.windows, index)
            if index:
                chi = self.to_next_adjoint(chi, intermediates.values)
        if self.operators:
            chi = apply_operator_adjoints(self.operators, "probe", chi, intermediates.values)
        by_window = self._summed_over_passes(torch.stack(to_windows[::-1], dim=2).flatten(1, 2))
        if intermediates.derivative is not None:
            by_window = times(intermediates.derivative.conj().resolve_conj(), by_window)
        return by_window, chi

    def pass_slice(self, waves: Tensor, windows: Tensor, index: int) -> Tensor:
        """Return waves times the windows of one slice, each with that of its object mode.

        Args:
            waves: (B, M, h, w) complex, of Q object modes (B, M Q, h, w).
            windows: (B, Q L, h, w) complex.
            index: of the slice.
        """
        modes = self.object_modes
        if modes == 1:
            return times(waves, windows[:, index, None])
        of_slice = windows.unflatten(1, (modes, -1))[:, None, :, index]
        return times(waves.unflatten(1, (-1, modes)), of_slice).flatten(1, 2)

    def pass_slice_back(self, waves: Tensor, windows: Tensor, index: int) -> Tensor:
        """Return waves times the conjugate windows of one slice: the adjoint of `pass_slice`.

        Args:
            waves: (B, M, h, w) complex, of Q object modes (B, M Q, h, w).
            windows: (B, Q L, h, w) complex.
            index: of the slice.
        """
        modes = self.object_modes
        if modes == 1:
            return times(windows[:, index, None].conj(), waves)
        of_slice = windows.unflatten(1, (modes, -1))[:, None, :, index].conj()
        return times(of_slice, waves.unflatten(1, (-1, modes))).flatten(1, 2)

    def illumination(self, intermediates: Intermediates) -> Tensor:
        """Return the power of the waves that enter each plane of the object, (B, Q L, h, w).

        It is the weight of a change of the object: where windows are powers of it, times that of their derivative. In
        two passes a change of the object acts twice, and the two may add up, so that the weight is twice their power.
        """
        light_of_slices = [
            self._sum_over_probe_modes(w.real.square() + w.imag.square()) for w in intermediates.incoming
        ]
        light, derivative = torch.stack(light_of_slices, dim=2).flatten(1, 2), intermediates.derivative
        if self.mirror is not None:
            light = 2 * self._summed_over_passes(light)
        return light if derivative is None else light * (derivative.real.square() + derivative.imag.square())

    def first_slice_power(self, windows: Tensor) -> Tensor:
        """Return |O_1|^2 of the first slice, the mean over object modes, (B, h, w).

        Args:
            windows: (B, Q L, h, w) complex.
        """
        modes = self.object_modes
        return power(windows[:, :1]) if modes == 1 else power(windows.unflatten(1, (modes, -1))[:, :, 0]) / modes

    def _sum_over_probe_modes(self, terms: Tensor) -> Tensor:
        """Return the sums of terms (B, M Q, h, w) for each object mode, (B, Q, h, w)."""
        modes = self.object_modes
        return terms.sum(1, keepdim=True) if modes == 1 else sum_in_order(terms.unflatten(1, (-1, modes)), 1)

    def operator_slopes(self, intermediates: Intermediates, chi: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return Re <d psi / d theta, chi> and ||d psi / d theta||^2 of each view, by name of the operators' unknowns.

        The second is taken where the operator ends, which the object changes little; the changes by operators between
        slices are taken to add up. chi is (B, M, h, w) at the exit.
        """
        values = intermediates.values
        exit_waves = self.pass_slice(intermediates.incoming[-1], intermediates.windows, len(intermediates.incoming) - 1)
        pairs = dict(slopes(self.operators, "exit", exit_waves, values, chi))
        chi = apply_operator_adjoints(self.operators, "exit", chi, values)
        for index in range(len(intermediates.incoming) - 1, -1, -1):
            chi = self.pass_slice_back(chi, intermediates.windows, index)
            if index:
                incoming = self.pass_slice(intermediates.incoming[index - 1], intermediates.windows, index - 1)
                between = slopes(self._between, "between", self._propagate(incoming), values, chi)
                pairs |= {name: _add_changes(pair, pairs.get(name)) for name, pair in between}
                chi = self.to_next_adjoint(chi, values)
        assert intermediates.probes is not None, "made by a model with operators"
        return pairs | dict(slopes(self.operators, "probe", intermediates.probes, values, chi))

    def weights_adjoint(self, to_probes: Tensor, probe: Tensor, fractions: Tensor, opr: Tensor | None = None) -> Tensor:
        """Return <dP_j/dw_jk, to_probes_j>, (B, 1 + K): for w_j0 over all modes, for w_jk over the first.

        Args:
            to_probes: (B, M, h, w) complex, waves taken back to the probes.
            probe: (M, h, w) complex.
            fractions: (B, 2) sub-pixel parts of the positions, in pixels.
            opr: (K, h, w) complex, variable-probe modes.
        """
        ones = fractions.new_ones((len(fractions), 1))
        parts = [over_few(over_window(overlap(self.probes(probe, fractions, ones), to_probes)))]
        for mode in opr if opr is not None else ():
            parts.append(over_window(overlap(self.probes(mode[None], fractions, ones)[:, 0], to_probes[:, 0])))
        return torch.stack(parts, dim=1).to(fractions.dtype)

    def unshifted_terms(self, waves: Tensor, fractions: Tensor, weights: Tensor) -> Tensor:
        """Return the terms (B, M, h, w) whose sum over views `unshifted` turns into sum_j w_j T_{-f_j} waves_j.

        With w_j0 and all modes that is the adjoint of `probes` in the probe, with w_jk and the first mode in V_k.

        Args:
            waves: (B, M, h, w) complex, at the probes.
            fractions: (B, 2) sub-pixel parts of the positions, in pixels.
            weights: (B,), w_j.
        """
        weighted = waves * weights[:, None, None, None]
        if self.subpixel != "fourier":
            return weighted
        return times(fft(weighted), window_shifts.ramps(fractions, _window(waves)).conj()[:, None])

    def unshifted(self, total: Tensor) -> Tensor:
        """Return the sum of `unshifted_terms` (M, h, w) as a probe."""
        return ifft(total) if self.subpixel == "fourier" and len(total) else total

    def placed(self, windows: Tensor, anchors: Tensor, fractions: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `views.add_back` adds for the adjoint of `windows`.

        Args:
            windows: (B, L, h, w) complex.
            anchors: (B, 2) int64, corners of the windows in object pixels.
            fractions: (B, 2) sub-pixel parts of the positions, in pixels.

        Returns:
            Windows (B, L, h', w'), and the object pixels (B, 2) under their corners.
        """
        if self.subpixel == "bilinear":
            return window_shifts.spread_bilinear(windows, anchors, fractions)
        return windows, anchors

    def position_derivative(
        self, obj: Tensor, anchors: Tensor, fractions: Tensor, intermediates: Intermediates, axis: int
    ) -> Tensor:
        """Return d psi / d p_a at the exit of the last slice, (B, M, h, w), per pixel.

        `fourier`: -S_j O . d_a P_j; `bilinear`: P_j . d(S_j O)/d f_a. In the near field with `fourier` the image
        moves back with the probe, which adds D^H dD/df psi = d_a psi, so that the sum acts on the detector as the move
        does.

        Args:
            obj: (L, H, W) complex.
            anchors: (B, 2) int64, corners of the windows in object pixels.
            fractions: (B, 2) sub-pixel parts of the positions, in pixels.
            intermediates: windows and waves of the chunk.
            axis: 0 for y, 1 for x.

        Raises:
            BadInput: `subpixel` is `none`, so that intensities do not depend on fractions.
        """
        if self.subpixel == "none":
            raise BadInput("Positions cannot be refined with subpixel 'none'; use 'fourier' or 'bilinear'.")
        if self.subpixel == "bilinear":
            moved = window_shifts.cut_bilinear_derivative(obj, anchors, fractions, _window(intermediates.exit), axis)
            return self.exit_change(intermediates, None, moved)
        probes = intermediates.probes if self.operators else intermediates.incoming[0]
        assert probes is not None, "made by a model with operators"
        derivative = self.exit_change(intermediates, -window_shifts.derivative(probes, axis), None)
        return derivative if self.kernel is None else derivative + window_shifts.derivative(intermediates.exit, axis)

    def exit_change(self, intermediates: Intermediates, probes: Tensor | None, windows: Tensor | None) -> Tensor:
        """Return the first-order change (B, M, h, w) of the exit waves for changes of probes and windows.

        Args:
            intermediates: windows and waves of the chunk.
            probes: (B, M, h, w) complex, change of the views' probes; None for zero.
            windows: (B, L, h, w) complex, change of the windows; None for zero.
        """
        if windows is not None and intermediates.derivative is not None:
            windows = times(intermediates.derivative, windows)
        windows = None if windows is None else self._of_passes(windows)
        d_incoming = torch.zeros_like(intermediates.incoming[0]) if probes is None else probes
        if self.operators and probes is not None:
            d_incoming = apply_operators(self.operators, "probe", probes, intermediates.values)
        last = len(intermediates.incoming) - 1
        for index, incoming in enumerate(intermediates.incoming):
            d_exit = self.pass_slice(d_incoming, intermediates.windows, index)
            if windows is not None:
                d_exit = d_exit + self.pass_slice(incoming, windows, index)
            d_incoming = d_exit if index == last else self.to_next(d_exit, intermediates.values)
        return self._through_exit_operators(d_incoming, intermediates)

    def gap_rates(self, name: str) -> Tensor:
        """Return the derivative (n, h, w) by an unknown of the gaps of the transfer function's phase between slices.

        Args:
            name: "slice_spacing", relative change of the distance, n = 1; or "tilt", rad along y and x, n = 2.
        """
        assert self.slice_rate is not None and self.tilt_rates is not None, "several slices need a slice kernel"
        if name == "slice_spacing":
            return self.slice_rate[None] * self.slice_spacing_m
        return torch.stack([rate.expand_as(self.slice_rate) for rate in self.tilt_rates])

    def gap_derivative(self, intermediates: Intermediates, rate: Tensor) -> Tensor:
        """Return d psi / d x at the exit of the last slice, (B, M, h, w), for an unknown x of the gaps between slices.

        Each gap adds F^H [i rate F phi] to the wave phi that comes out of it (inside its band).

        Args:
            intermediates: windows and waves of the chunk.
            rate: (h, w) real, derivative of the transfer function's phase by x.
        """
        changed = torch.zeros_like(intermediates.incoming[0])
        for index, incoming in enumerate(intermediates.incoming[1:]):
            carried = self.to_next(self.pass_slice(changed, intermediates.windows, index), intermediates.values)
            changed = carried + apply_kernel(incoming, 1j * rate)
        last = len(intermediates.incoming) - 1
        return self._through_exit_operators(self.pass_slice(changed, intermediates.windows, last), intermediates)

    def _through_exit_operators(self, change: Tensor, intermediates: Intermediates) -> Tensor:
        """Carry a change of the wave behind the last slice through the operators at the exit."""
        return apply_operators(self.operators, "exit", change, intermediates.values) if self.operators else change

    def _of_passes(self, windows: Tensor) -> Tensor:
        """Return windows (B, L, h, w) of the object for each pass of the waves, (B, 2, h, w) with a mirror."""
        return windows if self.mirror is None or windows.shape[1] == 2 else windows.repeat(1, 2, 1, 1)

    def _summed_over_passes(self, terms: Tensor) -> Tensor:
        """Return terms at the windows of all passes as those at the object, the adjoint of `_of_passes`."""
        return terms if self.mirror is None else terms[:, :1] + terms[:, 1:]

    def to_next(self, waves: Tensor, values: Values = NOTHING) -> Tensor:
        """Propagate waves (..., h, w) from behind a slice to the next one, or to the mirror and back.

        Args:
            waves: (..., h, w) complex; with operators between slices (B, M, h, w).
            values: unknowns of these operators, by name.
        """
        return apply_operators(self._between, "between", self._propagate(waves), values)

    def to_next_adjoint(self, waves: Tensor, values: Values = NOTHING) -> Tensor:
        """Propagate waves from a slice back to the one before: the adjoint of `to_next`.

        Args:
            waves: (..., h, w) complex; with operators between slices (B, M, h, w).
            values: unknowns of these operators, by name.
        """
        waves = apply_operator_adjoints(self._between, "between", waves, values)
        return apply_kernel_adjoint(waves, self._kernel_to_next)

    def _propagate(self, waves: Tensor) -> Tensor:
        """Propagate waves (..., h, w) from behind a slice to the next one, through vacuum."""
        return apply_kernel(waves, self._kernel_to_next)

    @property
    def _between(self) -> tuple[Placed[WaveOperator], ...]:
        """Operators between slices, whose last table is the distance of these."""
        return tuple(
            replace(one, tables=(*one.tables, torch.tensor(self.slice_spacing_m, dtype=torch.float64)))
            for one in self.operators
            if one.operator.at == "between"
        )

    @property
    def _kernel_to_next(self) -> Tensor:
        """Transfer function (h, w) from behind a slice to the next one."""
        kernel = self.slice_kernel if self.mirror is None else self.mirror.tables[0]
        assert kernel is not None, "several slices need a slice kernel"
        return kernel

    def _near_field(self, fractions: Tensor) -> Tensor:
        """Return the near-field transfer function, with the ramps that undo the probes' shifts in `fourier` mode."""
        assert self.kernel is not None
        if self.subpixel != "fourier":
            return self.kernel
        return times(self.kernel, window_shifts.ramps(fractions, _window(self.kernel)).conj())[:, None]


def power(waves: Tensor) -> Tensor:
    """Return S = sum_m |Psi_m|^2: (B, M, h, w) -> (B, h, w)."""
    return (waves.real.square() + waves.imag.square()).sum(1)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return Re <a_j, b_j> of each view: two stacks of waves (B, ..., h, w) -> (B,) float64."""
    # No matrix product, which rounds a view's sum differently when the view is alone.
    a, b = (torch.view_as_real(t.resolve_conj()).flatten(-2) for t in (a, b))
    return over_few(over_window(a * b).flatten(1))


def _add_changes(pair: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Return slope and norm of the sum of two changes: slopes add up, and norms at most as lengths do."""
    return pair if before is None else (pair[0] + before[0], (pair[1].sqrt() + before[1].sqrt()).square())


def _window(waves: Tensor) -> tuple[int, int]:
    return waves.shape[-2], waves.shape[-1]
