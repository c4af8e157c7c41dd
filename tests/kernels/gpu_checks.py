"""What a machine with a GPU is asked in this process: `python gpu_checks.py CHECK cuda|stand-in [PART/PARTS]`.

gpu_slices.py asks. Of a check of many engines, PART of PARTS takes every PARTS-th. What fails is noted with its inputs
(gpu_failures.py), and the check goes on with the next engine. The last line printed begins with passed or failed.

The stand-in is the pretended device, with Triton's interpreter; it must not be imported where there is a real one, as
torch knows one accelerator alone.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import gpu_failures  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import ptymesh  # noqa: E402, F401  before torch
from ptymesh.distributed.layouts.layout import Replicated  # noqa: E402
from ptymesh.distributed.layouts.tiled import Tiled  # noqa: E402
from ptymesh.distributed.world import Solo  # noqa: E402
from ptymesh.engines import ENGINES  # noqa: E402
from ptymesh.kernels import VARIABLE  # noqa: E402
from ptymesh.kernels.gpu.backend import GpuBackend  # noqa: E402
from ptymesh.physics.backend import Backend  # noqa: E402
from ptymesh.physics.elementwise import over_window  # noqa: E402
from ptymesh.physics.propagate import try_transforms  # noqa: E402
from ptymesh.problem import Problem  # noqa: E402
from ptymesh.run import memory  # noqa: E402
from ptymesh.run.loop import Loop  # noqa: E402
from ptymesh.run.state import RunState  # noqa: E402
from ptymesh.storage import memory_budget as room  # noqa: E402
from ptymesh.storage.memory_budget import MemoryBudget  # noqa: E402
from toy import Toy, make, relative, share  # noqa: E402

LAYOUTS = ("replicated", "tiled")


class Machine:
    """The device that is checked, while it is entered."""

    def __init__(self, kind: str, part: tuple[int, int] = (0, 1)) -> None:
        self.kind, self._undo = kind, ExitStack()
        self.real = kind != "stand-in"
        self.engines = list(ENGINES)[part[0] :: part[1]]
        #: What failed, in words, in the order in which it did.
        self.failures: list[str] = []
        self._is_lost = False
        self.device = torch.device("cuda", 0)
        #: Of the scans, which are small for the stand-in, as it is slow.
        self.views, self.window, self.modes, self.blocks = (200, (64, 48), 2, 3) if self.real else (4, (8, 12), 1, 2)
        self.epochs, self.few = (3, 3) if self.real else (2, 1)  # few: where every engine is run

    def __enter__(self) -> Machine:
        if self.real:
            return self
        from interpreted import put_in_place_once
        from pretended import DEVICE, Pretended
        from wait_checks import fused_by_triton

        put_in_place_once()

        self.device, self._pretended = DEVICE, Pretended(late=True)
        patch = self._undo.enter_context(pytest.MonkeyPatch.context())
        fused_by_triton(self._pretended, patch)
        self._undo.enter_context(self._pretended)
        return self

    def __exit__(self, *given: Any) -> None:
        self._undo.__exit__(*given)

    def there(self, value: Any) -> Any:
        """A tensor, an estimate or a model on the device."""
        if isinstance(value, Tensor):
            return value.to(self.device) if self.real else self._pretended.far(value)
        tensors = {f.name: getattr(value, f.name) for f in fields(value) if isinstance(getattr(value, f.name), Tensor)}
        return replace(value, **{name: self.there(tensor) for name, tensor in tensors.items()})

    def here(self, tensor: Tensor) -> Tensor:
        """Its values."""
        return tensor.cpu() if self.real else tensor.here  # type: ignore[attr-defined]

    def problem(
        self, toy: Toy, layout: str = "replicated", room: MemoryBudget | None = None, **options: Any
    ) -> Problem:
        """The toy as a rank with this device sees it, by Triton's kernels."""
        world, scan = Solo(self.device), toy.measurement
        tiled = layout == "tiled"
        owners = Tiled(world, scan.positions, scan.window) if tiled else Replicated(world, scan.positions)
        made = Problem(self.there(toy.model), scan, owners, toy.truth.object.dtype, room)
        if not isinstance(made.backend, GpuBackend) or options:
            made.backend = made.fields.backend = GpuBackend(**options)
        return made

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Note what fails within, with its inputs, and go on; after a lost context nothing is tried any more."""
        if self._is_lost:
            self.failures.append(f"{what}: not tried, as the device's context is lost")
            return
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            gpu_failures.save(f"{sys.argv[1]}-{what}", error)
            said = " ".join(str(error).split())[:200]
            self.failures.append(said if said.startswith(what) else f"{what}: {type(error).__name__}: {said}")
            self._is_lost = gpu_failures.is_context_lost(said)

    def toy(self, **options: Any) -> Toy:
        return make(**{"views": self.views, "window": self.window, "blocks": self.blocks, **options})

    def run(self, problem: Problem, estimate: Any, engine: str, epochs: int = 0, **options: Any) -> RunState:
        return stages(problem, RunState(estimate), engine, epochs or self.epochs, self.views // 2, **options)


def stages(problem: Problem, state: RunState, engine: str, epochs: int, batch: int, **options: Any) -> RunState:
    if ENGINES[engine].model_fields["batch"].annotation is not type(None):
        options = {"batch": batch, **options}
    Loop(problem, state, [ENGINES[engine](epochs=epochs, **options)], seed=7).run()
    return state


def reference(machine: Machine, toy: Toy, engine: str, epochs: int = 0, **options: Any) -> Any:
    """What torch's reference on the CPU ends with."""
    with torch.utils._python_dispatch._disable_current_modes(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "torch")  # nothing is compiled for the CPU
        problem = toy.problem()
        epochs = epochs or machine.epochs
        return stages(problem, RunState(toy.start()), engine, epochs, machine.views // 2, **options).estimate


def compare_engine(machine: Machine, engine: str, layouts: tuple[str, ...], plain: bool = False) -> float:
    """Return the largest relative difference of an engine's object to the reference's, over layouts.

    Args:
        machine: what it runs on.
        engine: its name.
        layouts: that it runs in.
        plain: torch's operations on the device, instead of Triton's kernels.
    """
    wanted, worst = None, 0.0
    for layout in layouts:
        with machine.attempt(f"{engine}, {layout}"):
            toy = machine.toy(modes=machine.modes)
            wanted = reference(machine, toy, engine, machine.few) if wanted is None else wanted
            problem = machine.problem(toy, layout)
            if plain:
                problem.backend = problem.fields.backend = Backend()
            state = machine.run(problem, machine.there(share(toy.start(), problem)), engine, machine.few)
            obtained, expected = machine.here(state.estimate.object), wanted.object
            off = relative(obtained, expected)
            worst = max(worst, off)
            assert off < 1e-7, f"{engine}, {layout}: relative difference {off:.1e} in double precision"
    return worst


def engine(machine: Machine) -> str:
    """One engine, by kernels that are captured where they can be, ends where the reference on the CPU does."""
    off = compare_engine(machine, "rpie", LAYOUTS[:1])
    return f"rpie; relative difference {off:.1e}"


def engines(machine: Machine, plain: bool = False) -> str:
    """Every engine ends where the reference on the CPU does, in both layouts; on the stand-in in either of them."""
    worst = ("", 0.0)
    for engine in machine.engines:
        number = list(ENGINES).index(engine)
        layouts = LAYOUTS if machine.real and not plain else LAYOUTS[number % 2 :][:1]
        worst = max(worst, (engine, compare_engine(machine, engine, layouts, plain)), key=lambda pair: pair[1])
    layouts_said = "both layouts" if machine.real and not plain else "either layout"
    return f"{len(machine.engines)} engines, {layouts_said}; largest relative difference {worst[1]:.1e} ({worst[0]})"


def torch_engines(machine: Machine) -> str:
    """The same by torch's operations on the device, which is what there is where Triton's kernels are not."""
    return engines(machine, plain=True)


def resumed(machine: Machine) -> str:
    """Every engine goes on from its memory, all of which comes back on the device, one in the other layout."""
    first = machine.few
    for engine in machine.engines:
        number = list(ENGINES).index(engine)
        with machine.attempt(engine):
            toy = machine.toy()
            problem = machine.problem(toy, LAYOUTS[number % 2])
            state = machine.run(problem, machine.there(share(toy.start(), problem)), engine, first)
            state.engines[0] = {name: kept.to(machine.device) for name, kept in state.engines[0].items()}
            state.stage, state.epoch = 0, first
            stages(problem, state, engine, 2 * first, machine.views // 2)
            obtained = machine.here(state.estimate.object)
            expected = reference(machine, toy, engine, 2 * first).object
            off = relative(obtained, expected)
            assert off < 1e-6, f"{engine}: relative difference {off:.1e} to a run that was not interrupted"
    return f"{len(machine.engines)} engines, in either layout"


def bits(machine: Machine) -> str:
    """The same bits twice, in any chunks, launched one by one or as graphs, in both layouts."""
    few = 3 if machine.real else 1
    tried = [engine for engine in ("rpie", "lsqml", "adam", "dm", "cg") if engine in machine.engines]
    for engine in tried:
        with machine.attempt(engine):
            found = []
            for limit, layout, capture in ((0, "replicated", True), (0, "replicated", True), (few, "tiled", False)):
                toy = machine.toy(modes=machine.modes, dtype=torch.complex64)
                problem = machine.problem(toy, layout, capture=capture)
                problem.loader.chunk_sizes.limit = limit
                state = machine.run(problem, machine.there(share(toy.start(), problem)), engine)
                found.append((machine.here(state.estimate.object), machine.here(state.estimate.probe)))
            for what, other in (("twice", found[1]), ("in other chunks and tiles, one by one", found[2])):
                same = all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
                off = relative(other[0], found[0][0])
                assert same, f"{engine} {what}: other bits, relative difference {off:.1e}"
    return ", ".join(tried)


def transforms(machine: Machine) -> str:
    """Whether a wave's transform, and a view's sum, depend on how many there are."""
    odd = [
        f"{h} x {w} {str(dtype)[6:]}"
        for h, w in ((32, 32), (96, 80), (128, 128), (192, 192), (256, 256), (194, 194))[: 6 if machine.real else 2]
        for dtype in (torch.complex64, torch.complex128)
        if not try_transforms(machine.device, dtype, (h, w))
    ]
    views = machine.there(torch.randn(33, 64, 48, generator=torch.Generator().manual_seed(1)))
    whole = machine.here(over_window(views))
    for count in (1, 2, 3, 8):
        assert torch.equal(machine.here(over_window(views[:count])), whole[:count]), f"sums of {count} views differ"
    return f"sums do not; transforms do for {', '.join(odd)}: in groups then" if odd else "neither does"


def waits(machine: Machine) -> str:
    """No batch but a stage's first waits for the device."""
    seen, step = [0], memory.step

    def watched(*given: Any, first: bool) -> None:
        if first:
            return step(*given, first=first)
        seen[0] += 1
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(*given, first=first)
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    if not machine.real:
        from wait_checks import within_epochs
    with pytest.MonkeyPatch.context() as patch:
        if machine.real:
            patch.setattr(memory, "step", watched)
        for engine in machine.engines:
            if engine in ("lbfgs", "cg", "bh"):  # whose line searches decide by values, on the host
                continue
            with machine.attempt(engine):
                toy = machine.toy()
                problem = machine.problem(toy)
                machine.run(problem, machine.there(toy.start()), engine, machine.few, positions={"gain": 1})
                if not machine.real:
                    found = within_epochs(machine._pretended)
                    assert not found, f"{engine}: {found[0]}"
    assert seen[0] or not machine.real
    return "an epoch under set_sync_debug_mode('error')" if machine.real else "as the stand-in counts them"


def graphs(machine: Machine) -> str:
    """Sweeps are captured, and not refused."""
    toy = machine.toy()
    problem = machine.problem(toy)
    machine.run(problem, machine.there(toy.start()), "rpie", epochs=4)
    assert isinstance(problem.backend, GpuBackend) and problem.backend.graphs is not None
    assert not problem.backend.graphs._refused, "the driver refused to capture; see what was printed"
    count = len(problem.backend.graphs._graphs)
    assert count, "no sweep was captured"
    return f"{count} of rpie"


def fetched(machine: Machine) -> str:
    """Patterns from the host and from a disk bring the same bits."""
    views, found = max(machine.views, 18), []
    toy = machine.toy(views=views, dtype=torch.complex64)
    frame = np.dtype(toy.measurement.patterns.dtype).itemsize * machine.window[0] * machine.window[1]
    with tempfile.TemporaryDirectory() as folder:
        some = MemoryBudget(frame * max(16, views // 3), Path(folder))  # 16 are the fewest that it may hold
        for share_, where in ((0.7, None), (0.0, None), (0.7, some)):
            with pytest.MonkeyPatch.context() as patch:
                if not machine.real:
                    from pretended import fetching

                    fetching(patch)
                patch.setattr(room, "DEVICE_SHARE", share_)
                problem = machine.problem(toy, room=where)
                state = stages(problem, RunState(machine.there(toy.start())), "rpie", machine.epochs, views // 2)
                found.append((problem.loader.patterns.kind, machine.here(state.estimate.object)))
                problem.loader.patterns.close()
    assert [kind for kind, _ in found] == ["device", "host", "disk"]
    assert all(torch.equal(obj, found[0][1]) for _, obj in found), "other bits"
    return "device, host, disk"


CHECKS: dict[str, Callable[[Machine], str]] = {
    check.__name__: check
    for check in (engine, engines, torch_engines, resumed, bits, transforms, waits, graphs, fetched)
}


def main() -> None:
    name, kind, *parts = sys.argv[1:]
    part, _, of = (parts or ["0/1"])[0].partition("/")
    torch.set_num_threads(2)
    said = ""
    with Machine(kind, (int(part), int(of))) as machine:
        with machine.attempt(name):
            said = f"passed {CHECKS[name](machine)}"
        if machine.failures:
            said = f"failed {'; '.join(machine.failures)}"
    print(f"\n{said}")


if __name__ == "__main__":
    main()
