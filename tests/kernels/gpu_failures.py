"""What is kept of a failure on a GPU, so that it can be mended without a second run.

In the folder that PTYMESH_FAILURES names, each failure has one of its own: the traceback with Triton's error, tensors
and arrays of the frames that it went through (npz), the PTX of the kernels that this process compiled, and versions.
As a plugin of pytest (`-p gpu_failures`) this does it for tests. After an error that takes the device's context away,
further tests of the process are skipped, as all would fail for the same reason.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

FOLDER = "PTYMESH_FAILURES"
#: Bytes of arrays that are kept of one failure, and failures of which anything is kept.
MOST_BYTES, MOST_FAILURES = 8 << 20, 6
#: Words of errors after which a process can use its GPU no more.
LOST = ("illegal memory access", "misaligned address", "device-side assert", "unspecified launch failure")
#: Versions that a report needs.
PACKAGES = ["ptymesh", "torch", "triton", "numpy", "scipy", "h5py", "numba", "pydantic"]


def save(name: str, error: BaseException) -> Path | None:
    """Keep what tells of an error, and return the folder; None where no folder is named or enough is kept already."""
    if not (home := os.environ.get(FOLDER)):
        return None
    folder = Path(home) / re.sub(r"[^\w.=+-]+", "-", name).strip("-")[:100]
    if folder.exists() or (Path(home).is_dir() and len(list(Path(home).iterdir())) >= MOST_FAILURES):
        return None
    folder.mkdir(parents=True)
    said = "".join(traceback.format_exception(error))
    (folder / "traceback.txt").write_text(said, encoding="utf-8")
    (folder / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n", encoding="utf-8")
    with suppress(Exception):
        save_inputs(folder, error.__traceback__)
    with suppress(Exception):
        save_kernels(folder, said)
    return folder


def is_context_lost(said: str) -> bool:
    """Return True after an error that leaves a process without its GPU."""
    return any(word in said for word in LOST)


def save_inputs(folder: Path, trace: TracebackType | None) -> None:
    """Write the arrays of each of our frames, and what else the frames held in words, to as many bytes as are allowed.

    The innermost frames come first, as there is what was compared.
    """
    import numpy as np

    frames = [(frame, line) for frame, line in traceback.walk_tb(trace)][::-1]
    budget, words = MOST_BYTES, []
    for number, (frame, line) in enumerate(frames):
        file = Path(frame.f_code.co_filename)
        words.append(f"{file}:{line} {frame.f_code.co_name}")
        if not {"ptymesh", "tests"} & set(file.parts):
            continue
        arrays = {}
        for name, value in list(frame.f_locals.items()):
            if name.startswith("@"):  # what pytest makes of an assertion
                continue
            words.append(f"    {name} = {described(value)}")
            for key, array in arrays_in(name, value):
                if array.nbytes <= budget:
                    budget -= array.nbytes
                    arrays[f"{key}_" if key == "file" else key] = array  # numpy's own word
                else:
                    words.append(f"    {key}: not kept, {array.nbytes} bytes")
        if arrays:
            np.savez_compressed(folder / f"frame-{number}-{frame.f_code.co_name.strip('<>')}.npz", **arrays)
    (folder / "frames.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def described(value: Any) -> str:
    """Return what a value is: of tensors dtype, shape and device, else its first characters."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} on {value.device}"
    with suppress(Exception):
        return " ".join(repr(value).split())[:200]
    return type(value).__name__


def arrays_in(name: str, value: Any, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield the numeric arrays in a value, by dotted names: tensors, arrays, and those in what holds them."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        with suppress(Exception):  # a context that is lost gives no values
            value = value.detach().cpu().resolve_conj()
            value = value.float() if value.dtype == torch.bfloat16 else value
            yield name, value.numpy()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield name, value
    elif depth:
        parts: dict[str, Any] = {}
        if isinstance(value, Mapping):
            parts = {str(key): part for key, part in list(value.items())[:50]}
        elif isinstance(value, list | tuple):
            parts = {str(number): part for number, part in enumerate(value[:50])}
        elif is_dataclass(value) and not isinstance(value, type):
            parts = {field.name: getattr(value, field.name, None) for field in fields(value)}
        elif type(value).__name__ == "GpuCase":
            parts = vars(value)
        for key, part in parts.items():
            yield from arrays_in(f"{name}.{key}", part, depth - 1)


def save_kernels(folder: Path, said: str) -> None:
    """Write the PTX and Triton's last dialect of compiled kernels: of those that the error names, or of all."""
    found = dict(compiled_kernels())
    named = {name: asm for name, asm in found.items() if re.search(rf"\b{name.rpartition('-')[0]}\b", said)}
    for name, asm in (named or found).items():
        for kind in ("ptx", "amdgcn", "ttgir"):
            if isinstance(asm.get(kind), str):
                (folder / f"{name}.{kind}").write_text(asm[kind], encoding="utf-8")


def compiled_kernels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and code of every kernel of ptymesh that Triton has compiled in this process."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("ptymesh.kernels.triton_"):
            continue
        for function, jitted in vars(module).items():
            caches = getattr(jitted, "device_caches", None)
            if not isinstance(caches, dict) or getattr(jitted, "__module__", name) != name:
                continue
            # what a cache consists of differs between Triton's versions; kernels are what has an `asm`
            parts = [
                part for cache in list(caches.values()) for part in (cache if isinstance(cache, tuple) else [cache])
            ]
            kernels = [k for part in parts if isinstance(part, dict) for k in part.values() if hasattr(k, "asm")]
            for number, kernel in enumerate(kernels):
                yield f"{function}-{number}", dict(kernel.asm)


def versions() -> dict[str, str]:
    """Return versions of what computes, by name; asks neither torch nor the driver."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


_lost_by = ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _lost_by:
        pytest.skip(f"the device's context was lost in {_lost_by}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    global _lost_by
    yield
    if call.excinfo is not None and not isinstance(call.excinfo.value, pytest.skip.Exception):
        if is_context_lost(str(call.excinfo.value)):
            _lost_by = item.name
        save(item.name, call.excinfo.value)
