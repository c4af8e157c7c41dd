"""Names that plug-ins import from where they used to be."""

from __future__ import annotations

from ptymesh.recipe import starts as now
from ptymesh.run import starts as before


def test_a_plug_in_registers_its_start_under_the_old_name() -> None:
    assert before.ProbeStart is now.ProbeStart and before.PROBE_STARTS is now.PROBE_STARTS
