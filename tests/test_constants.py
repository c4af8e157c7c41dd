"""Physical constants against scipy's."""

import pytest
import scipy.constants

from ptymesh import constants


@pytest.mark.parametrize("name", ["h", "c", "e", "m_e"])
def test_constants_are_those_of_codata(name):
    # the electron's mass changes in the ninth digit from one CODATA release to the next
    assert getattr(constants, name) == pytest.approx(getattr(scipy.constants, name), rel=1e-8 if name == "m_e" else 0)
