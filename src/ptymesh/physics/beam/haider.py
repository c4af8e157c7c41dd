"""Names of aberrations in Haider's notation, and the factors by which Krivanek's coefficients are larger.

w       = a exp(i phi), angle and azimuth of a ray
chi     = (2 pi / lambda) Re {C1 w w* / 2 + A1 w*^2 / 2 + B2 w^2 w* + A2 w*^3 / 3 + C3 (w w*)^2 / 4 + S3 w^3 w* + ...}
        (Uhlemann & Haider, Ultramicroscopy 72, 109 (1998); Haider et al., Ultramicroscopy 81, 163 (2000))
        = (2 pi / lambda) sum_nm C_nm a^(n+1) cos(m (phi - phi_nm)) / (n + 1)
        (Krivanek, Dellby & Lupini, Ultramicroscopy 78, 1 (1999))

Terms that have no divisor in the first have n + 1 in the second: C21 = 3 B2, C32 = 4 S3. The table of both in the
manual of Dr. Probe (Barthel, Ultramicroscopy 193, 1 (2018)) has the same factors.

An angle is an azimuth in both: phi_nm, at which the aberration adds to the phase. The argument of Haider's complex
coefficient is m times that, with another sign in terms with powers of w*.
"""

from __future__ import annotations

#: Krivanek's name of each aberration, and its coefficient over Haider's.
KRIVANEK: dict[str, tuple[str, int]] = {
    "C1": ("C10", 1),
    "A1": ("C12", 1),
    "B2": ("C21", 3),
    "A2": ("C23", 1),
    "C3": ("C30", 1),
    "S3": ("C32", 4),
    "A3": ("C34", 1),
    "B4": ("C41", 5),
    "D4": ("C43", 5),
    "A4": ("C45", 1),
    "C5": ("C50", 1),
    "S5": ("C52", 6),
    "R5": ("C54", 6),
    "A5": ("C56", 1),
}


def krivanek_name(name: str) -> tuple[str, int]:
    """Return Krivanek's name of an aberration and the factor to its coefficient; (name, 1) of one not in Haider's."""
    return KRIVANEK.get(name, (name, 1))
