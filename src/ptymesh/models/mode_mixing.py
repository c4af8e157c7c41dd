"""Modes that mix anew in each view: a beam whose state differs from view to view, as by vibrations or a pump.

P_jn       modes of the probe at view j
W_j        (R, M) complex, the view's own mixture of the modes;  R  waves of each view, its rank

    psi_jr = sum_m W_jrm P_jm,     I_j = sum_r |D(psi_jr O)|^2 + b

With W_j = 1 this is the model of incoherent modes; with R = 1 each view has one coherent wave, as with OPR modes whose
shares are complex. A rotation of the modes, P -> U P, and W -> W U^H change no pattern: where a constraint makes modes
orthogonal, W follows. `dm_rank` of CDTools is R.
"""

from __future__ import annotations

from functools import reduce
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.physics.elementwise import over_window, times
from ptymesh.physics.operators import Place, Tables, Values, WaveOperator
from ptymesh.unknowns import Unknown


class ModeMixing(WaveOperator):
    """A mixture of the probe's modes for each view (`mixing`), refined if a stage has `unknowns: {mixing: true}`.

    It starts with the first modes, unmixed.
    """

    name: ClassVar[str] = "mode_mixing"
    at: ClassVar[Place] = "probe"
    mixes_modes: ClassVar[bool] = True
    for_own_probes: ClassVar[bool] = False
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("mixing", ("N", "waves", "M"), "view", complex=True, largest=1e4),
    )

    rank: int = Field(
        1, ge=1, le=1000, description="waves of each view, no more than `probe.modes`; each is a mixture of all modes"
    )

    def axes(self, window: tuple[int, int]) -> dict[str, int]:
        """Return the number of waves; window is not used."""
        return {"waves": self.rank}

    def starts(self, sizes: dict[str, int], device: torch.device | str, real: torch.dtype) -> dict[str, Tensor]:
        """Return the mixtures (N, R, M) in which wave r is mode r.

        Args:
            sizes: lengths of the axes, by name.
            device: where the array is kept.
            real: real dtype of the model.

        Raises:
            BadInput: there are fewer modes than waves.
        """
        views, modes = sizes["N"], sizes["M"]
        if self.rank > modes:
            raise BadInput(
                f"optics.mode_mixing.rank is {self.rank}, and the probe has {modes} modes; give at most so many, or "
                f"probe: {{modes: {self.rank}}}."
            )
        one = torch.eye(self.rank, modes, dtype=real.to_complex(), device=device)
        return {"mixing": one.repeat(views, 1, 1)}

    def rotate_modes(self, values: dict[str, Tensor], rotation: Tensor) -> None:
        """Change the mixtures to W U^H, which undoes a rotation of the modes.

        Args:
            values: unknowns of all operators by name, changed in place.
            rotation: U (M, M) complex128.
        """
        mixing = values["mixing"]
        columns = mixing.to(rotation.dtype).unbind(2)
        turned = [reduce(torch.add, map(times, columns, row.conj().unbind())) for row in rotation.resolve_conj()]
        mixing.copy_(torch.stack(turned, dim=2))

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return sum_m W_rm psi_m, (B, R, h, w).

        Args:
            psi: (B, M, h, w) complex.
            values: `mixing` (B, R, M) complex.
            tables: none.
        """
        return _mixed(psi, values["mixing"])

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return sum_r conj(W_rm) psi_r, (B, M, h, w).

        Args:
            psi: (B, R, h, w) complex.
            values: `mixing` (B, R, M) complex.
            tables: none.
        """
        return _mixed(psi, values["mixing"].transpose(1, 2).conj().resolve_conj())

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return sum conj(psi_m) back_r, (B, R, M) complex, and sum |psi_m|^2, (B, R, M).

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: `mixing` (B, R, M) complex.
            tables: none.
            back: (B, R, h, w) complex, wave taken back to where it ends.
        """
        products = times(psi.conj().resolve_conj()[:, None], back[:, :, None])
        along = torch.complex(over_window(products.real), over_window(products.imag))
        light = over_window(psi.real.square() + psi.imag.square())
        return {"mixing": (along, light[:, None].expand_as(along))}


def _mixed(waves: Tensor, mixing: Tensor) -> Tensor:
    """Return sum_n W_bmn waves_bn: (B, n, h, w) and (B, m, n) -> (B, m, h, w); terms are added one by one."""
    terms = times(mixing[:, :, :, None, None], waves[:, None])
    return reduce(torch.add, terms.unbind(2)).contiguous()
