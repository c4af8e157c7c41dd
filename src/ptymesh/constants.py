"""Physical constants in SI units.

h, c and e are exact by definition of the SI (2019); the electron's mass is that of CODATA 2022. scipy has them too, but
its import would take a quarter of a second in every process of a run.
"""

#: Planck's constant (J s), speed of light (m/s), elementary charge (C), mass of the electron (kg).
h, c, e, m_e = 6.62607015e-34, 299792458.0, 1.602176634e-19, 9.1093837139e-31
