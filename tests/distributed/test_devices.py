"""Which device a rank gets, on machines that are not here: torch's answers are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ptymesh.distributed import devices
from ptymesh.distributed.devices import backend_for, bindings, device_for, memory_nodes, parse_cpus, say_cpus
from ptymesh.errors import BadInput

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """machine(cuda=2, backends=("gloo", "nccl")) pretends that this is there."""

    def make(
        cuda: int = 0, xpu: int = 0, mps: bool = False, name: str = "H100", backends: tuple[str, ...] = ()
    ) -> None:
        for kind, count in (("cuda", cuda), ("xpu", xpu)):
            monkeypatch.setattr(getattr(torch, kind), "is_available", lambda count=count: count > 0)
            monkeypatch.setattr(getattr(torch, kind), "device_count", lambda count=count: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(dist, "is_backend_available", lambda backend: backend in ("gloo", *backends))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return make


def test_auto(machine: Machine) -> None:
    machine()
    assert device_for("auto", 3, 4) == torch.device("cpu")
    machine(xpu=2)
    assert device_for("auto", 1, 2) == torch.device("xpu", 1)
    machine(cuda=2, xpu=2)
    assert device_for("auto", 1, 2) == torch.device("cuda", 1)
    machine(mps=True)
    assert device_for("auto", 0) == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "local_size", "sentence"),
    [
        ("gpu", 1, "'gpu' is unknown; give auto, cpu, cuda, cuda:N, xpu or xpu:N"),
        ("mps", 1, "Apple's GPUs .* have no float64, in which losses are summed; use --device cpu"),
        ("xpu", 1, "no XPU device here; use --device cpu"),
        ("cuda:2", 1, "'cuda:2' is not there; this machine has cuda:0 to cuda:1"),
        ("cuda:x", 1, "'cuda:x' is not there"),
        ("cuda:1", 2, "names one GPU; leave the number out"),
        ("cuda", 3, "3 ranks on this machine have 2 CUDA devices; use --ranks 2 or fewer, or .*--backend gloo"),
    ],
)
def test_refused(machine: Machine, name: str, local_size: int, sentence: str) -> None:
    machine(cuda=2)
    with pytest.raises(BadInput, match=sentence):
        device_for(name, 0, local_size)


def test_hidden_devices_mean_the_cpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    machine()
    assert device_for("auto", 0) == torch.device("cpu")
    with pytest.raises(BadInput, match="CUDA_VISIBLE_DEVICES is empty, which hides them all"):
        device_for("cuda", 0)


def test_the_only_visible_device_is_the_ranks_own(machine: Machine) -> None:
    """srun --gpus-per-task=1 shows each rank one, which is number 0 for all of them."""
    machine(cuda=1, backends=("nccl",))
    assert [device_for("cuda", rank, 4).index for rank in range(4)] == [0] * 4


class Seen:
    """What a device module says of the GPU that a rank sees."""

    def __init__(self, uuid: str | None) -> None:
        self.uuid = uuid

    def get_device_properties(self, device: torch.device) -> Seen:
        return self


def test_ranks_that_see_the_same_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store, first = dist.HashStore(), torch.device("cuda", 0)

    def see(uuid: str | None, visible: str) -> None:
        monkeypatch.setattr(torch, "get_device_module", lambda device: Seen(uuid))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    see("GPU-1", "0")
    devices.claimed(store, 0, first)
    devices.claimed(store, 0, first)
    see("GPU-2", "1")
    devices.claimed(store, 1, first)
    see("GPU-1", "0")
    with pytest.raises(BadInput, match=r"Ranks 0 and 3 would use the same GPU \(.* GPU-1\), and NCCL needs one"):
        devices.claimed(store, 3, first)
    for rank, visible in ((4, "2"), (5, "3")):  # where the driver has no UUIDs
        see(None, visible)
        devices.claimed(store, rank, first)
    with pytest.raises(BadInput, match="Ranks 5 and 6"):
        devices.claimed(store, 6, first)


def test_a_gpu_that_cannot_compute_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some Intel GPUs hold such numbers, but do not divide them."""

    def ones(*shape: int, **how: object) -> torch.Tensor:
        raise RuntimeError("Required aspect fp64 is not supported on the device")

    monkeypatch.setattr(torch, "ones", ones)
    with pytest.raises(BadInput, match="Device xpu has no float64"):
        devices.check_sums(torch.device("xpu"))


def test_free_memory_of_any_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Module:
        @staticmethod
        def mem_get_info(device: torch.device) -> tuple[int, int]:
            asked.append(device)
            return 5, 9

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    assert devices.free_bytes(torch.device("xpu", 1)) == devices.free_bytes(torch.device("cuda", 0)) == 5
    assert asked == [torch.device("xpu", 1), torch.device("cuda", 0)]


def test_gloo_shares_devices_and_says_so(machine: Machine) -> None:
    machine(cuda=2, backends=("nccl",))
    assert [device_for("cuda", rank, 4, "gloo").index for rank in range(4)] == [0, 1, 0, 1]
    assert device_for("cuda:1", 0, 4, "gloo").index == 1
    assert devices.shared_by(torch.device("cuda", 0), 4) == "4 ranks share 2 CUDA devices through gloo"
    assert devices.shared_by(torch.device("cuda", 0), 2) == devices.shared_by(torch.device("cpu"), 9) == ""


def test_slices(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(cuda=1, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", backends=("nccl",))
    assert device_for("cuda", 0, 1) == torch.device("cuda", 0), "one task on a slice is fine"
    with pytest.raises(BadInput, match="MIG slice, and slices cannot form one NCCL group"):
        device_for("cuda", 1, 2)
    machine(cuda=2, name="NVIDIA H100 MIG 1g.10gb", backends=("nccl",))
    with pytest.raises(BadInput, match=r"MIG slice, and slices cannot form one NCCL group; run one task .*gloo"):
        device_for("cuda", 1, 2)
    assert device_for("cuda", 1, 2, "gloo").index == 1
    machine(cuda=1, name="hidden")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-aaa,MIG-bbb")
    assert devices.is_slice(torch.device("cuda", 0)) and not devices.is_slice(torch.device("cpu"))
    assert [devices.visible_slice(rank) for rank in range(3)] == ["MIG-aaa", "MIG-bbb", "MIG-aaa"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert devices.visible_slice(1) is None


def test_backends(machine: Machine) -> None:
    cpu, cuda, xpu = torch.device("cpu"), torch.device("cuda"), torch.device("xpu")
    machine(backends=("nccl", "xccl"))
    assert [backend_for(device) for device in (cpu, cuda, xpu)] == ["gloo", "nccl", "xccl"]
    assert backend_for(cuda, "gloo") == "gloo" and backend_for(torch.device("mps")) == "gloo"
    with pytest.raises(BadInput, match="Backend nccl does not speak for cpu; use --backend auto or gloo"):
        backend_for(cpu, "nccl")
    with pytest.raises(BadInput, match="'mpi' is unknown; give auto, gloo, nccl, xccl"):
        backend_for(cpu, "mpi")
    machine()
    assert backend_for(cuda) == "gloo", "as on Windows"
    with pytest.raises(BadInput, match="no backend nccl; use --backend gloo"):
        backend_for(cuda, "nccl")


def test_a_device_without_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.check_sums(torch.device("cpu")) == torch.device("cpu")

    def refuse(*_: object, **__: object) -> None:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(BadInput, match="Device mps:0 has no float64"):
        devices.check_sums(torch.device("mps", 0))


def test_cores_of_memory_nodes(tmp_path: Path) -> None:
    for node, cpus in ((0, "0-3,16-19"), (1, "4-7"), (10, "8-9"), (2, "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus + "\n")
    assert memory_nodes(tmp_path) == [[0, 1, 2, 3, 16, 17, 18, 19], [4, 5, 6, 7], [8, 9]]
    assert memory_nodes(tmp_path / "nowhere") == []
    assert say_cpus(parse_cpus("0-3,8,10-11")) == "0-3,8,10-11"


def test_bindings() -> None:
    nodes = [[0, 1, 2, 3], [4, 5, 6, 7]]
    every = list(range(8))
    assert bindings(2, every, nodes) == nodes
    assert bindings(4, every, nodes) == [nodes[0], nodes[0], nodes[1], nodes[1]]
    assert bindings(3, every, nodes) == [nodes[0], nodes[0], nodes[1]]
    assert bindings(2, [0, 1, 4], nodes) == [[0, 1], [4]], "of the cores that are ours"
    assert bindings(2, every, nodes[:1]) == bindings(2, [], nodes) == [[], []]
    assert bindings(1, every, nodes) == [[]]
