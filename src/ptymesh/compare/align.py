"""Alignment of two complex images of the same sample, which removes the ambiguities of ptychography.

H, W    pixels of the common canvas

The model is  b(r) = c exp(i k.r) a(r - s):  c complex (scale and global phase), k a phase ramp (rad per pixel), s a
shift (pixels). Shifts are exact in Fourier space, T_s a = F^-1 [exp(-2 pi i q.s) F a].

Starting values come from the products of neighbouring pixels, d = a(r + 1) conj(a(r)), in which the global phase
vanishes and the ramp is a constant factor: their cross-correlation peaks at the shift, however steep the ramp. All four
parameters are then refined together by Gauss-Newton steps on the squared difference over the region.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft
from skimage.registration import phase_cross_correlation

from ptymesh.errors import BadInput

#: Pixels over which the unilluminated part of an object fades to its mean.
FADE = 8.0


@dataclass(frozen=True)
class Alignment:
    """Transformation of one image onto another.

    Attributes:
        aligned: (H, W) complex, the moving image in the frame of the reference.
        reference: (H, W) complex, the reference, padded at its far edges where the moving image is larger.
        region: (H, W) bool, pixels that were compared.
        shift: (y, x) pixels by which the moving image was shifted.
        ramp: (y, x) rad per pixel of the phase ramp by which it was multiplied.
        factor: complex scale by which it was multiplied.
        nrmse: ||aligned - reference|| / ||reference|| over the region.
        ramp_before: the part of the ramp that was applied before the shift; the rest was applied after it.
    """

    aligned: np.ndarray
    reference: np.ndarray
    region: np.ndarray
    shift: tuple[float, float]
    ramp: tuple[float, float]
    factor: complex
    nrmse: float
    ramp_before: tuple[float, float]

    def apply(self, image: np.ndarray) -> np.ndarray:
        """Return another image (H, W) in the frame of the moving one after shift and ramp, without the factor."""
        moving = _padded(image, self.aligned.shape)
        return _moved(moving, np.array(self.shift), np.array(self.ramp), np.array(self.ramp_before))


def align(
    moving: np.ndarray,
    reference: np.ndarray,
    region: np.ndarray | None = None,
    moving_region: np.ndarray | None = None,
    start: tuple[float, float] | None = None,
    names: tuple[str, str] = ("aligned image", "reference"),
) -> Alignment:
    """Align an image with a reference in global phase, scale, linear phase ramp and sub-pixel shift.

    Args:
        moving: (H, W) complex or real, the image that is moved.
        reference: (H, W) complex or real, what it is moved onto; its shape may differ.
        region: bool, of the reference's shape: the pixels that count. None: all.
        moving_region: bool, of the moving image's shape: its pixels that count. None: all.
        start: (y, x) pixels, a shift to try beside those found from the images.
        names: of both, for messages.

    Raises:
        BadInput: an image has no finite, non-zero pixel to compare.
    """
    shape = tuple(np.maximum(moving.shape, reference.shape))
    a, b = _padded(moving, shape), _padded(reference, shape)
    inside = _mask(region, reference.shape, shape)
    inside_moving = _mask(moving_region, moving.shape, shape)
    for name, image, mask in zip(names, (a, b), (inside_moving, inside), strict=True):
        if not np.isfinite(image).all() or not np.abs(image[mask]).any():
            raise BadInput(f"The {name} is zero, not finite or outside the region; there is nothing to compare.")
    candidates = _starts(a, b, inside, inside_moving, start)
    shift, ramp, _ = max((_coarse(a, b, inside, inside_moving, shift) for shift in candidates), key=lambda c: c[2])
    common = inside & _moved_mask(inside_moving, shift)
    # A Fourier shift rings at discontinuities: at the canvas's border if a ramp is not periodic there, and at the edge
    # of the illuminated area. The ramp can be applied after the shift, before it, or after the unilluminated part was
    # smoothed over and the object flattened; the best fit of the three is taken.
    fits = [_refined(a, b, common, shift, ramp, np.zeros(2)), _refined(a, b, common, shift, ramp, None)]
    images = [a, a]
    if not common.all():
        smoothed, flattening = _smoothed_over(a, np.roll(common, -np.rint(shift).astype(int), axis=(0, 1)))
        fits.append(_refined(smoothed, b, common, shift, ramp, flattening))
        images.append(smoothed)
    best = int(np.argmin([fit[3] for fit in fits]))
    shift, ramp, before, _ = fits[best]
    image = _moved(images[best], shift, ramp, before)
    factor = complex(np.vdot(image[common], b[common]) / np.vdot(image[common], image[common]))
    aligned = factor * image
    error = float(np.linalg.norm((aligned - b)[common]) / np.linalg.norm(b[common]))
    return Alignment(aligned, b, common, _pair(shift), _pair(ramp), factor, error, _pair(before))


def object_error(reconstructed: np.ndarray, truth: np.ndarray, region: np.ndarray | None = None) -> float:
    """Return the NRMSE of an object against the truth after `align`; several slices are aligned one by one.

    Args:
        reconstructed: (H, W) or (L, H, W) complex.
        truth: likewise; H and W may differ from the reconstructed object's, L may not.
        region: (H, W) bool in the frame of the truth, the pixels that count. None: all.

    Returns:
        sqrt(sum over slices of ||difference||^2 / sum of ||truth||^2) over the region.

    Raises:
        BadInput: the numbers of slices differ.
    """
    slices = [image if image.ndim == 3 else image[None] for image in (reconstructed, truth)]
    if len(slices[0]) != len(slices[1]):
        raise BadInput(f"The objects have {len(slices[0])} and {len(slices[1])} slices; compare their products.")
    difference = total = 0.0
    for a, b in zip(*slices, strict=True):
        alignment = align(a, b, region)
        norm = float(np.linalg.norm(alignment.reference[alignment.region]) ** 2)
        difference, total = difference + alignment.nrmse**2 * norm, total + norm
    return float(np.sqrt(difference / total))


def twin(image: np.ndarray) -> np.ndarray:
    """Return the twin O*(-r) of an image (..., H, W).

    It fits far-field patterns as well as the image does, if the scan is turned by 180 degrees.
    """
    return np.conj(image[..., ::-1, ::-1])


def _pair(values: np.ndarray) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def _padded(image: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the image as complex128, extended at the far edges with its border values."""
    grown = [(0, n - m) for n, m in zip(shape, image.shape, strict=True)]
    return np.pad(np.asarray(image, dtype=np.complex128), grown, mode="edge")


def _mask(mask: np.ndarray | None, own: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask of shape `own` on the canvas, False where the image was extended."""
    mask = np.ones(own, dtype=bool) if mask is None else mask
    if mask.shape != own:
        raise BadInput(f"The region has shape {mask.shape} and its image {own}; give one value per pixel.")
    return np.pad(mask, [(0, n - m) for n, m in zip(shape, own, strict=True)])


def _moved_mask(mask: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return `mask` moved by `shift`, without the pixels that a circular shift wraps around."""
    from scipy import ndimage  # imported here because it is slow, and most importers of this module do not need it

    moved = np.asarray(mask, dtype=np.float32)
    tolerant = np.where(np.abs(shift - np.rint(shift)) < 0.02, np.rint(shift), shift)
    return ndimage.shift(moved, tolerant, order=1, mode="constant", cval=0.0) > 0.999


def _frequencies(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return 2 pi q (rad per pixel) on both axes, broadcastable."""
    return 2 * np.pi * fft.fftfreq(shape[0])[:, None], 2 * np.pi * fft.fftfreq(shape[1])[None, :]


def _grid(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return pixel coordinates from the centre, broadcastable."""
    return np.arange(shape[0])[:, None] - shape[0] / 2, np.arange(shape[1])[None, :] - shape[1] / 2


def _ramp(shape: tuple[int, ...], slope: np.ndarray) -> np.ndarray:
    """Return exp(i slope.r)."""
    y, x = _grid(shape)
    return np.exp(1j * slope[0] * y) * np.exp(1j * slope[1] * x)


def _shift_factor(shape: tuple[int, ...], shift: np.ndarray) -> np.ndarray:
    """Return exp(-i q.shift)."""
    qy, qx = _frequencies(shape)
    return np.exp(-1j * shift[0] * qy) * np.exp(-1j * shift[1] * qx)


def _shifted(image: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return the image shifted by `shift` pixels."""
    return fft.ifft2(fft.fft2(image) * _shift_factor(image.shape, shift))


def _moved(image: np.ndarray, shift: np.ndarray, ramp: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return exp(i (ramp - before).r) T_shift [exp(i before.r) image]."""
    return _shifted(image * _ramp(image.shape, before), shift) * _ramp(image.shape, ramp - before)


def _smoothed_over(image: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the image with its unilluminated part smoothed over, and the ramp that flattens it.

    Outside of `seen`, values are the nearest illuminated one fading to the mean, so that a shift of the flat image
    rings little.
    """
    from scipy import ndimage

    flattening = -_peak_ramp(np.where(seen, image, 0))
    tilt = _ramp(image.shape, flattening)
    flat = image * tilt
    distance, nearest = ndimage.distance_transform_edt(~seen, return_indices=True)
    mean = flat[seen].mean()
    fading = np.exp(-((distance / FADE) ** 2))
    return np.where(seen, flat, mean + fading * (flat[tuple(nearest)] - mean)) * np.conj(tilt), flattening


def _neighbour_products(image: np.ndarray, mask: np.ndarray, axis: int) -> np.ndarray:
    """Return image(r + 1) conj(image(r)) along an axis, minus its mean, outliers limited, zero outside the mask."""
    product = np.roll(image, -1, axis) * np.conj(image)
    inside = mask & np.roll(mask, -1, axis)
    np.moveaxis(inside, axis, 0)[-1] = False  # the far edge has no neighbour
    if not inside.any():
        return np.zeros_like(product)
    size = np.abs(product)
    typical = np.median(size[inside])
    product = product / (size + (typical if typical > 0 else 1.0))
    contrast = np.where(inside, product - product[inside].mean(), 0)
    strength = np.abs(contrast)
    limit = 3 * np.median(strength[inside])
    return contrast / np.maximum(1, strength / limit) if limit > 0 else contrast


def _starts(
    a: np.ndarray, b: np.ndarray, inside: np.ndarray, inside_moving: np.ndarray, start: tuple[float, float] | None
) -> list[np.ndarray]:
    """Return whole-pixel shifts to try: none, the caller's, and the peak of the ramp-free correlation."""
    power = np.zeros(a.shape)
    for axis in (0, 1):
        da, db = _neighbour_products(a, inside_moving, axis), _neighbour_products(b, inside, axis)
        power += np.abs(fft.ifft2(fft.fft2(db) * np.conj(fft.fft2(da)))) ** 2
    peak = np.array(np.unravel_index(np.argmax(power), power.shape))
    size = np.array(a.shape)
    starts = [np.zeros(2), np.where(peak > size // 2, peak - size, peak).astype(float)]
    return starts if start is None else [*starts, np.rint(start)]


def _coarse(
    a: np.ndarray, b: np.ndarray, inside: np.ndarray, inside_moving: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return sub-pixel shift and ramp near a whole-pixel shift, and the correlation of the contrasts (0 to 1)."""
    # Both images are compared flat: without the reference's own ramp.
    flat_b = b * _ramp(b.shape, -_peak_ramp(np.where(inside, b, 0)))
    for last in (False, True):
        common = inside & _moved_mask(inside_moving, shift)
        if not common.any():
            return shift, np.zeros(2), 0.0
        moved = _shifted(a, shift)
        flat_a = moved * _ramp(a.shape, _peak_ramp(np.where(common, np.conj(moved) * flat_b, 0)))
        contrast = [np.where(common, image - image[common].mean(), 0) for image in (flat_b, flat_a)]
        if last or min(np.abs(image).max() for image in contrast) == 0:
            break
        step = phase_cross_correlation(*contrast, upsample_factor=20, normalization=None)[0]
        if np.abs(step).max() < 2:
            shift = shift + step
    ramp = _peak_ramp(np.where(common, np.conj(moved) * b, 0))
    return shift, ramp, _correlation(contrast[1][common], contrast[0][common], inside)


def _correlation(image: np.ndarray, target: np.ndarray, inside: np.ndarray) -> float:
    """Return |correlation|, reduced where less than a quarter of the region is common.

    Few pixels correlate by chance.
    """
    norms = np.linalg.norm(image) * np.linalg.norm(target)
    share = min(1.0, 4 * image.size / np.count_nonzero(inside))
    return float(np.abs(np.vdot(image, target)) / norms * share) if norms > 0 else 0.0


def _peak_ramp(product: np.ndarray) -> np.ndarray:
    """Return the slope k (rad per pixel) that maximises |sum product exp(-i k.r)|.

    The strongest Fourier component is the start of Newton steps.
    """
    size = [fft.next_fast_len(2 * n) for n in product.shape]
    spectrum = np.abs(fft.fft2(product, s=size))
    peak = np.unravel_index(np.argmax(spectrum), spectrum.shape)
    slope = np.array([2 * np.pi * fft.fftfreq(n)[i] for n, i in zip(size, peak, strict=True)])
    y, x = _grid(product.shape)
    for _ in range(4):
        flat = product * np.conj(_ramp(product.shape, slope))
        total = flat.sum()
        weight = (flat * np.exp(-1j * np.angle(total))).real
        phase = (flat * np.exp(-1j * np.angle(total))).imag
        # Phases of a small remaining ramp: a weighted least-squares fit of a plane.
        plane = [np.broadcast_to(axis, product.shape) for axis in (y, x, np.ones((1, 1)))]
        normal = np.array([[(weight * u * v).sum() for v in plane] for u in plane])
        step = np.linalg.lstsq(normal, np.array([(phase * u).sum() for u in plane]), rcond=1e-12)[0][:2]
        trial = slope + step
        if np.abs((product * np.conj(_ramp(product.shape, trial))).sum()) <= np.abs(total):
            break
        slope = trial
    return slope


@dataclass
class _Fit:
    """Model at one shift and ramp.

    Attributes:
        image: (n,) complex, the model on the common pixels, with the best factor.
        scale: (n,) complex, factor times the ramp after the shift.
        moved: (H, W) complex, spectrum of the shifted image.
        error: NRMSE.
    """

    image: np.ndarray
    scale: np.ndarray
    moved: np.ndarray
    error: float


class _Model:
    """Model c exp(i (ramp - before).r) T_shift [exp(i before.r) a] of b on some pixels.

    Args:
        a, b: (H, W) complex.
        common: (H, W) bool, the pixels.
        before: ramp that is applied before the shift; None: all of the ramp.
    """

    def __init__(self, a: np.ndarray, b: np.ndarray, common: np.ndarray, before: np.ndarray | None) -> None:
        self.a, self.common, self.before = a, common, before
        self.target = b[common]
        self.norm = float(np.linalg.norm(self.target))
        if not self.norm > 0:
            raise BadInput("One of the images is zero wherever both are known; there is nothing to compare.")
        self.y, self.x = (np.broadcast_to(axis, a.shape)[common] for axis in _grid(a.shape))
        self.spectrum = None if before is None else fft.fft2(a * _ramp(a.shape, before))

    def __call__(self, shift: np.ndarray, ramp: np.ndarray) -> _Fit:
        """Evaluate the model with the factor c that fits best."""
        spectrum, after = self.spectrum, np.zeros(2) if self.before is None else ramp - self.before
        if spectrum is None:
            spectrum = fft.fft2(self.a * _ramp(self.a.shape, ramp))
        moved = spectrum * _shift_factor(self.a.shape, shift)
        tilt = np.exp(1j * (after[0] * self.y + after[1] * self.x))
        image = fft.ifft2(moved)[self.common] * tilt
        factor = np.vdot(image, self.target) / np.vdot(image, image)
        error = float(np.linalg.norm(factor * image - self.target)) / self.norm
        return _Fit(factor * image, factor * tilt, moved, error)

    def derivatives(self, fit: _Fit) -> list[np.ndarray]:
        """Return d image / d (shift y, x, ramp y, x, Re log c, Im log c), but for wrap-around at the edge."""
        moves = [fft.ifft2(-1j * q * fit.moved)[self.common] * fit.scale for q in _frequencies(self.a.shape)]
        return [*moves, 1j * self.y * fit.image, 1j * self.x * fit.image, fit.image, 1j * fit.image]


def _refined(
    a: np.ndarray, b: np.ndarray, common: np.ndarray, shift: np.ndarray, ramp: np.ndarray, before: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Refine shift, ramp and factor by Gauss-Newton steps with Levenberg's damping.

    Returns:
        Shift, ramp, the part of it that is applied before the shift, and the NRMSE.
    """
    model = _Model(a, b, common, before)
    fit = model(shift, ramp)
    damping = 1e-6
    for _ in range(40):
        columns = model.derivatives(fit)
        normal = np.array([[np.vdot(u, v).real for v in columns] for u in columns])
        slope = np.array([np.vdot(u, model.target - fit.image).real for u in columns])
        scales = np.sqrt(np.maximum(np.diag(normal), 1e-30 * normal.max()))
        system = normal / np.outer(scales, scales) + damping * np.eye(len(columns))
        step = np.linalg.lstsq(system, slope / scales, rcond=1e-14)[0] / scales
        trial = model(shift + step[:2], ramp + step[2:4])
        if trial.error < fit.error:
            gain = 1 - trial.error / fit.error
            shift, ramp, fit = shift + step[:2], ramp + step[2:4], trial
            damping = max(damping / 10, 1e-15)
            if gain < 1e-6 or fit.error < 1e-14:
                break
        else:
            damping = max(damping * 100, 1e-9)
            if damping > 1e3:
                break
    return shift, ramp, ramp if before is None else before, fit.error
