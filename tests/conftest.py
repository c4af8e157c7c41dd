"""Shared fixtures: the real data, a small problem with known truth, and a pool of ranks that lives for the session."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# what is imported and collected stays: going through it again and again would take a quarter of the start of a worker
gc.disable()

# several workers share the cores: threads of BLAS and OpenMP, of workers and of programs that they start, would spin
# (for the workers, as numpy of this process may be there already)
os.environ.setdefault("OMP_NUM_THREADS", "1")

import ptymesh  # noqa: E402, F401  before torch: threads do not spin where others want the core

# isort: split
import pytest  # noqa: E402
import torch  # noqa: E402

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "conformance"), str(HERE / "fuzz")]

from forked import Forks  # noqa: E402
from ranks import Pool  # noqa: E402
from warm import FORKS  # noqa: E402

# started in the background by a shell without job control, or by nohup, these are ignored, and would be by every child
for _name, _handler in {"SIGINT": signal.default_int_handler, "SIGHUP": signal.SIG_DFL}.items():
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _handler)

# small problems: threads that wait for each other cost more than they gain, and much more on a busy machine
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but n cases of a test marked `sample(n)` as long, so that `make test` has a spread of them."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark is not None and item.get_closest_marker("long") is None:
            name = item.nodeid.partition("[")[0]
            cases.setdefault((name, mark.args[0]), []).append(item)
    for (_, count), found in cases.items():
        kept = {round(i * (len(found) - 1) / max(count - 1, 1)) for i in range(count)}
        for index, item in enumerate(found):
            if index not in kept:
                item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Look for garbage again from here on, but no more among the modules and tests that there are by now."""
    gc.freeze()
    gc.enable()
    # Python tidies up as ever when it ends: after pytest, which looks for garbage twice when it is done
    atexit.register(gc.unfreeze)


@pytest.fixture
def coarse_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn coarsely and without arranging what is in them, which takes most of their time."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from ptymesh.plot.fonts import OwnFont

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)
    first = OwnFont.__init__
    monkeypatch.setattr(OwnFont, "__init__", lambda self, *given, **named: first(self, *given, **{**named, "dpi": 30}))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real data sets (PTYMESH_DATA, or shared/data beside the project); skips where there is none."""
    folder = Path(os.environ.get("PTYMESH_DATA", HERE.parent.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the real data sets are not in {folder}; set PTYMESH_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable]:
    """`ranks(R, fn, *args)` calls module-level fn(world, *args) on R gloo ranks and returns what each returned."""
    pool = Pool(4, tmp_path_factory.mktemp("ranks"))
    yield pool.run
    pool.close()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """What forks programs of Python, where the system can."""
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture(autouse=True)
def fork_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the programs of Python that a test marked `forked` starts, itself or by the package."""
    mark = request.node.get_closest_marker("forked")
    if mark is None or not FORKS:
        yield
    else:
        with request.getfixturevalue("forks").started(*mark.args):
            yield
