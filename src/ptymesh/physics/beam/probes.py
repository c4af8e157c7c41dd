"""Starting probes: lenses, zone plates, mirrors, pinholes, or the data themselves.

h, w    window pixels, y first; the optical axis is at (h//2, w//2)
d       object pixel (m);  k = fftfreq(n, d), spatial frequency (1/m);  a = lambda |k|, phi = atan2(k_y, k_x) (rad)
P       probe, complex128, with sum |P|^2 = 1 unless said otherwise

A lens, zone plate or mirror pair is a pupil A and a phase chi in the back focal plane:  P = F^H [A exp(-i chi)].

One sign for defocus everywhere: C10 = -defocus. Positive defocus (underfocus) puts the sample upstream of the focus,
negative defocus puts it downstream; C10 is the distance from the focus to the sample along the beam.

Sampling: the pupil must lie within the angles that the pixel can hold, a <= lambda / (2 d), and the geometric ray
displacement |grad_k chi| / (2 pi) must stay within half the window, or the probe wraps around it (BadInput).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel, fft, frequencies, ifft

Pair = tuple[float, float]
AberrationsByName = Mapping[str, float | Sequence[float]]


def aberrated(
    shape: tuple[int, int],
    pixel_m: Pair,
    wavelength_m: float,
    semiangle_rad: float,
    aberrations_m: AberrationsByName | None = None,
) -> Tensor:
    """Return the probe (h, w) of a round lens with a hard aperture and aberrations, of unit power.

    chi = (2 pi / lambda) sum_nm C_nm a^(n+1) cos(m (phi - phi_nm)) / (n + 1)   (Krivanek notation).

    Args:
        shape: window (h, w).
        pixel_m: object pixel (y, x).
        wavelength_m: relativistic for electrons.
        semiangle_rad: half-angle of the aperture.
        aberrations_m: {"C10": metres, "C12": [metres, angle in rad], ...}; angles count from x towards y.

    Raises:
        BadInput: an aperture or aberration that this window cannot sample, or an unknown aberration.

    Source: Kirkland, Advanced Computing in Electron Microscopy, ch. 2-3.
    """
    angle_y, angle_x = _angles(shape, pixel_m, wavelength_m)
    _check_pupil("semi-angle", (semiangle_rad, semiangle_rad), shape, pixel_m, wavelength_m)
    pupil = (torch.hypot(angle_y, angle_x) <= semiangle_rad).to(torch.float64)
    chi = _phase(shape, pixel_m, wavelength_m, aberrations_m or {})
    return _transform_pupil(pupil, chi, pixel_m)


def zone_plate(
    shape: tuple[int, int],
    pixel_m: Pair,
    wavelength_m: float,
    outer_zone_m: float,
    diameter_m: float,
    central_stop_m: float = 0.0,
    defocus_m: float = 0.0,
) -> Tensor:
    """Return the first-order focus (h, w) of a Fresnel zone plate, of unit power, assuming an order-sorting aperture.

    Half-angle lambda / (2 outer zone), focal length diameter * outer zone / lambda, the stop a disc in the pupil.

    Args:
        shape: window (h, w).
        pixel_m: object pixel (y, x).
        wavelength_m: wavelength.
        outer_zone_m: width of the outermost zone.
        diameter_m: diameter of the plate.
        central_stop_m: diameter of the central stop.
        defocus_m: defocus; positive puts the sample upstream of the focus.

    Raises:
        BadInput: a stop as large as the plate, or a probe that this window cannot sample.

    Source: Attwood & Sakdinawat, X-Rays and Extreme Ultraviolet Radiation, ch. 10.
    """
    _positive("outer zone width", outer_zone_m)
    _positive("zone plate's diameter", diameter_m)
    if not 0 <= central_stop_m < diameter_m:
        raise BadInput(
            f"The central stop is {central_stop_m} m and the zone plate {diameter_m} m; give a smaller stop."
        )
    semiangle_rad = wavelength_m / (2 * outer_zone_m)
    angle_y, angle_x = _angles(shape, pixel_m, wavelength_m)
    _check_pupil("zone plate's half-angle", (semiangle_rad, semiangle_rad), shape, pixel_m, wavelength_m)
    angle = torch.hypot(angle_y, angle_x)
    stop_rad = semiangle_rad * central_stop_m / diameter_m
    pupil = ((angle <= semiangle_rad) & ((angle >= stop_rad) | (central_stop_m == 0))).to(torch.float64)
    if not pupil.any():
        raise BadInput(f"A central stop of {central_stop_m} m leaves no pixel of the pupil; give a smaller stop.")
    return _transform_pupil(pupil, _phase(shape, pixel_m, wavelength_m, {"C10": -defocus_m}), pixel_m)


def kb_mirror(
    shape: tuple[int, int],
    pixel_m: Pair,
    wavelength_m: float,
    aperture_m: Pair,
    focal_length_m: Pair,
    defocus_m: float | Pair = 0.0,
) -> Tensor:
    """Return the focus (h, w) of a Kirkpatrick-Baez mirror pair, of unit power: a sinc on each axis.

    The pupil is a rectangle of half-angles aperture / (2 focal length).

    Args:
        shape: window (h, w).
        pixel_m: object pixel (y, x).
        wavelength_m: wavelength.
        aperture_m: apertures of the mirrors (y, x).
        focal_length_m: focal lengths (y, x).
        defocus_m: defocus; a pair (y, x) gives the astigmatism of mirrors whose foci do not coincide.

    Raises:
        BadInput: a probe that this window cannot sample.
    """
    for axis, aperture, focal in zip("yx", aperture_m, focal_length_m, strict=True):
        _positive(f"mirror aperture in {axis}", aperture)
        _positive(f"focal length in {axis}", focal)
    half = (aperture_m[0] / (2 * focal_length_m[0]), aperture_m[1] / (2 * focal_length_m[1]))
    _check_pupil("mirror's half-angle", half, shape, pixel_m, wavelength_m)
    angle_y, angle_x = _angles(shape, pixel_m, wavelength_m)
    pupil = ((angle_y.abs() <= half[0]) & (angle_x.abs() <= half[1])).to(torch.float64)
    defocus_y, defocus_x = (defocus_m, defocus_m) if isinstance(defocus_m, float | int) else defocus_m
    chi = -math.pi / wavelength_m * (defocus_y * angle_y**2 + defocus_x * angle_x**2)
    return _transform_pupil(pupil, chi, pixel_m)


def pinhole(
    shape: tuple[int, int], pixel_m: Pair, wavelength_m: float, diameter_m: float, distance_m: float = 0.0
) -> Tensor:
    """Return a plane wave behind a round hole (h, w), propagated to the sample by the angular spectrum, of unit power.

    The rim is one pixel soft.

    Args:
        shape: window (h, w).
        pixel_m: object pixel (y, x).
        wavelength_m: wavelength.
        diameter_m: diameter of the hole.
        distance_m: distance from hole to sample.

    Raises:
        BadInput: a hole under two pixels wide, or a beam of diameter + 2 lambda distance / diameter beyond the window.

    Source: Goodman, Introduction to Fourier Optics, ch. 3.
    """
    _positive("pinhole's diameter", diameter_m)
    field_m = min(shape[0] * pixel_m[0], shape[1] * pixel_m[1])
    beam_m = diameter_m + 2 * wavelength_m * abs(distance_m) / diameter_m
    if diameter_m < 2 * max(pixel_m) or beam_m > field_m:
        raise BadInput(
            f"A pinhole of {diameter_m} m at {distance_m} m makes a beam {beam_m:.3g} m wide, and the window holds "
            f"{2 * max(pixel_m):.3g} to {field_m:.3g} m; check the diameter, the distance and the pixel size."
        )
    y, x = ((torch.arange(n, dtype=torch.float64) - n // 2) * d for n, d in zip(shape, pixel_m, strict=True))
    soft = math.sqrt(pixel_m[0] * pixel_m[1])
    hole = ((diameter_m / 2 - torch.hypot(y[:, None], x[None, :])) / soft + 0.5).clamp(0, 1)
    return rescaled(_propagated(hole, pixel_m, wavelength_m, distance_m), 1.0)


def from_mean_pattern(mean_pattern: Tensor) -> Tensor:
    """Return the probe (h, w) whose far field is the square root of the mean pattern, with zero phase.

    Its power sum |P|^2 is the sum of the mean pattern (h, w), which has DC at the corner; values below zero count as
    zero.

    Raises:
        BadInput: a mean pattern without counts.
    """
    if not mean_pattern.max() > 0:
        raise BadInput(
            f"There is no light in the mean pattern (its brightest pixel is {float(mean_pattern.max()):g}); check the "
            f"patterns, the mask and the background."
        )
    return _centred_inverse(mean_pattern.to(torch.float64).clamp(min=0).sqrt().to(torch.complex128))


def with_aberrations(probe: Tensor, pixel_m: Pair, wavelength_m: float, aberrations_m: AberrationsByName) -> Tensor:
    """Return the probe behind a lens that has these aberrations, too, F^H exp(-i chi) F P; see `aberrated` for chi.

    Args:
        probe: (h, w) or (M, h, w) complex, with the optical axis at (h//2, w//2).
        pixel_m: object pixel (y, x).
        wavelength_m: relativistic for electrons.
        aberrations_m: as in `aberrated`.

    Raises:
        BadInput: an unknown aberration, or one by which 1 % of the power would leave the window and wrap around.
    """
    shape = (probe.shape[-2], probe.shape[-1])
    chi = _phase(shape, pixel_m, wavelength_m, aberrations_m)
    spectrum = fft(torch.fft.ifftshift(probe.to(torch.complex128), dim=(-2, -1)))
    power = (spectrum.abs() ** 2).reshape(-1, *shape).sum(0)
    bright = torch.sort(power.flatten(), descending=True)
    needed = int(torch.searchsorted(torch.cumsum(bright.values, 0), 0.99 * power.sum())) + 1
    inside = torch.zeros(shape[0] * shape[1], dtype=torch.bool)
    inside[bright.indices[:needed]] = True
    _check_spread(inside.reshape(shape), chi, pixel_m)
    return _centred_inverse(spectrum * torch.exp(-1j * chi))


def defocused(probe: Tensor, pixel_m: Pair, wavelength_m: float, distance_m: float) -> Tensor:
    """Return the probe propagated downstream, with C10 raised by the distance; its power is kept.

    Args:
        probe: (h, w) or (M, h, w) complex.
        pixel_m: object pixel (y, x).
        wavelength_m: wavelength.
        distance_m: distance along the beam; negative for upstream.

    Raises:
        BadInput: a distance over which 1 % of the power would leave the window and wrap around.
    """
    power = (fft(probe).abs() ** 2).reshape(-1, *probe.shape[-2:]).sum(0)
    for axis, (n, d) in enumerate(zip(probe.shape[-2:], pixel_m, strict=True)):
        k = torch.fft.fftfreq(n, d, dtype=torch.float64).abs()
        profile = power.sum(1 - axis)
        order = torch.argsort(k)
        enough = torch.cumsum(profile[order], 0) >= 0.99 * profile.sum()
        k_used = float(k[order][enough][0])
        spread_m, field_m = 2 * wavelength_m * abs(distance_m) * k_used, n * d
        if spread_m > field_m:
            raise BadInput(
                f"Propagating the probe by {distance_m} m spreads it over {spread_m:.3g} m in {'yx'[axis]}, and the "
                f"window is {field_m:.3g} m wide; give a shorter distance."
            )
    return _propagated(probe, pixel_m, wavelength_m, distance_m)


def extra_modes(given: Tensor, modes: int, powers: Sequence[float] | None = None, seed: int = 0) -> Tensor:
    """Return modes (M, h, w): the given ones, then orthogonal Hermite-like ones made from the first.

    New modes are the first times polynomials of rising order in (y, x) about its centre of mass, orthogonalised.
    Polynomials of one order are mixed by a random unitary, so that no mode inherits the symmetry of the axes. The total
    power stays that of the given modes.

    Args:
        given: (h, w) or (m, h, w) complex; if m > M, the first M are used.
        modes: M >= 1.
        powers: M fractions of the total power with sum 1. Default: 2 % for each new mode (equal powers beyond 50
            modes), the rest for the given ones in their own proportions.
        seed: of the random unitary.

    Raises:
        BadInput: powers of the wrong number, sign or sum, a mode that is zero, or more modes than the window can hold.

    Source: Odstrcil et al., Opt. Express 26, 3108 (2018).
    """
    given = given.reshape(-1, *given.shape[-2:]).to(torch.complex128)
    total = (given.abs() ** 2).sum()
    kept = given[: max(modes, 1)]
    norms = torch.linalg.vector_norm(kept, dim=(1, 2))
    if not norms.min() > 0:
        raise BadInput("A probe mode is zero everywhere; give another start for the probe, or fewer modes.")
    unit = torch.cat((kept / norms[:, None, None], _polynomial_modes(kept, modes - len(kept), seed)))
    if powers is None:
        new = min(0.02, 1 / modes)
        own = (norms**2 / (norms**2).sum() * (1 - new * (modes - len(kept)))).tolist()
        fractions = own + [new] * (modes - len(kept))
    else:
        fractions = _checked_powers(powers, modes)
    scale = (torch.tensor(fractions, dtype=torch.float64, device=given.device) * total).sqrt()
    return unit * scale[:, None, None]


def _polynomial_modes(given: Tensor, count: int, seed: int) -> Tensor:
    """Return `count` modes: the first of the given times polynomials of rising order.

    Those of an order are mixed at random; all are orthonormal, and orthogonal to the given ones.
    """
    first, (h, w) = given[0], given.shape[-2:]
    basis = list(torch.linalg.qr(given.reshape(len(given), -1).T)[0].T.reshape(given.shape))
    density = first.abs() ** 2 / (first.abs() ** 2).sum()
    y = torch.arange(h, dtype=torch.float64, device=given.device)[:, None].expand(h, w)
    x = torch.arange(w, dtype=torch.float64, device=given.device)[None, :].expand(h, w)
    y, x = (c - (c * density).sum() for c in (y, x))
    width = ((y**2 + x**2) * density).sum().div(2).sqrt().clamp(min=1e-3)
    y, x = y / width, x / width

    generator = torch.Generator().manual_seed(seed)
    modes_made: list[Tensor] = []
    for order in range(1, count + len(given) + 2):
        if len(modes_made) == count:
            break
        mix = torch.linalg.qr(torch.randn(order + 1, order + 1, dtype=torch.complex128, generator=generator))[0]
        terms = torch.stack([first * y**i * x ** (order - i) for i in range(order + 1)])
        for candidate in torch.einsum("ij,jhw->ihw", mix.to(given.device), terms):
            mode = _orthonormal(candidate, basis + modes_made)
            if mode is not None and len(modes_made) < count:
                modes_made.append(mode)
    if len(modes_made) < count:
        raise BadInput(
            f"Only {len(modes_made) + len(given)} orthogonal modes can be made from the first probe mode, and "
            f"{count + len(given)} were asked for; ask for fewer."
        )
    return torch.stack(modes_made) if modes_made else given[:0]


def rescaled(probe: Tensor, total: float) -> Tensor:
    """Return the probe times the positive number that makes sum |P|^2, over all modes and pixels, equal to `total`.

    Raises:
        BadInput: a probe that is zero everywhere or holds NaN, or a total that is not positive.
    """
    if not (math.isfinite(total) and total > 0):
        raise BadInput(f"The probe's power is to be {total}; check that the patterns hold counts above background.")
    power = float((probe.abs() ** 2).sum())
    if not (math.isfinite(power) and power > 0):
        raise BadInput(f"The probe's power is {power}; give a start that is finite and not zero everywhere.")
    return probe * math.sqrt(total / power)


def _checked_powers(powers: Sequence[float], modes: int) -> list[float]:
    if len(powers) != modes:
        raise BadInput(f"There are {len(powers)} mode powers for {modes} probe modes; give one fraction per mode.")
    if any(not p > 0 for p in powers) or abs(sum(powers) - 1) > 1e-6:
        raise BadInput(f"The mode powers are {list(powers)}; give positive fractions whose sum is 1.")
    return [p / sum(powers) for p in powers]


def _orthonormal(mode: Tensor, others: list[Tensor]) -> Tensor | None:
    """Return the mode less its parts along the others, normalised; None if nothing is left."""
    before = torch.linalg.vector_norm(mode)
    for _ in range(2):  # twice is enough (Kahan): the second pass removes what rounding left
        for other in others:
            mode = mode - other * torch.vdot(other.flatten(), mode.flatten())
    norm = torch.linalg.vector_norm(mode)
    return mode / norm if norm > 1e-6 * before else None


def _angles(shape: tuple[int, int], pixel_m: Pair, wavelength_m: float) -> tuple[Tensor, Tensor]:
    """Return lambda k_y (h, 1) and lambda k_x (1, w), DC at the corner."""
    ky, kx = frequencies(shape, pixel_m)
    return wavelength_m * ky, wavelength_m * kx


def aberration_phases(
    shape: tuple[int, int], pixel_m: Pair, wavelength_m: float, names: Sequence[str]
) -> dict[str, Tensor]:
    """Return d chi / d C of these aberrations, (h, w) float64 each in rad per metre, by name, DC at the corner.

    C_nm with m > 0 has two, d chi / d C_nma ~ cos(m phi) and d chi / d C_nmb ~ sin(m phi); see `aberrated` for chi.

    Args:
        shape: window (h, w).
        pixel_m: object pixel (y, x).
        wavelength_m: wavelength.
        names: aberrations, such as "C10" or "C12".

    Raises:
        BadInput: an unknown aberration.
    """
    y, x = (angle.expand(shape) for angle in _angles(shape, pixel_m, wavelength_m))
    phases: dict[str, Tensor] = {}
    for name in names:
        n, m, _, _ = _aberration(name, 0.0)
        size = torch.full(shape, 2 * math.pi / wavelength_m / (n + 1), dtype=torch.float64)
        for _ in range((n + 1 - m) // 2):
            size = size * (x * x + y * y)
        # a^m cos(m phi) and a^m sin(m phi): (x + i y)^m
        cosine, sine = size, torch.zeros_like(size)
        for _ in range(m):
            cosine, sine = cosine * x - sine * y, cosine * y + sine * x
        phases |= {f"{name}a": cosine, f"{name}b": sine} if m else {name: cosine}
    return phases


def aberration_parts(aberrations_m: AberrationsByName) -> dict[str, float]:
    """Return the same aberrations with C_nma and C_nmb for C_nm at an angle, in metres.

    Raises:
        BadInput: an unknown aberration, or values that are no size and angle.
    """
    parts: dict[str, float] = {}
    for name, value in aberrations_m.items():
        _, m, size, phi = _aberration(name, value)
        parts |= {f"{name}a": size * math.cos(m * phi), f"{name}b": size * math.sin(m * phi)} if m else {name: size}
    return parts


def _phase(shape: tuple[int, int], pixel_m: Pair, wavelength_m: float, aberrations_m: AberrationsByName) -> Tensor:
    """Return chi (h, w) in rad, DC at the corner."""
    each = aberration_phases(shape, pixel_m, wavelength_m, list(aberrations_m))
    sizes = aberration_parts(aberrations_m)
    return sum((sizes[name] * phase for name, phase in each.items()), torch.zeros(shape, dtype=torch.float64))


def _aberration(name: str, value: float | Sequence[float]) -> tuple[int, int, float, float]:
    """Return n, m, size (m) and angle (rad) of one entry such as C12: [1e-9, 0.3]."""
    match = re.fullmatch(r"C(\d)(\d)", name)
    if not match:
        raise BadInput(
            f"Unknown aberration {name!r}; names are Cnm, such as C10 (defocus), C12, C21 or C30, or Haider's, such as "
            f"C1, A1, B2 or C3."
        )
    n, m = int(match[1]), int(match[2])
    if m > n + 1 or (n + m) % 2 == 0:
        raise BadInput(f"There is no aberration {name}; m is at most n + 1 and n + m is odd, as in C10, C12 or C21.")
    numbers = [value] if isinstance(value, float | int) else list(value)
    if len(numbers) not in (1, 2) or not all(math.isfinite(v) for v in numbers) or (m == 0 and len(numbers) == 2):
        raise BadInput(f"Aberration {name} is {value}; give metres{', or [metres, angle in rad]' if m else ''}.")
    return n, m, float(numbers[0]), float(numbers[1]) if len(numbers) == 2 else 0.0


def is_pupil_sampled(semiangle_rad: float, shape: tuple[int, int], pixel_m: Pair, wavelength_m: float) -> bool:
    """Return True if a round aperture is no finer than a pixel of the pupil, and within the Nyquist frequency.

    Args:
        semiangle_rad: half-angle of the aperture.
        shape: window (h, w).
        pixel_m: object pixel (y, x).
        wavelength_m: of the beam.
    """
    return all(
        wavelength_m / (n * d) <= semiangle_rad <= wavelength_m / (2 * d) for n, d in zip(shape, pixel_m, strict=True)
    )


def _check_pupil(name: str, half_rad: Pair, shape: tuple[int, int], pixel_m: Pair, wavelength_m: float) -> None:
    """Raise BadInput if the half-angles of a pupil are finer than a pixel of it, or beyond the Nyquist frequency."""
    for n, d, half in zip(shape, pixel_m, half_rad, strict=True):
        largest, step = wavelength_m / (2 * d), wavelength_m / (n * d)
        if not step <= half <= largest:
            raise BadInput(
                f"The {name} is {half:.4g} rad, and a window of {n} pixels of {d:.4g} m holds {step:.3g} to "
                f"{largest:.3g} rad; check the angle, the wavelength and the pixel size."
            )


def _transform_pupil(pupil: Tensor, chi: Tensor, pixel_m: Pair) -> Tensor:
    """Return P = F^H [A exp(-i chi)] of unit power, once chi is known to be sampled."""
    _check_spread(pupil > 0, chi, pixel_m)
    return rescaled(_centred_inverse(pupil * torch.exp(-1j * chi)), 1.0)


def _check_spread(inside: Tensor, chi: Tensor, pixel_m: Pair) -> None:
    """Raise BadInput if rays from within a pupil (h, w) bool would leave the window by their phases chi (h, w)."""
    for axis in (0, 1):
        n, d = chi.shape[axis], pixel_m[axis]
        both = inside & inside.roll(-1, axis)
        # Neighbours across the Nyquist frequency (where the pupil fills the band) are not neighbours in angle.
        both = both & (torch.arange(n) != (n - 1) // 2).reshape((-1, 1) if axis == 0 else (1, -1))
        jump = ((chi.roll(-1, axis) - chi).abs() * both).max()
        spread_m = float(jump) / math.pi * n * d
        if spread_m > n * d:
            raise BadInput(
                f"With this defocus or aberration the probe is {spread_m:.3g} m wide in {'yx'[axis]}, and the window "
                f"is {n * d:.3g} m; reduce it or use a larger window."
            )


def _propagated(probe: Tensor, pixel_m: Pair, wavelength_m: float, distance_m: float) -> Tensor:
    """Propagate by the angular spectrum, and restore the power from before the band limit."""
    kernel = angular_spectrum_kernel((probe.shape[-2], probe.shape[-1]), pixel_m, wavelength_m, distance_m)
    moved = apply_kernel(probe.to(torch.complex128), kernel.to(probe.device))
    return rescaled(moved, float((probe.abs() ** 2).sum()))


def _centred_inverse(spectrum: Tensor) -> Tensor:
    """Return F^H of a spectrum with DC at the corner, with the optical axis moved to (h//2, w//2)."""
    return torch.fft.fftshift(ifft(spectrum), dim=(-2, -1))


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"The {name} is {value} m; give a positive length.")
