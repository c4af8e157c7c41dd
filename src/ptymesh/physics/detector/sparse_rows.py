"""Sparse matrices of a few entries a row, whose sums are in an order of their own on any device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor


class Rows(NamedTuple):
    """Sparse matrix whose n rows have at most K entries.

    Attributes:
        columns: (K, n) int64.
        entries: (K, n) float64, 0 where a row has fewer.
    """

    columns: Tensor
    entries: Tensor

    @classmethod
    def of_matrix(cls, matrix: scipy.sparse.csr_array, device: torch.device) -> Rows:
        """Return the rows of a matrix (n, m)."""
        counts = np.diff(matrix.indptr)
        row = np.repeat(np.arange(matrix.shape[0]), counts)
        place = np.arange(matrix.nnz) - matrix.indptr[row]
        columns = np.zeros((int(counts.max()), matrix.shape[0]), dtype=np.int64)
        entries = np.zeros(columns.shape)
        columns[place, row], entries[place, row] = matrix.indices, matrix.data
        return cls(torch.from_numpy(columns).to(device), torch.from_numpy(entries).to(device))

    def applied(self, S: Tensor) -> Tensor:
        """Return the matrix times each image of S (..., h, w), in S's precision; n is h w."""
        images = S.reshape(-1, S.shape[-2] * S.shape[-1]).to(torch.float64)
        result = torch.zeros_like(images)
        for columns, entries in zip(self.columns, self.entries, strict=True):
            result += entries * images[:, columns]
        return result.to(S.dtype).reshape(S.shape)

    def gathered(self, waves: Tensor) -> Tensor:
        """Return the matrix times waves (..., m), (..., n), in their own precision."""
        gathered_waves = waves.new_zeros(*waves.shape[:-1], self.columns.shape[1])
        for columns, entries in zip(self.columns, self.entries, strict=True):
            gathered_waves += entries.to(waves.real.dtype) * waves[..., columns]
        return gathered_waves
