"""The beam: starting probes, incoherent modes, and the beam along its axis."""
