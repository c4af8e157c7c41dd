"""Registers and spills of Triton's kernels, compiled for GPUs that are not here, may only become less.

NVIDIA's assembler comes with Triton; AMD's numbers stand in the assembly. A warp of 4 x 32 threads with 128 registers
each leaves room for 16 warps on a processor.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed (pip install 'ptymesh[gpu]')")

from test_triton import SIGNATURES, assembly

#: Registers of a thread by kernel: sm_80, sm_90, sm_100, gfx942 (vector registers). What is reached is the limit.
REGISTERS = {
    "summed": (32, 40, 32, 14),
    "exit_waves": (72, 72, 72, 34),
    "ramped": (64, 64, 64, 31),
    "detector": (64, 64, 58, 32),
    "brightness": (19, 19, 19, 9),
    "step_slopes": (55, 40, 48, 110),
    "step": (54, 56, 55, 29),
    "to_object": (163, 145, 143, 83),
    "to_probe": (157, 154, 154, 116),
    "to_probes": (72, 72, 72, 34),
    "along_positions": (176, 180, 180, 64),
    "step_systems": (140, 142, 142, 58),
    "clear": (90, 90, 90, 28),
    "narrow": (188, 182, 180, 94),
    "write": (113, 96, 94, 55),
    "add_quotient": (58, 48, 50, 31),
    "bring": (48, 48, 48, 24),
}
NVIDIA = (80, 90, 100)


def kernel_of(name: str) -> Any:
    (found,) = (kernel for kernel in SIGNATURES if kernel.__name__ == name)
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", REGISTERS)
def test_registers_and_spills(name: str, tmp_path: Path) -> None:
    from triton.backends.nvidia.compiler import get_ptxas

    for place, number in enumerate(NVIDIA):
        ptx = assembly(kernel_of(name), ("cuda", number, 32), "ptx", {})
        written = tmp_path / f"{number}.ptx"
        written.write_text(ptx)
        arch = re.findall(r"\.target (sm_\w+)", ptx)[0]
        command = [get_ptxas(number).path, "-v", f"-arch={arch}", str(written), "-o", str(tmp_path / "out")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        (used,) = re.findall(r"Used (\d+) registers", said)
        assert int(used) <= REGISTERS[name][place], f"sm_{number}"
        assert re.findall(r"(\d+) bytes spill", said) == ["0", "0"], said
        # roots and quotients of single precision are within 2 of their last bits; anything else is to be exact
        approximate = set(re.findall(r"\b(\w+)\.(?:approx|full)\b", ptx))
        assert approximate <= {"sqrt", "div"}, f"sm_{number}: {approximate}"
    text = assembly(kernel_of(name), ("hip", "gfx942", 64), "amdgcn", {})
    found = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)", text))
    assert int(found["vgpr_count"]) <= REGISTERS[name][-1]
    assert found["vgpr_spill_count"] == found["sgpr_spill_count"] == "0"


def test_every_kernel_has_a_limit() -> None:
    assert {kernel.__name__ for kernel in SIGNATURES} == set(REGISTERS)
