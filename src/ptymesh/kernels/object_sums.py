"""The object's sums of a batch on a CPU: windows of views wait to be added until somebody reads the sums.

sums = sum_j S_j^H sum_m conj(P_jm) chi_jm, weight = sum_j S_j^H sum_m |P_jm|^2. An engine that asks for nothing but
target += times sums / ((1 - blend) weight + blend max weight) gets it without them: it is worked out row by row in a
core's cache, the weight first, for its maximum. To write, add to and read the sums of a batch that is spread over a
large object takes longer, for those sums fit no cache.

L, H, W   slices, object pixels;  h, w  window pixels;  k  views that wait, one for each slice
"""

from __future__ import annotations

from operator import is_not
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.kernels import compiled_object
from ptymesh.kernels.arguments import bands_of_rows, constants_of, numpy_dtype
from ptymesh.kernels.waiting import pays
from ptymesh.physics.blocks import Leaf, Quotient

if TYPE_CHECKING:
    from ptymesh.distributed.windows import SharedWindows
    from ptymesh.kernels.kept import Arrays, Rooms
    from ptymesh.physics.backend import Adjoints, Backend

Array = np.ndarray[Any, Any]
#: Numbers that a band keeps of what it has added to, in a line of the cache of its own.
TOPS = 16
_NONE_STALE = np.zeros((0, 0), np.uint8)


class ObjectSums:
    """Sums over a batch of one array and its weight, made as late as can be.

    Args:
        into: sums of a batch, whose object has an array; `found`: fields (L, H, W) that are to hold them.
        blocks: rows and columns (n,) of those blocks of the arrays that are to be cleared first.
        backend: who clears and narrows.
        arrays, room: what stays from batch to batch.
    """

    def __init__(
        self,
        into: Adjoints,
        blocks: tuple[Tensor, Tensor] | None,
        found: tuple[Tensor, Tensor] | None,
        backend: Backend,
        arrays: Arrays,
        room: Rooms,
    ) -> None:
        assert into.object is not None and into.object_weight is not None
        self.sums, self.found = (into.object, into.object_weight), found
        self._parts, self._shifts = into.parts, into.shifts.numpy()
        self._backend, self._arrays, self._room = backend, arrays, room
        #: Blocks of the batch; those that are to be cleared before anything is added.
        self._batch = self._blocks = blocks
        #: These may wait, if they come in one chunk; None: none may, as other ranks add to the sums, or read them.
        self._views = into.views
        #: Where windows wait that other ranks add, too.
        self._shared: SharedWindows | None = into.windows
        self._stale: Array = _NONE_STALE
        #: Of rows, whoever adds to the object: the number of threads may be another one by then.
        self.bands = bands_of_rows()
        self._tops = np.zeros((self.bands, TOPS))
        self.knows_top = len(into.object_weight) == into.parts
        self._waiting, self._looked, self._narrow = 0, False, False

    # --- the arrays ---

    def open(self) -> tuple[Array, ...]:
        """For kernels that add to the object: stale blocks, sums and weight (parts, L H, W), tops of the weight."""
        self._narrow = False
        if self._blocks is not None:
            rows, columns = self._blocks
            self._blocks = None
            fields, height, width = self.sums[0].shape
            if fields > self._parts or height < 2 * self.bands * BLOCK:  # bands must not share a block
                self._backend.clear(*self.sums, rows, columns)
            else:  # each when it is first added to, as it is in the cache then
                self._stale = np.zeros((height // BLOCK, width // BLOCK), np.uint8)
                self._stale[rows.numpy(), columns.numpy()] = 1
        named = zip(("object sum", "object weight"), self.sums, strict=True)
        shape = self._parts, -1, self.sums[0].shape[2]  # slices lie one below the other
        sums, weight = (self._arrays(name, field).reshape(shape) for name, field in named)
        return self._stale, sums, weight, self._tops

    def complete(self) -> None:
        """Whoever reads the arrays finds the sums."""
        self.flush()
        self.open()
        if len(self._stale):
            if self._stale.view(bool).any():  # of numbers, numpy takes ten times longer
                self._backend.clear(*self.sums, *map(torch.from_numpy, self._stale.nonzero()))
            self._stale = _NONE_STALE

    def settle(self) -> None:
        """Whoever reads what is found finds the sums."""
        if self._narrow and not self._waiting:
            return
        self.complete()
        if self.found is not None and self._batch is not None:
            self._backend.narrow(self.sums, *self._batch, self.found)
        self._narrow = True

    def tops(self, of: Tensor) -> Tensor | None:
        """Numbers of which the largest is that of the weight, where kernels have looked for it; None of the sums."""
        if not self.knows_top or self.found is None or of is not self.found[1]:
            return None
        if self._blocks is None:
            self.flush()
        else:
            self._weigh()
        return torch.from_numpy(self._tops).to(of.dtype)

    # --- views that wait ---

    def expect(
        self, views: int, panel: int, window: tuple[int, int], dtype: torch.dtype, lights: int, may_wait: bool
    ) -> bool:
        """So many views come, panel by panel, with windows of this dtype; lights: 1 where all have the same light, or
        as many as there are views.

        Returns whether they are to wait until the sums are read; if not, each panel is to be added before the next one.
        Those that wait already are added.
        """
        self._kinds = dtype, dtype.to_real()
        if self._shared:
            return True
        self.flush()
        wait = may_wait and self._worthwhile(views, views * window[0] * window[1], lights > 1)
        self._shapes = views if wait else panel, lights, window
        return wait

    def _worthwhile(self, views: int, pixels: int, with_light: bool) -> bool:
        """Whether it pays to wait with so many views, that have so many pixels together; and a light each, or none."""
        if self._blocks is None or self._views != views:
            return False
        return pays(pixels, self._kinds[0], with_light, len(self._blocks[0]))

    def next(self, corners: Array, amplitudes: Array, between: Array | None = None) -> tuple[Array, Array]:
        """Room for windows (k, h, w) and light (1 or k, h, w) of views at these corners (k, 2) in slices that lie one
        below the other; between: weights of the next pixel, down and right, (k, 2)."""
        if self._shared:
            windows, light, *numbers = self._shared.own(self._waiting, len(corners))
            for room, values in zip(numbers, (corners, 0 if between is None else between, amplitudes), strict=True):
                room[...] = values
            self._waiting += len(corners)
            return windows, light
        if not self._waiting:
            self._make_room()
        some = slice(self._waiting, self._waiting + len(corners))
        self._corners[some], self._amplitudes[some] = corners, amplitudes
        self._between[some] = 0 if between is None else between
        self._waiting, self._looked = some.stop, False
        return self._windows[some], self._light if len(self._light) == 1 else self._light[some]

    def _make_room(self) -> None:
        (views, lights, window), (wave, light) = self._shapes, self._kinds
        self._windows = self._room("windows", views, window, wave)
        self._light = self._room("lights", min(lights, views), window, light)
        self._corners, self._amplitudes = np.empty((views, 2), np.int64), np.empty(views, numpy_dtype(light))
        self._between = np.zeros((views, 2), numpy_dtype(light))

    def gather(self) -> None:
        """Those of other ranks wait, too."""
        if self._shared:
            found = self._shared.all()
            self._windows, self._light, self._corners, self._between, self._amplitudes = found
            self._waiting, self._looked, self._shared = len(self._windows), False, None
            self._kinds = (
                torch.from_numpy(self._windows[:0]).dtype,
                torch.from_numpy(self._light[:0]).dtype,
            )

    def flush(self) -> None:
        """Adds the views that wait."""
        if self._waiting:
            windows, light, corners, amplitudes = self._given()
            given = (windows, light, corners, self._between[: self._waiting], amplitudes, self._shifts)
            constants = constants_of(self._kinds[1], 1.0)
            compiled_object.add_windows(*given, self.bands, constants, *self.open())
            self._waiting = 0

    def divide(self, target: Tensor, quotient: Quotient, rows: Tensor, columns: Tensor) -> bool:
        """Adds the quotient of the sums to the only slice of `target`, on the batch's blocks; False, and nothing done,
        where it is of something else, or the sums are read instead."""
        change, weight = quotient.change, quotient.weight
        if not (isinstance(change, Leaf) and isinstance(weight, Leaf) and self._waiting and self._blocks is not None):
            return False
        if self.found is None:
            return False
        given = (change.array, weight.array, rows, columns)
        known = (*self.found, *self._blocks)
        alike = target.dtype == self.found[0].dtype and target.shape == self.found[0].shape
        if any(map(is_not, given, known)) or not alike or not target.is_contiguous() or target.is_conj():
            return False
        factor, summand = quotient.divisor
        numbers = np.array([quotient.times, factor, float(summand)], numpy_dtype(self._kinds[1]))
        self._weigh()
        windows, _, corners, _ = self._given()
        by_column, constants = corners[:, 1].argsort(kind="stable"), constants_of(self._kinds[1], 1.0)
        found, into = self._arrays("object weight found", self.found[1])[0], self._arrays("object", target)[0]
        room = self._room("rows", self.bands, (self._parts, 1, into.shape[1]), torch.complex128)
        compiled_object.divide_windows(windows, corners, by_column, self._shifts, numbers, constants, found, into, room)
        return True

    def _weigh(self) -> None:
        """What is found holds the weight of those that wait, and tops are known."""
        if self._looked or not self._waiting or self.found is None:
            return
        _, light, corners, amplitudes = self._given()
        given = (light, corners, amplitudes, self._windows.shape[1], corners[:, 1].argsort(kind="stable"))
        weights = self._room("weights", self.bands, (self._parts, 1, self.found[1].shape[-1]), torch.float64)
        out = self._arrays("object weight found", self.found[1])[0]
        compiled_object.weigh_windows(*given, self._shifts, out, weights, self._tops)
        self._looked = True

    def _given(self) -> tuple[Array, ...]:
        k = self._waiting
        return self._windows[:k], self._light[:k], self._corners[:k], self._amplitudes[:k]
