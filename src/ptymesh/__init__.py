"""ptymesh: ptychography on any number of devices.

The names below are imported when they are first used, so that `import ptymesh` costs nothing. Import it before torch:
torch and numba then share one set of threads, and torch uses large pages (distributed/before_torch.py).
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from ptymesh.distributed.before_torch import prepare

__version__ = version("ptymesh")

prepare()

_PUBLIC: dict[str, str] = {
    "Reconstruction": "ptymesh.run.reconstruction",
    "load": "ptymesh.recipe.python_arguments",
    "reconstruct": "ptymesh.auto.python",
    **dict.fromkeys(
        ("AP", "BH", "CG", "DM", "EPIE", "LBFGS", "LSQML", "MPIE", "RAAR", "RPIE", "SGD", "Adam", "AdamW", "Engine"),
        "ptymesh.engines",
    ),
    **dict.fromkeys(("BadInput", "Diverged", "Interrupted", "PtymeshError"), "ptymesh.errors"),
    "Result": "ptymesh.io.results",
    "spawn": "ptymesh.launcher.spawn",
    "world": "ptymesh.distributed.rank_info",
    "fetch": "ptymesh.io.samples",
    "Measurement": "ptymesh.measurement",
    "Geometry": "ptymesh.geometry",
    "tune": "ptymesh.tune",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    near = next((public for public in _PUBLIC if public.lower() == name.lower()), None)
    raise AttributeError(f"module 'ptymesh' has no attribute {name!r}" + (f"; did you mean {near}?" if near else ""))


def __dir__() -> list[str]:
    return sorted(__all__)
