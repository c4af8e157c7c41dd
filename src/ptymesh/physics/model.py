"""The forward model of a chunk of views, and its adjoint.

B, M, L     views of the chunk, modes, slices
O_jl        S_j O_l, window of slice l             (B, L, h, w)
P_jm        T_{f_j}(w_j0 P_m), to m = 0 adds sum_k w_jk V_k: probe of view j (B, M, h, w)
V_k         variable-probe (OPR) modes (Odstrcil et al., Opt. Express 24, 8360, 2016)
phi_l       wave that enters slice l: phi_1 = P_j, phi_{l+1} = H (phi_l . O_jl)
psi         exit wave phi_L . O_jL;   Psi = D psi on the detector;   I = sum_m |Psi_m|^2 + b

Pieces with unknowns of their own (operators.py) may stand between the shifted probe and the first slice, and behind the
last one; P_j and psi are what comes out of them.

D: far field F, or near field F^H K F; with Fourier sub-pixel positions the near field carries exp(+2 pi i k.f_j),
which takes back on the detector the shift that the probe was given. H: angular spectrum over the slice spacing
(Maiden, Humphry & Rodenburg 2012), times exp(i z (K_y tan t_y + K_x tan t_x)) for slices stacked along a tilted axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.estimate import REACH
from ptymesh.geometry import Geometry
from ptymesh.physics import views
from ptymesh.physics.elementwise import over_few, over_window, overlap, times
from ptymesh.physics.fidelity import Fidelity
from ptymesh.physics.operators import NOTHING, Placed, Values, WaveOperator, back_through, slopes, through
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
)
from ptymesh.unknowns import Unknown

Subpixel = Literal["fourier", "bilinear", "none"]


def reach_of(subpixel: Subpixel) -> int:
    """Pixels that views may reach beyond their windows: only where pixels are interpolated."""
    return REACH if subpixel == "bilinear" else 0


@dataclass(frozen=True)
class Intermediates:
    """What a chunk of views sees: windows (B, L, h, w), incoming waves, one (B, M, h, w) per slice, and exit waves.

    probes: shifted ones before the model's operators, where it has any; values: of these operators' unknowns.
    """

    windows: Tensor
    incoming: tuple[Tensor, ...]
    exit: Tensor
    probes: Tensor | None = None
    values: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """How an object and a probe become intensities.

    Fields:
        subpixel: how fractions of positions act.
        fidelity: which loss the step of `exit_wave_update` belongs to.
        kernel: near-field transfer function (h, w) from sample to detector; None in the far field.
        slice_kernel: transfer function (h, w) between slices; None for a single slice.
        slice_rate: phase of that function per metre (h, w); slice_spacing_m: the metres.
        tilt_rates: phase of that function per radian of tilt along y (h, 1) and x (1, w); tilt_rad: the tilt (y, x).
        operators: pieces with unknowns of their own, in their order.
    """

    subpixel: Subpixel = "fourier"
    fidelity: Fidelity = "amplitude"
    kernel: Tensor | None = None
    slice_kernel: Tensor | None = None
    slice_rate: Tensor | None = None
    slice_spacing_m: float = 0.0
    tilt_rates: tuple[Tensor, Tensor] | None = None
    tilt_rad: Pair = (0.0, 0.0)
    operators: tuple[Placed, ...] = ()

    @classmethod
    def for_geometry(
        cls,
        geometry: Geometry,
        *,
        subpixel: Subpixel = "fourier",
        fidelity: Fidelity = "amplitude",
        slices: int = 1,
        slice_spacing_m: float = 0.0,
        tilt_rad: Pair = (0.0, 0.0),
        optics: Sequence[WaveOperator] = (),
        dtype: torch.dtype = torch.complex64,
        device: torch.device | str = "cpu",
    ) -> Model:
        """Model of this geometry; kernels are computed in double precision and cast to `dtype`.

        Raises BadInput where a kernel needs a wavelength or pixel size that the geometry does not know.
        """
        kernel = None
        if geometry.propagation != "far_field":
            make = angular_spectrum_kernel if geometry.propagation == "angular_spectrum" else fresnel_kernel
            kernel = make(geometry.shape, *_optics(geometry), geometry.effective_distance_m).to(device, dtype)
        placed = tuple(Placed.of(one, geometry, dtype, device) for one in optics)
        model = cls(subpixel, fidelity, kernel, operators=placed)
        return model.spaced(geometry, slice_spacing_m, tilt_rad, dtype, device) if slices > 1 else model

    def spaced(
        self, geometry: Geometry, spacing_m: float, tilt_rad: Pair, dtype: torch.dtype, device: torch.device | str
    ) -> Model:
        """The same model with slices `spacing_m` apart along an axis tilted by `tilt_rad` (y, x)."""
        shape, optics = geometry.shape, _optics(geometry)
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
    def unknowns(self) -> tuple[Unknown, ...]:
        """What the operators add to what is solved for."""
        return tuple(unknown for placed in self.operators for unknown in placed.operator.unknowns)

    @property
    def replaced(self) -> frozenset[str]:
        """Unknowns whose part the operators' own take, so that no engine moves them."""
        return frozenset[str]().union(*(placed.operator.replaces for placed in self.operators))

    def axes(self, window: tuple[int, int]) -> dict[str, int]:
        """How long the axes are that only unknowns of the operators have."""
        return {name: n for placed in self.operators for name, n in placed.operator.axes(window).items()}

    @property
    def sizes(self) -> dict[str, float]:
        """How large a change of each of these matters, in its unit."""
        return {name: size for placed in self.operators for name, size in placed.sizes.items()}

    @property
    def reach(self) -> int:
        """Pixels that a view may reach beyond its window at the anchor, on each side."""
        return reach_of(self.subpixel)

    # --- forward ---

    def probes(self, probe: Tensor, fractions: Tensor, weights: Tensor, opr: Tensor | None = None) -> Tensor:
        """P_jm: probe (M, h, w), fractions (B, 2), weights (B, 1 + K), opr (K, h, w) -> (B, M, h, w)."""
        fourier = self.subpixel == "fourier"
        modes = (fft(probe) if fourier else probe) * weights[:, :1, None, None]
        if opr is not None and len(opr):
            # one after the other: a matrix product rounds a view's sum differently when the view is alone
            first = modes[:, 0]
            for share, mode in zip(weights[:, 1:].unbind(1), fft(opr) if fourier else opr, strict=True):
                first = first + share[:, None, None] * mode
            modes = torch.cat((first[:, None], modes[:, 1:]), dim=1)
        return ifft(times(modes, views.ramps(fractions, _window(probe))[:, None])) if fourier else modes

    def windows(self, obj: Tensor, anchors: Tensor, fractions: Tensor, window: tuple[int, int]) -> Tensor:
        """O_jl: object (L, H, W) -> (B, L, h, w)."""
        if self.subpixel == "bilinear":
            return views.cut_bilinear(obj, anchors, fractions, window)
        return views.cut(obj, anchors, window)

    def forward(self, windows: Tensor, probes: Tensor, values: Values = NOTHING) -> Intermediates:
        """Waves through all slices; values: of the operators' unknowns."""
        incoming = [through(self.operators, "probe", probes, values)]
        for window in windows.unbind(1)[:-1]:
            incoming.append(self.to_next(times(incoming[-1], window[:, None])))
        behind = times(incoming[-1], windows[:, -1, None])
        if not self.operators:
            return Intermediates(windows, tuple(incoming), behind)
        return Intermediates(windows, tuple(incoming), through(self.operators, "exit", behind, values), probes, values)

    def detect(self, exit_waves: Tensor, fractions: Tensor) -> Tensor:
        """Psi = D psi, (B, M, h, w)."""
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
        """I_j, (B, h, w), of object (L, H, W), probe (M, h, w); anchors and fractions (B, 2), weights (B, 1 + K)."""
        if weights is None:
            weights = fractions.new_ones((len(fractions), 1))
        windows = self.windows(obj, anchors, fractions, _window(probe))
        intermediates = self.forward(windows, self.probes(probe, fractions, weights, opr), values)
        S = power(self.detect(intermediates.exit, fractions))
        return S if background is None else S + background

    # --- adjoint ---

    def detect_adjoint(self, detected: Tensor, fractions: Tensor) -> Tensor:
        """D^H Psi, (B, M, h, w)."""
        if self.kernel is None:
            return ifft(detected)
        return apply_kernel_adjoint(detected, self._near_field(fractions))

    def forward_adjoint(self, intermediates: Intermediates, chi: Tensor) -> tuple[Tensor, Tensor]:
        """From chi on the exit waves to windows, sum_m conj(phi_lm) chi_lm (B, L, h, w), and probes (B, M, h, w)."""
        to_windows: list[Tensor] = []
        if self.operators:
            chi = back_through(self.operators, "exit", chi, intermediates.values)
        for index in range(len(intermediates.incoming) - 1, -1, -1):
            to_windows.append(times(intermediates.incoming[index].conj(), chi).sum(1))
            chi = times(intermediates.windows[:, index, None].conj(), chi)
            if index:
                chi = self.to_next_adjoint(chi)
        if self.operators:
            chi = back_through(self.operators, "probe", chi, intermediates.values)
        return torch.stack(to_windows[::-1], dim=1), chi

    def operator_slopes(self, intermediates: Intermediates, chi: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Of the operators' unknowns by name, Re <d psi / d theta, chi> and ||d psi / d theta||^2 of each view.

        chi (B, M, h, w) at the exit. The second is taken where the operator ends, which the object changes little.
        """
        values = intermediates.values
        behind = times(intermediates.incoming[-1], intermediates.windows[:, -1, None])
        found = dict(slopes(self.operators, "exit", behind, values, chi))
        chi = back_through(self.operators, "exit", chi, values)
        for index in range(len(intermediates.incoming) - 1, -1, -1):
            chi = times(intermediates.windows[:, index, None].conj(), chi)
            if index:
                chi = self.to_next_adjoint(chi)
        assert intermediates.probes is not None, "made by a model with operators"
        return found | dict(slopes(self.operators, "probe", intermediates.probes, values, chi))

    def weights_adjoint(self, to_probes: Tensor, probe: Tensor, fractions: Tensor, opr: Tensor | None = None) -> Tensor:
        """<dP_j/dw_jk, to_probes_j>, (B, 1 + K): for w_j0 over all modes, for w_jk over the first."""
        ones = fractions.new_ones((len(fractions), 1))
        parts = [over_few(over_window(overlap(self.probes(probe, fractions, ones), to_probes)))]
        for mode in opr if opr is not None else ():
            parts.append(over_window(overlap(self.probes(mode[None], fractions, ones)[:, 0], to_probes[:, 0])))
        return torch.stack(parts, dim=1).to(fractions.dtype)

    def unshifted_terms(self, waves: Tensor, fractions: Tensor, weights: Tensor) -> Tensor:
        """Terms (B, M, h, w) whose sum over views `unshifted` makes sum_j w_j T_{-f_j} waves_j; weights (B,).

        With w_j0 and all modes that is the adjoint of `probes` in the probe, with w_jk and the first mode in V_k.
        """
        weighted = waves * weights[:, None, None, None]
        if self.subpixel != "fourier":
            return weighted
        return times(fft(weighted), views.ramps(fractions, _window(waves)).conj()[:, None])

    def unshifted(self, total: Tensor) -> Tensor:
        """The sum of `unshifted_terms` (M, h, w) as a probe."""
        return ifft(total) if self.subpixel == "fourier" and len(total) else total

    def placed(self, windows: Tensor, anchors: Tensor, fractions: Tensor) -> tuple[Tensor, Tensor]:
        """What `views.add_back` adds for the adjoint of `windows`, (B, L, h', w'), and the object pixels (B, 2) under
        its corners."""
        if self.subpixel == "bilinear":
            return views.spread_bilinear(windows, anchors, fractions)
        return windows, anchors

    def position_derivative(
        self, obj: Tensor, anchors: Tensor, fractions: Tensor, intermediates: Intermediates, axis: int
    ) -> Tensor:
        """d psi / d p_a at the exit of the last slice, (B, M, h, w).

        `fourier`: -S_j O . d_a P_j; `bilinear`: P_j . d(S_j O)/d f_a. In the near field with `fourier` the image
        moves back with the probe, which adds D^H dD/df psi = d_a psi; the two together are what the detector sees.
        Raises BadInput for `none`, whose intensities do not depend on fractions.
        """
        if self.subpixel == "none":
            raise BadInput("Positions cannot be refined with subpixel 'none'; use 'fourier' or 'bilinear'.")
        if self.subpixel == "bilinear":
            moved = views.cut_bilinear_derivative(obj, anchors, fractions, _window(intermediates.exit), axis)
            return self.exit_change(intermediates, None, moved)
        probes = intermediates.probes if self.operators else intermediates.incoming[0]
        assert probes is not None, "made by a model with operators"
        derivative = self.exit_change(intermediates, -views.derivative(probes, axis), None)
        return derivative if self.kernel is None else derivative + views.derivative(intermediates.exit, axis)

    def exit_change(self, intermediates: Intermediates, probes: Tensor | None, windows: Tensor | None) -> Tensor:
        """First-order change (B, M, h, w) of exit waves for changes of probes (B, M, h, w) and windows (B, L, h, w)."""
        d_incoming = torch.zeros_like(intermediates.incoming[0]) if probes is None else probes
        if self.operators and probes is not None:
            d_incoming = through(self.operators, "probe", probes, intermediates.values)
        last = len(intermediates.incoming) - 1
        for index, incoming in enumerate(intermediates.incoming):
            d_exit = times(d_incoming, intermediates.windows[:, index, None])
            if windows is not None:
                d_exit = d_exit + times(incoming, windows[:, index, None])
            d_incoming = d_exit if index == last else self.to_next(d_exit)
        return self._behind(d_incoming, intermediates)

    def gap_rates(self, name: str) -> Tensor:
        """How fast the phase of the transfer function between slices changes: "slice_spacing", by the fraction by which
        their distance does, (1, h, w); "tilt", per radian along y and x, (2, h, w)."""
        assert self.slice_rate is not None and self.tilt_rates is not None, "several slices need a slice kernel"
        if name == "slice_spacing":
            return self.slice_rate[None] * self.slice_spacing_m
        return torch.stack([rate.expand_as(self.slice_rate) for rate in self.tilt_rates])

    def gap_derivative(self, intermediates: Intermediates, rate: Tensor) -> Tensor:
        """d psi / d x at the exit of the last slice, (B, M, h, w), of an unknown x by which that phase changes at this
        rate (h, w): each gap adds F^H [i rate F phi] to the wave phi that comes out of it (inside its band)."""
        changed = torch.zeros_like(intermediates.incoming[0])
        for index, incoming in enumerate(intermediates.incoming[1:]):
            carried = self.to_next(times(changed, intermediates.windows[:, index, None]))
            changed = carried + apply_kernel(incoming, 1j * rate)
        return self._behind(times(changed, intermediates.windows[:, -1, None]), intermediates)

    def _behind(self, change: Tensor, intermediates: Intermediates) -> Tensor:
        """What a change of the wave behind the last slice is at the exit."""
        return through(self.operators, "exit", change, intermediates.values) if self.operators else change

    def to_next(self, waves: Tensor) -> Tensor:
        """Waves that leave a slice, (..., h, w), where they enter the next one."""
        assert self.slice_kernel is not None, "several slices need a slice kernel"
        return apply_kernel(waves, self.slice_kernel)

    def to_next_adjoint(self, waves: Tensor) -> Tensor:
        """The adjoint of `to_next`."""
        assert self.slice_kernel is not None, "several slices need a slice kernel"
        return apply_kernel_adjoint(waves, self.slice_kernel)

    def _near_field(self, fractions: Tensor) -> Tensor:
        assert self.kernel is not None
        if self.subpixel != "fourier":
            return self.kernel
        return times(self.kernel, views.ramps(fractions, _window(self.kernel)).conj())[:, None]


def power(waves: Tensor) -> Tensor:
    """S = sum_m |Psi_m|^2: (B, M, h, w) -> (B, h, w)."""
    return (waves.real.square() + waves.imag.square()).sum(1)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Re <a_j, b_j> of each view: two stacks of waves (B, ..., h, w) -> (B,) float64."""
    # not by a matrix product, which rounds a view's sum differently when the view is alone
    a, b = (torch.view_as_real(t.resolve_conj()).flatten(-2) for t in (a, b))
    return over_few(over_window(a * b).flatten(1))


def _window(waves: Tensor) -> tuple[int, int]:
    return waves.shape[-2], waves.shape[-1]


def _optics(geometry: Geometry) -> tuple[tuple[float, float], float]:
    if geometry.object_pixel_m is None or geometry.wavelength_m is None:
        raise BadInput(
            "Propagation through slices or to a near-field detector needs the wavelength and the pixel size, "
            "which this data set does not have; give data.wavelength_m (or energy_eV) and the pixel sizes."
        )
    return geometry.object_pixel_m, geometry.wavelength_m
