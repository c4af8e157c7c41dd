"""The fastest that a batch could be: its Fourier transforms on a CPU, its memory traffic on a GPU.

A view-mode is one mode of one view. What a sweep cannot do without, per view-mode of h x w pixels in single precision:

CPU     a forward and an inverse FFT, timed with torch in chunks of the size that suits the cache best
GPU     96 h w bytes at the bandwidth of a copy on the device: a wave of 8 bytes a pixel, six times read and six times
        written

Both count once in the far field; Fourier sub-pixel positions shift the probe and its gradient, which doubles them; a
near-field detector needs a second pair of transforms too. In double precision bytes and arithmetic are timed as such.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

#: View-modes in one call of the FFT that are tried on a CPU.
CHUNKS = tuple(2**n for n in range(10))
#: Seconds for which a chunk size is timed, and those of one sample beside an epoch.
TRY_S, SAMPLE_S = 0.06, 0.1
#: Bytes per pixel and view-mode that a GPU must move, single precision.
BYTES_PER_PIXEL = 96
#: Bytes of the array that is copied to learn a GPU's bandwidth (if it has room), more than any cache holds.
COPY_BYTES = 1 << 30


def pairs(propagation: str, subpixel: str) -> int:
    """Pairs of transforms per view-mode."""
    return 1 + (propagation != "far_field") + (subpixel == "fourier")


@dataclass
class Floor:
    """View-modes per second of one pair of transforms.

    Args:
        window: (h, w).
        device: decides how it is measured.
        dtype: complex64 or complex128.
        chunks: view-modes per call that are tried (CPU).

    `tried` holds what each of them gave, `chunk` the best; `sample` measures once more.
    """

    window: tuple[int, int]
    device: torch.device
    dtype: torch.dtype = torch.complex64
    chunks: tuple[int, ...] = CHUNKS
    tried: dict[int, float] = field(default_factory=dict)
    chunk: int = 0

    def __post_init__(self) -> None:
        if self.device.type == "cuda":
            return
        self.tried = {chunk: self._transforms(chunk, TRY_S) for chunk in self.chunks}
        self.chunk = max(self.tried, key=lambda chunk: self.tried[chunk])

    def sample(self) -> float:
        """View-modes per second of one pair of transforms (the bytes of one sweep), as the machine is now."""
        if self.device.type == "cuda":
            size = self.dtype.itemsize / torch.complex64.itemsize
            return self.bandwidth() / (BYTES_PER_PIXEL * size * self.window[0] * self.window[1])
        return self._transforms(self.chunk, SAMPLE_S)

    def bandwidth(self) -> float:
        """Bytes per second, read and written, of copies on the device."""
        size = min(COPY_BYTES, torch.cuda.mem_get_info(self.device)[0] // 4)
        source = torch.empty(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        target.copy_(source)
        torch.cuda.synchronize(self.device)
        began, copies = time.perf_counter(), 20
        for _ in range(copies):
            target.copy_(source)
        torch.cuda.synchronize(self.device)
        return 2 * size * copies / (time.perf_counter() - began)

    def _transforms(self, chunk: int, seconds: float) -> float:
        waves = torch.randn(chunk, *self.window, dtype=self.dtype)
        there, back = torch.empty_like(waves), torch.empty_like(waves)
        began, done = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds or not done:
            torch.fft.fft2(waves, norm="ortho", out=there)
            torch.fft.ifft2(there, norm="ortho", out=back)
            done += chunk
        return done / elapsed
