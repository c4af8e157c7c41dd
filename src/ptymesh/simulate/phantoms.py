"""Test objects with structure at every scale, of any size, generated from a seed.

H, W    object pixels;  L  slices

Maps are float64 in [0, 1] until `complex_object` turns them into amplitude and phase.

Edges are one pixel soft, so that an object is about as sharp as its sampling allows and no sharper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import ndimage

Range = tuple[float, float]

#: Rows of an object that are computed together, to save memory.
BAND = 256


def complex_object(absorption: np.ndarray, thickness: np.ndarray, amplitude: Range, phase_rad: Range) -> np.ndarray:
    """Return the transmission of maps: amplitude falls with absorption, phase with thickness, over the whole ranges.

    The most absorbing pixel has amplitude[0], the least absorbing amplitude[1]; the thickest has phase_rad[0], the
    thinnest phase_rad[1] (refractive index below one, as for X-rays).

    Args:
        absorption: (..., H, W), of any scale.
        thickness: (..., H, W), of any scale.
        amplitude: (low, high).
        phase_rad: (low, high).

    Returns:
        (..., H, W) complex128.
    """
    absorption, thickness = np.broadcast_arrays(absorption, thickness)
    absorbed, thick = _range(absorption), _range(thickness)
    transmission: np.ndarray = np.empty(absorption.shape, np.complex128)
    for rows in _bands(absorption.shape[-2]):
        modulus = amplitude[1] - (amplitude[1] - amplitude[0]) * _stretched(absorption[..., rows, :], *absorbed)
        phase = phase_rad[1] - (phase_rad[1] - phase_rad[0]) * _stretched(thickness[..., rows, :], *thick)
        transmission[..., rows, :] = modulus * np.exp(1j * phase)
    return transmission


def chart(
    shape: tuple[int, int], seed: int, amplitude: Range, phase_rad: Range, field: tuple[int, int] | None = None
) -> np.ndarray:
    """Return an X-ray test chart: Siemens stars, line gratings, grains of all sizes and a smooth phase.

    Stars and gratings are in amplitude and phase; the grains mostly absorb and the smooth part is in the phase alone,
    so that crosstalk between the two images shows.

    Args:
        shape: (H, W).
        seed: of the random numbers.
        amplitude: (low, high) of the transmission's modulus.
        phase_rad: (low, high) of its phase.
        field: (y, x) pixels of the central part that the beam will reach, which stars and gratings fill, one star to at
            most about 450 pixels; grains extend to the border. None: all.

    Returns:
        (1, H, W) complex128.
    """
    field = shape if field is None else (min(field[0], shape[0]), min(field[1], shape[1]))
    cell = min(*field, 448)
    rows, columns = (max(1, round(n / cell)) for n in field)
    metal = np.zeros(shape)
    inner = metal[tuple(slice((n - m) // 2, (n - m) // 2 + m) for n, m in zip(shape, field, strict=True))]
    for i in range(rows):
        for j in range(columns):
            part = inner[
                i * field[0] // rows : (i + 1) * field[0] // rows,
                j * field[1] // columns : (j + 1) * field[1] // columns,
            ]
            rng = np.random.default_rng([seed, 2, i, j])
            _draw_cell(part, 36 if rows * columns == 1 else int(rng.choice([24, 36, 48])), rng)
    grain = grains(shape, seed)
    thickness = _smooth(shape, seed)
    for band in _bands(shape[0]):
        thickness[band] = metal[band] + 0.12 * grain[band] + 0.5 * thickness[band]
        metal[band] = 0.45 * metal[band] + 0.55 * grain[band]
    del grain, inner  # free memory: these arrays are as large as the object
    return complex_object(metal, thickness, amplitude, phase_rad)[None]


def powder(shape: tuple[int, int], seed: int, amplitude: Range, phase_rad: Range) -> np.ndarray:
    """Return a near-field test object: overlapping spheres of radii from one pixel to a tenth of the field.

    The map is a projected thickness, so that phase and absorption are those of one material (as in most thick samples),
    plus a smooth phase.

    Args:
        shape: (H, W).
        seed: of the random numbers.
        amplitude: (low, high) of the transmission's modulus.
        phase_rad: (low, high) of its phase.

    Returns:
        (1, H, W) complex128.
    """
    rng = np.random.default_rng([seed, 4])
    thickness = np.zeros(shape)
    largest = max(6.0, min(shape) / 9)
    for y, x, radius in _scattered(shape, rng, largest, cover=1.1):
        patch, distance = _patch(thickness, y, x, radius + 2)
        if patch.size:
            height = np.sqrt(np.clip(1 - (distance / radius) ** 2, 0, None))
            # flatten large spheres, else the small ones would vanish in the range of the phase
            patch += height * radius**0.6
    thickness /= thickness.max()
    return complex_object(thickness, thickness + 0.2 * _smooth(shape, seed), amplitude, phase_rad)[None]


def atoms(
    shape: tuple[int, int],
    slices: int,
    pixel_m: tuple[float, float],
    seed: int,
    phase_rad: float,
    spacing_m: float = 2.6e-10,
    sigma_m: float = 0.45e-10,
) -> np.ndarray:
    """Return an electron test object: Gaussian atomic potentials, exp(i phase), at most `phase_rad` in each slice.

    Each slice is a hexagonal crystal of its own orientation, with vacancies, a heavier grain of a second orientation
    and an amorphous film with holes, so that slices can be told apart.

    Args:
        shape: (H, W).
        slices: L.
        pixel_m: (y, x) object pixel.
        seed: of the random numbers.
        phase_rad: largest phase of a slice.
        spacing_m: lattice constant.
        sigma_m: standard deviation of an atom's potential.

    Returns:
        (L, H, W) complex128.

    Source:
        Weak-phase transmission: Kirkland, ch. 5.
    """
    placed = []
    for level in range(slices):
        rng = np.random.default_rng([seed, 5, level])
        turn = math.pi / 3 * (level / slices + rng.uniform(0, 0.1))
        heavy = _blob(shape, rng, share=0.3)
        film = _blob(shape, rng, share=0.55)
        potential = np.zeros(shape)
        for angle, region, weight in ((turn, ~heavy, 1.0), (turn + 0.35, heavy, 1.8)):
            sites = _lattice(shape, pixel_m, spacing_m, angle)
            inside = region[tuple(np.clip(np.rint(sites).astype(int), 0, np.array(shape) - 1).T)]
            sites = sites[inside & (rng.random(len(sites)) > 0.06)]
            _add_atoms(potential, sites, np.full(len(sites), weight), pixel_m, sigma_m)
        loose = rng.uniform(0, shape, (round(0.25 * np.prod(shape) * np.prod(pixel_m) / spacing_m**2), 2))
        loose = loose[film[tuple(loose.astype(int).T)]]
        _add_atoms(potential, loose, rng.uniform(0.2, 0.6, len(loose)), pixel_m, sigma_m)
        placed.append(np.exp(1j * phase_rad * potential / potential.max()))
    return np.stack(placed)


def grains(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Return discs of all sizes, their number falling as radius^-3, each hiding those below it (dead leaves).

    Args:
        shape: (H, W).
        seed: of the random numbers.

    Returns:
        (H, W) float64 in [0, 1], zero over about half of the area.

    Source:
        Lee, Mumford & Huang 2001.
    """
    rng = np.random.default_rng([seed, 3])
    image = np.zeros(shape)
    for y, x, radius in _scattered(shape, rng, max(5.0, min(shape) / 14), cover=0.6):
        patch, distance = _patch(image, y, x, radius + 1)
        patch += np.clip(radius - distance + 0.5, 0, 1) * (rng.uniform(0.25, 1) - patch)
    return image


def _scattered(
    shape: tuple[int, int], rng: np.random.Generator, largest: float, cover: float
) -> list[tuple[float, float, float]]:
    """Return centres and radii (y, x, r) in pixels, large ones first, of discs with `cover` times the area in total."""
    smallest = 1.2
    u = rng.random(
        max(8, int(cover * shape[0] * shape[1] / (2 * math.pi * smallest**2 * math.log(largest / smallest))))
    )
    radii = np.sort(1 / np.sqrt(1 / smallest**2 - u * (1 / smallest**2 - 1 / largest**2)))[::-1]
    centres = rng.uniform(0, shape, (len(radii), 2))
    return [(float(y), float(x), float(r)) for (y, x), r in zip(centres, radii, strict=True)]


def _patch(image: np.ndarray, y: float, x: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the view of the image within `reach` of (y, x), and the distance of each of its pixels to (y, x)."""
    top, left = max(0, math.floor(y - reach)), max(0, math.floor(x - reach))
    patch = image[top : math.ceil(y + reach) + 1, left : math.ceil(x + reach) + 1]
    rows, columns = np.arange(patch.shape[0]) + top - y, np.arange(patch.shape[1]) + left - x
    return patch, np.hypot(rows[:, None], columns[None, :])


def _draw_cell(image: np.ndarray, spokes: int, rng: np.random.Generator) -> None:
    """Draw a Siemens star with ring gaps in the middle of the cell, and gratings of falling pitch in its corners."""
    h, w = image.shape
    y, x = np.arange(h)[:, None] - (h - 1) / 2, np.arange(w)[None, :] - (w - 1) / 2
    r, angle = np.hypot(y, x), np.arctan2(y, x) + rng.uniform(0, 2 * math.pi / spokes)
    radius = 0.40 * min(h, w)
    wave = np.sin(spokes * angle)
    # distance to the spoke's edge in pixels, and the remaining contrast where spokes are finer than a pixel
    star = np.clip(0.5 + wave * r / spokes, 0, 1)
    gap = np.ones_like(r)
    for ring in (0.5, 0.25, 0.125):
        width = max(1.5, 0.045 * radius * ring * 2)
        gap = np.minimum(gap, np.clip(np.abs(r - ring * radius) - width / 2 + 0.5, 0, 1))
    star = np.clip(radius - r + 0.5, 0, 1) * star * gap
    rim = np.clip(0.022 * radius + 0.5 - np.abs(r - 1.04 * radius), 0, 1)
    image[...] = np.maximum(star, rim)

    side = int(0.155 * min(h, w))
    if side < 6:
        return
    corners = ((0, 0), (0, w - side), (h - side, 0), (h - side, w - side))
    for turn, (top, left) in enumerate(corners):
        _draw_gratings(image[top : top + side, left : left + side], turn % 2 == 0)


def _draw_gratings(image: np.ndarray, upright: bool) -> None:
    """Draw bands of lines whose pitch halves from band to band, down to two pixels."""
    side = min(image.shape)
    edge = max(1, side // 12)
    u = np.arange(side, dtype=np.float64)
    start, pitch = edge, max(2.0, side / 5)
    bands = np.zeros((side, side))
    while start < side - edge:
        stop = min(side - edge, start + max(2, round(1.3 * pitch)))
        line = np.clip(0.5 + pitch / math.pi * np.sin(2 * math.pi * (u - edge) / pitch), 0, 1)
        bands[start : max(start + 1, stop - edge), edge : side - edge] = line[edge : side - edge]
        start, pitch = stop, max(2.0, pitch / 2)
    image[...] = np.maximum(image, bands if upright else bands.T)


def _smooth(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Return a smooth random surface (H, W) in [0, 1] with features of about a third of the field."""
    rng = np.random.default_rng([seed, 6])
    coarse = rng.standard_normal((7, 7))
    y, x = (np.linspace(1, 5, n) for n in shape)
    coarse, surface = ndimage.gaussian_filter(coarse, 0.6), np.empty(shape)
    for rows in _bands(shape[0]):
        surface[rows] = ndimage.map_coordinates(coarse, np.meshgrid(y[rows], x, indexing="ij"), order=3)
    low, span = _range(surface)
    for rows in _bands(shape[0]):
        surface[rows] = _stretched(surface[rows], low, span)
    return surface


def _blob(shape: tuple[int, int], rng: np.random.Generator, share: float) -> np.ndarray:
    """Return a random region (H, W) bool of few connected parts that covers `share` of the field."""
    field = ndimage.gaussian_filter(rng.standard_normal((24, 24)), 3, mode="wrap")
    y, x = (np.linspace(4, 19, n) for n in shape)
    surface = ndimage.map_coordinates(field, np.meshgrid(y, x, indexing="ij"), order=3)
    return np.asarray(surface > np.quantile(surface, 1 - share))


def _lattice(shape: tuple[int, int], pixel_m: tuple[float, float], spacing_m: float, angle: float) -> np.ndarray:
    """Return the sites (n, 2) in pixels of a hexagonal lattice that covers the field."""
    reach = math.ceil(1.2 * math.hypot(*(n * d for n, d in zip(shape, pixel_m, strict=True))) / spacing_m)
    i, j = (index.ravel() for index in np.mgrid[-reach : reach + 1, -reach : reach + 1])
    x, y = spacing_m * (i + j / 2), spacing_m * j * math.sqrt(3) / 2
    turned = np.stack((y * math.cos(angle) + x * math.sin(angle), x * math.cos(angle) - y * math.sin(angle)), axis=1)
    sites = turned / np.array(pixel_m) + np.array(shape) / 2
    return np.asarray(sites[((sites > -1) & (sites < np.array(shape))).all(axis=1)])


def _add_atoms(
    image: np.ndarray, sites: np.ndarray, weights: np.ndarray, pixel_m: tuple[float, float], sigma_m: float
) -> None:
    """Add Gaussians of `sigma_m` centred on sites (n, 2) in pixels, in place."""
    reach = math.ceil(4 * sigma_m / min(pixel_m))
    nearest = np.rint(sites).astype(int)
    grid = np.arange(-reach, reach + 1)
    along = []
    for axis in (0, 1):
        offset = (nearest[:, axis, None] + grid - sites[:, axis, None]) * pixel_m[axis]
        along.append(np.exp(-(offset**2) / (2 * sigma_m**2)))
    stamps = weights[:, None, None] * along[0][:, :, None] * along[1][:, None, :]
    padded = np.zeros((image.shape[0] + 2 * reach + 2, image.shape[1] + 2 * reach + 2))
    rows = (nearest[:, 0, None] + grid + reach + 1)[:, :, None]
    columns = (nearest[:, 1, None] + grid + reach + 1)[:, None, :]
    np.add.at(padded, (rows, columns), stamps)
    image += padded[reach + 1 : -reach - 1, reach + 1 : -reach - 1]


def _range(values: np.ndarray) -> tuple[float, float]:
    """Return the smallest value and the difference to the largest."""
    low = values.min()
    return low, values.max() - low


def _stretched(values: np.ndarray, low: float, span: float) -> np.ndarray:
    """Return values mapped from the given range onto [0, 1]; a constant becomes 0."""
    return np.asarray((values - low) / (span or 1.0))


def _bands(height: int) -> Iterator[slice]:
    """Yield the rows a few at a time, which keeps temporary arrays of a large object small."""
    for start in range(0, height, BAND):
        yield slice(start, start + BAND)


#: Width (standard deviation, pixels) over which displacements of a deformed object are alike.
ALIKE_PX = 4.0


def deformed(obj: np.ndarray, displacement_px: float, seed: int) -> np.ndarray:
    """Return an object whose pixels are displaced by smooth random fields, those of neighbours alike.

    Args:
        obj: (L, H, W) complex; each slice has displacements of its own.
        displacement_px: their root mean square along either axis.
        seed: of the random numbers.

    Returns:
        (L, H, W) complex128, interpolated by cubic splines; beyond the border it is as at the border.
    """
    deformed_object = np.empty(obj.shape, np.complex128)
    grid = np.mgrid[: obj.shape[1], : obj.shape[2]].astype(np.float64)
    for index, plane in enumerate(obj):
        noise = np.random.default_rng([seed, 13, index]).standard_normal((2, *plane.shape))
        moves = ndimage.gaussian_filter(noise, (0, ALIKE_PX, ALIKE_PX), mode="wrap")
        moves *= displacement_px / np.sqrt(np.mean(moves**2))
        deformed_object[index] = ndimage.map_coordinates(
            plane.astype(np.complex128), grid + moves, order=3, mode="nearest"
        )
    return deformed_object
