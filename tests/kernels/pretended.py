"""A device that is none: finds what would go wrong on a GPU, or be waited for, on a machine that has no GPU.

    with Pretended() as device: ...      # DEVICE stands for it, torch's type for devices that others add (privateuse1)

A `Far` tensor says that it lives on the device, and has its values in a tensor of the host. Every operation of torch on
one is looked at first. As on a real device,

- it waits where values come to the host (`item`, `bool`, `tolist`, `cpu`), where a size follows from values (boolean
  masks, `nonzero`), and where something is copied to or from memory of the host that is not page-locked or without
  `non_blocking`; `waits` are the places;
- operations of tensors here and there are refused;
- with `late`, nothing is done before somebody waits for it: page-locked memory that is written again too early, or read
  too early, shows as wrong numbers, and memory that nothing has been written to is not a number;
- sums of few rows, and Fourier transforms of few waves, round otherwise than those of many, as CUDA's do, which take
  another way through memory for them;
- `launched` counts what would be launched, by name.

Operations are looked at by a dispatch mode and not registered for the device one by one (torch.library), as the mode
also sees those that torch makes up of others, and those of the host alone. That kernels of torch itself wait (in linear
algebra, say) is not seen.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

import ptymesh
from ptymesh.distributed import devices
from ptymesh.storage import fetched

PACKAGE = Path(ptymesh.__file__).parent
backend_registration._setup_privateuseone_for_python_backend("pretended")
DEVICE, HOST = torch.device("pretended", 0), torch.device("cpu")
aten = torch.ops.aten
#: What looks at values to find a size, or hands a value to the host.
READS = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_dim", "equal", "is_nonzero"}
AT_ONCE = {aten._conj.default: aten.conj_physical.default, aten._neg_view.default: aten.neg.default}
#: What launches nothing, beside views; what takes memory that holds nothing yet.
MEMORY = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
UNLAUNCHED = MEMORY | {"_unsafe_view", "_reshape_alias", "lift_fresh"}
#: Sums and waves, fewer than which round otherwise than many.
FEW_SUMS, FEW_WAVES = 16, 4
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class Far(Tensor):
    """A tensor of the device; `memory` is that of the host which stands for it."""

    memory: Tensor
    device_used: Pretended
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor, used: Pretended) -> Far:
        made: Far = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=DEVICE,
        )
        made.memory, made.device_used = here, used
        return made

    @property
    def here(self) -> Tensor:
        """Its values, once all has been done; no wait."""
        self.device_used.finish()
        return self.memory

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("only within the device")

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_of_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_of_tensors(index), value)

    def tolist(self) -> Any:
        """As torch's."""
        self.device_used.wait("tolist")
        with _disable_current_modes():
            return self.here.tolist()

    def record_stream(self, stream: Any) -> None:
        """Its memory is not used again before the only stream comes to that."""

    def numpy(self, **_: Any) -> Any:
        """As of a GPU's."""
        raise TypeError("can't convert a tensor of the device to numpy; use cpu() first")


class Inline:
    """A pool of threads that does at once what it is given: the device knows of one thread alone."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Done."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: Any) -> None:
        """Nothing is left."""


def fetching(patch: Any) -> None:
    """Patterns that lie elsewhere are brought to the device as to GPUs, in the caller's thread."""
    patch.setattr(fetched, "ThreadPoolExecutor", Inline)
    patch.setattr(fetched, "KINDS", (*devices.KINDS, DEVICE.type))


class Pretended(TorchDispatchMode):
    """The device, while it is entered; `waits`: what waited, with the functions of ptymesh that led there."""

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late = late
        self._queue: list[Callable[[], Any]] = []  # what has not been done yet
        self.launched: Counter[str] = Counter()
        self.variants: set[Any] = set()  # of Triton's kernels: what each would be compiled for
        self.waits: list[tuple[str, tuple[str, ...]]] = []
        #: Operations so far, and of each event that was waited for, how many had been queued since it was recorded.
        self.operations = 0
        self.awaited: list[int] = []
        #: What is launched while it is captured, and by address the memory that it uses, with what it held before.
        self._launches: list[Callable[[], None]] | None = None
        self._before: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Pretended:
        for make in (torch.tensor, torch.as_tensor):
            self._patch(torch, make.__name__, _made_here(make))
        self._patch(devices, "QUEUED", [DEVICE.type])
        torch.get_device_module.cache_clear()
        self._undo.callback(torch.get_device_module.cache_clear)
        module = backend_registration._DummyBackendModule()
        # there is one queue, in which everything comes after what was given to it before
        stream = SimpleNamespace(wait_event=lambda event: None)
        module.Event, module.current_stream, module.Stream = self._event, lambda device: stream, lambda device: stream
        module.stream = module.device = lambda of: contextlib.nullcontext()
        self._patch(torch, DEVICE.type, module)
        self._patch(Tensor, "pin_memory", _pinned)
        return super().__enter__()  # type: ignore[return-value]

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, value, at)
        self._undo.close()

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        kept = getattr(owner, name, None)
        setattr(owner, name, value)
        self._undo.callback(setattr, owner, name, kept) if kept is not None else self._undo.callback(
            delattr, owner, name
        )

    def far(self, tensor: Tensor) -> Far:
        """A copy on the device."""
        return Far(tensor.clone(), self)

    def wait(self, what: str) -> None:
        """Notes a wait."""
        self.waits.append((what, tuple(_stack())))
        self.finish()

    def queue(self, work: Callable[[], Any]) -> None:
        """Something that the device is to do in turn."""
        self._queue.append(work)
        if not self.late:
            self.finish()

    def finish(self) -> None:
        """Does what has been queued."""
        queue, self._queue = self._queue, []
        with _disable_current_modes():
            for work in queue:
                work()

    def _event(self) -> Any:
        event = SimpleNamespace()

        def synchronize() -> None:
            self.awaited.append(self.operations - event.at)
            self.finish()

        event.record = lambda stream: setattr(event, "at", self.operations)
        event.synchronize = synchronize
        return event

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pinned, target = kwargs.pop("pin_memory", None), kwargs.get("device")
        target = None if target is None else torch.device(target).type
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        there = [x for x in given if isinstance(x, Far)]
        self.operations += 1
        waits = len(self.waits)
        self._look(function, args, kwargs, target, given, there)
        waited = len(self.waits) > waits
        if target is not None:
            kwargs["device"] = HOST
        own = {id(x.memory): x for x in there}
        # in here nobody would see to a conjugate that is only noted
        function = AT_ONCE.get(function, function)
        to_host = bool(there) and target == HOST.type
        result_is_far = target == DEVICE.type or (bool(there) and target is None)
        if function is aten.copy_.default:
            result_is_far, to_host = isinstance(args[0], Far), not isinstance(args[0], Far) and bool(there)
        written = [_writes(a) for a in function._schema.arguments]
        values = tuple(tree_map(_here if w else _host_value, x) for x, w in zip(args, written, strict=False))
        named = {name: tree_map(_here, x) for name, x in kwargs.items()}
        work = _rounding_otherwise(function, values, named)
        if result_is_far or to_host:
            self._count(function, args)
        far = result_is_far or to_host
        out = self.launch(work, far, there) if waited else self._done(function, work, args, kwargs, far, there)

        def dressed(x: Any) -> Any:
            if not isinstance(x, Tensor) or (id(x) not in own and not result_is_far):
                return x
            return own.get(id(x)) if id(x) in own else Far(x, self)

        if pinned:
            out.page_locked = True
        return tree_map(dressed, out)

    def _count(self, function: Any, args: Any) -> None:
        """What a GPU would launch; a transform that is to be scaled takes a second pass over its waves."""
        name = function._opname
        if self._launches is None and not function.is_view and name not in UNLAUNCHED:
            self.launched[name] += 1 + (name.startswith("_fft") and args[2] != 0)

    def _done(self, function: Any, work: Callable[[], Any], args: Any, kwargs: Any, far: bool, there: list) -> Any:
        """What `work` returns, now or, where that is the device's affair, when somebody waits for it."""
        if not far or not self.late or self._launches is not None or function.is_view:
            return self.launch(work, far, there)
        name = function._opname
        if name in READS or name in UNLAUNCHED:
            out = self.launch(work, far, there)
            if name in MEMORY and out.dtype.is_floating_point | out.dtype.is_complex:
                out.fill_(float("nan"))
            return out
        mutated = [_writes(a) for a in function._schema.arguments]
        if any(mutated):
            self._queue.append(work)
            given = [*args, *(kwargs.get(a.name) for a in function._schema.arguments[len(args) :])]
            found = tuple(_here(g) for g, m in zip(given, mutated, strict=True) if m)
            return found[0] if len(found) == 1 else found
        try:
            shapes = function(*tree_map(_shape_of, args), **{**tree_map(_shape_of, kwargs), **_on_meta(kwargs)})
        except (NotImplementedError, RuntimeError):  # the size follows from values, or torch does not tell it
            self.finish()
            return self.launch(work, far, there)
        out = tree_map(_unwritten, shapes)

        def later() -> None:
            for made, into in zip(tree_leaves(work()), tree_leaves(out), strict=True):
                if isinstance(into, Tensor):
                    into.copy_(made)

        self._queue.append(later)
        return out

    def launch(self, work: Callable[[], Any], far: bool, given: list[Far], kernel: str = "") -> Any:
        """What the device does with these tensors; far: whether it is of the device at all. kernel: its name, where it
        writes into what is given, and nothing else."""
        if kernel and self._launches is None:
            self.launched[kernel] += 1
            if self.late:
                self._queue.append(work)
                return None
        if self._launches is None or not far:
            return work()
        for x in given:
            storage = _storage(x.memory)
            self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        out = work()
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        for storage in map(_storage, made):
            self._before.setdefault(storage.data_ptr(), (storage, None))

        def again() -> None:
            for x, new in zip(made, (x for x in tree_leaves(work()) if isinstance(x, Tensor)), strict=True):
                if new.data_ptr() != x.data_ptr():
                    x.copy_(new)

        self._launches.append(again)
        return out

    def captured(self, work: Callable[[], Any], device: Any, pool: Any) -> tuple[Callable[[], None], Any, Any]:
        """As `graphs.captured`: nothing has happened, and memory from within holds nothing until it is launched.

        Numbers of the host stay what they are now; where something would wait, it is refused.
        """
        self.finish()
        self._launches, self._before, waits = [], {}, len(self.waits)
        try:
            result, launches = work(), self._launches
        finally:
            self._launches = None
            with _disable_current_modes():
                for storage, before in self._before.values():
                    storage.copy_(storage.new_full((), 0xFF) if before is None else before)
        if len(self.waits) > waits:
            raise RuntimeError("operation not permitted when stream is capturing")

        def replay() -> None:
            self.operations += 1
            self.launched["graph"] += 1
            with _disable_current_modes():
                for again in launches:
                    self._queue.append(again)
                if not self.late:
                    self.finish()

        return replay, result, pool or (0, 1)

    def _look(self, function: Any, args: Any, kwargs: Any, target: str | None, given: list, there: list) -> None:
        """Notes a wait; refuses tensors here and there."""
        name = function._opname
        if name == "_to_copy":
            self._sent(args[0], target, args[0], bool(kwargs.get("non_blocking")))
        elif name == "copy_":
            self._sent(args[1], args[0].device.type, args[0], len(args) > 2 and bool(args[2]))
        elif there and name in READS:
            self.wait(name)
        elif there and name in INDEXED:
            for index in (i for i in args[1] if i is not None):
                if index.dtype == torch.bool or not isinstance(index, Far):
                    self.wait(f"{name} by {'a mask' if index.dtype == torch.bool else 'places of the host'}")
        elif there:
            strangers = [x for x in given if not isinstance(x, Far) and x.dim()]
            assert not strangers, f"{name} of tensors here and there: {strangers[0].shape}"

    def _sent(self, source: Tensor, to: str | None, into: Tensor, non_blocking: bool) -> None:
        """A copy from here to there or back: a wait, unless it takes its turn."""
        if to is None or to == source.device.type:
            return
        memory = source if to == DEVICE.type else into
        if not (non_blocking and getattr(memory, "page_locked", False)):
            self.wait(f"a copy to {'the device' if to == DEVICE.type else 'the host'}")


def _storage(x: Tensor) -> Tensor:
    """All bytes that a tensor of the host is part of."""
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())  # type: ignore[call-overload]


def _of_tensors(index: Any) -> Any:
    """Lists and arrays in an index as tensors of the host, which torch would make of them on the device."""
    if isinstance(index, tuple):
        return tuple(_of_tensors(i) for i in index)
    return torch.as_tensor(index) if isinstance(index, list | np.ndarray) else index


def _made_here(make: Any) -> Any:
    """torch.tensor or torch.as_tensor, which make values here first and send them."""

    def made(values: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        if isinstance(values, Far):
            return values.to(device=device or DEVICE, dtype=dtype or values.dtype)
        host: Tensor = make(values, dtype=dtype)
        return host if device is None else host.to(device)

    return made


def _here(x: Any) -> Any:
    return x.memory if isinstance(x, Far) else x


def _host_value(x: Any) -> Any:
    """What an operation is given: numbers of the host (0-d) as they are now, memory of the host as it will be."""
    if isinstance(x, Tensor) and not isinstance(x, Far) and x.dim() == 0:
        return x.clone()
    return _here(x)


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _shape_of(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return (
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if x.dim() or isinstance(x, Far) else x
    )


def _on_meta(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"device": torch.device("meta")} if kwargs.get("device") is not None else {}


def _unwritten(shape: Any) -> Any:
    """Memory of the host that holds nothing yet."""
    if not isinstance(shape, Tensor):
        return shape
    made = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)
    return made.fill_(float("nan")) if made.dtype.is_floating_point or made.dtype.is_complex else made.fill_(1)


def _rounding_otherwise(function: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    """The operation; sums of few rows and transforms of few waves in another order."""
    name = function._opname
    if name == "sum" and len(args) > 1 and args[1] and args[0].dtype.is_floating_point:
        axes = [axis % args[0].dim() for axis in args[1]]
        if args[0].numel() and args[0].numel() // max(1, _product(args[0].shape[a] for a in axes)) < FEW_SUMS:
            return lambda: function(args[0].flip(axes), *args[1:], **kwargs)
    if name == "_fft_c2c" and len(args[1]) == 2:
        y, x = (axis % args[0].dim() for axis in args[1])
        if args[0].numel() // max(1, args[0].shape[y] * args[0].shape[x]) < FEW_WAVES:
            return lambda: function(function(args[0], [y], *args[2:]), [x], *args[2:])
    return lambda: function(*args, **kwargs)


def _product(sides: Any) -> int:
    count = 1
    for side in sides:
        count *= int(side)
    return count


def _pinned(tensor: Tensor) -> Tensor:
    made = tensor.clone()
    made.page_locked = True  # type: ignore[attr-defined]
    return made


def _stack() -> Iterator[str]:
    """Functions of ptymesh that are running, the innermost first: `problem/problem.py:chunks`."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            yield f"{path.relative_to(PACKAGE).as_posix()}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
