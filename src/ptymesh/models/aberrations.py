"""Parametrisation of the probe by a lens's aberrations, in Krivanek's notation.

a, phi    angle and azimuth of a far-field pixel
chi       = (2 pi / lambda) sum_nm a^(n+1) (C_nma cos(m phi) + C_nmb sin(m phi)) / (n + 1)
P         = F^H exp(-i chi) F P_0     (Kirkland, Advanced Computing in Electron Microscopy, ch. 2-3)

Only differences of the coefficients act on the probe, so that its aperture, its modes and all else stay as they are.
If the probe did not start from aberrations, the coefficients count from that start.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self, TypeGuard

import numpy as np
import torch
from pydantic import BeforeValidator, Field, field_validator, model_validator
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.models.base import JUDGE, Parametrisation
from ptymesh.physics.beam.haider import krivanek_name
from ptymesh.physics.beam.probes import aberration_phases
from ptymesh.physics.elementwise import over_window, times
from ptymesh.physics.propagate import fft, ifft
from ptymesh.sentences import quote
from ptymesh.units import ANGLE, LENGTH, read_quantity

#: Number of fits of the phase between two probes, each to the phase that the one before has left, within a turn.
PHASE_FITS = 10


def _by_krivanek(values: Any) -> Any:
    """Return aberrations with Krivanek's names and coefficients for Haider's, and numbers for texts with a unit.

    Raises:
        ValueError: one is named in both notations, a unit is of another quantity, or a value is no number or pair.
    """
    if not isinstance(values, dict):
        return values
    by_name: dict[object, object] = {}
    names_given: dict[str, str] = {}
    for name, value in values.items():
        krivanek, factor = krivanek_name(name) if isinstance(name, str) else (name, 1)
        if krivanek in names_given:
            raise ValueError(f"{names_given[krivanek]} and {name} are the same aberration; give one of them")
        names_given[krivanek] = name
        given_pair = isinstance(value, list | tuple)
        size, *angle = value if given_pair and value else (value,)
        quantities = [read_quantity(name, size, LENGTH), *(read_quantity(name, one, ANGLE) for one in angle)]
        numbers = [one for one in quantities if _is_number(one)]
        if not len(numbers) == len(quantities) == 1 + given_pair:
            raise ValueError(f"{name} is {quote(value)}; give metres, or [metres, angle in rad]")
        numbers[0] *= factor
        by_name[krivanek] = numbers if given_pair else numbers[0]
    return by_name


def _is_number(value: object) -> TypeGuard[float]:
    """Return True for a number that is no boolean, and finite also where Haider's factor multiplies it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max / 10


_Finite = Annotated[float, Field(allow_inf_nan=False)]
#: Aberrations by their names, in metres; of m > 0 with an angle in rad. Haider's names become Krivanek's.
LensAberrations = Annotated[dict[str, _Finite | tuple[_Finite, _Finite]], BeforeValidator(_by_krivanek)]


class Aberrations(Parametrisation):
    """Aberrations C_nm of the probe's lens, in metres; of m > 0 both parts, as in C12a cos(2 phi) + C12b sin(2 phi)."""

    name: ClassVar[str] = "aberrations"
    of: ClassVar[Literal["probe", "positions"]] = "probe"

    terms: list[str] = Field(
        ["C10", "C12", "C21", "C30"],
        min_length=1,
        max_length=20,
        description="which are refined, in Krivanek's notation (C10 = -defocus) or Haider's (C1), which becomes "
        "Krivanek's",
    )
    judge: bool = JUDGE
    residue: bool = Field(False, description="whether the engine refines the probe's pixels, too")

    @field_validator("terms")
    @classmethod
    def _rename(cls, terms: list[str]) -> list[str]:
        return [krivanek_name(term)[0] for term in terms]

    @field_validator("terms")
    @classmethod
    def _refuse_unknown(cls, terms: list[str]) -> list[str]:
        if len(set(terms)) < len(terms):
            raise ValueError(f"terms names an aberration twice: {', '.join(terms)}; name each once")
        try:
            aberration_phases((8, 8), (1.0, 1.0), 1.0, terms)
        except BadInput as error:
            raise ValueError(str(error)) from error
        return terms

    @model_validator(mode="after")
    def _refuse_moving_pixels(self) -> Self:
        for key in ("widths", "judge"):
            if self.residue and getattr(self, key):
                raise ValueError(f"{key} is of numbers by which alone the probe moves; leave residue out, or {key}")
        return self

    @property
    def is_judged(self) -> bool:
        """True if each term is put back where it does not help."""
        return self.judge and self.moves_alone

    def without(self, terms: Collection[str]) -> Self | None:
        """Return the same with the other terms, None if there is none."""
        terms_left = [term for term in self.terms if term not in terms]
        return self.model_copy(update={"terms": terms_left}) if terms_left else None

    @classmethod
    def read_widths(cls, widths: dict[str, object]) -> dict[str, object]:
        """Return widths by Krivanek's names, in metres. Raises ValueError where one is no length."""
        by_name: dict[str, object] = _by_krivanek(widths)
        return by_name

    @classmethod
    def term_of(cls, number: str) -> str:
        """Return the aberration of which this is one or the other part: C12 of C12a."""
        return number.rstrip("ab")

    @property
    def moves_alone(self) -> bool:
        """True unless the engine refines the probe's pixels, too."""
        return not self.residue

    def units(self) -> dict[str, str]:
        """Return the names of the coefficients, in metres."""
        return dict.fromkeys(aberration_phases((8, 8), (1.0, 1.0), 1.0, self.terms), "m")

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry has what aberrations need.

        Raises:
            BadInput: the wavelength or the object pixel is unknown.
        """
        geometry.pixel_and_wavelength("models.aberrations")

    def directions(self, geometry: Geometry, estimate: Estimate) -> Tensor:
        """Return J_k = -i F^H (chi_k - its mean over the light) F P, (n, M, h, w) complex128."""
        spectrum, chi = fft(estimate.probe.to(torch.complex128)), self._phases(geometry, estimate.probe)
        light = (spectrum.real.square() + spectrum.imag.square()).sum(0)
        mean = over_window(chi * light) / over_window(light)
        turned = (chi - mean[:, None, None])[:, None] * spectrum
        return ifft(torch.complex(turned.imag, -turned.real))

    def moved(self, geometry: Geometry, estimate: Estimate, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Return F^H exp(-i sum_k (after - before)_k chi_k) F x.

        Args:
            geometry: of the measurement.
            estimate: not used.
            x: (M, h, w) complex, the probe with coefficients `before`.
            before: (n,) float64 on the host, m.
            after: (n,) float64 on the host, m.
        """
        change = (after - before).to(x.device)[:, None, None]
        angle = -(change * self._phases(geometry, x)).sum(0)
        return ifft(times(fft(x.to(torch.complex128)), torch.polar(torch.ones_like(angle), angle))).to(x.dtype)

    def read(self, geometry: Geometry, reference: Tensor, x: Tensor, change: Tensor) -> Tensor:
        """Return the change of the coefficients that explains the phase between the first modes' far fields.

        It is the least-squares fit over the light that both have, sum_k |P_0 P| (arg(P conj P_0) + chi)^2, with a phase
        and a shift of the whole probe free; it starts from the steps' own change, so that no phase is off by a turn.

        Args:
            geometry: of the measurement.
            reference: (1, h, w) complex, first mode at the start of the stage.
            x: (M, h, w) complex, the probe now.
            change: (n,) float64 on the host, change by the steps of the coefficients alone, m.
        """
        # By numpy, in one thread: torch splits a single transform between threads, and rounds by their number.
        before, now = (np.fft.fft2(wave[0].cpu().numpy().astype(np.complex128)) for wave in (reference, x))
        between = now * before.conj()
        share = np.abs(between) / np.abs(between).sum()
        terms = torch.cat((self._phases(geometry, x), self._free_phases(geometry, x))).cpu().numpy()
        terms = terms.reshape(len(terms), -1)
        size = np.sqrt((terms**2 * share.ravel()).sum(1))
        terms = terms / size[:, None]
        gram = np.array([[(one * other * share.ravel()).sum() for other in terms] for one in terms])
        coefficients = np.concatenate((change.numpy(), np.zeros(len(terms) - len(change)))) * size
        for _ in range(PHASE_FITS):
            chi = sum(number * term for number, term in zip(coefficients, terms, strict=True)).reshape(between.shape)
            phase_left = np.angle(between * np.exp(1j * chi)) * share
            coefficients = coefficients - np.linalg.lstsq(gram, (terms * phase_left.ravel()).sum(1), rcond=None)[0]
        return torch.from_numpy((coefficients / size)[: len(change)])

    def _free_phases(self, geometry: Geometry, like: Tensor) -> Tensor:
        """Return phases of the probe that no pattern determines, (3, h, w) float64: two shifts and a constant."""
        assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None, "checked"
        window = like.shape[-2], like.shape[-1]
        shifts = aberration_phases(window, geometry.object_pixel_m, geometry.wavelength_m, ["C01"])
        free = [*shifts.values(), torch.ones(window, dtype=torch.float64)]
        return torch.stack(free).to(like.device)

    def _phases(self, geometry: Geometry, like: Tensor) -> Tensor:
        """Return chi_k per metre, (n, h, w) float64."""
        assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None, "checked"
        window = like.shape[-2], like.shape[-1]
        phases = aberration_phases(window, geometry.object_pixel_m, geometry.wavelength_m, self.terms)
        return torch.stack(list(phases.values())).to(like.device)
