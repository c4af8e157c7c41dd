"""Rank of this process and number of ranks, from the environment of torchrun, our launcher, srun or mpirun.

No torch here: `pm.world()` must answer before anything is imported, during a run and after it.
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from ptymesh.distributed.processes import cores
from ptymesh.errors import BadInput

#: Environment variable that names the network interface between nodes; `--interface` sets it.
INTERFACE = "PTYMESH_INTERFACE"

#: For each launcher, the variables with rank, number of ranks, rank on this node and ranks on this node. The first
#: launcher whose variables are set counts. Slurm's are set by srun only: a batch script by itself is one process.
_VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun (Open MPI)": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "mpirun (PMI)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
#: Variables that distinguish the jobs of a machine, so that each gets its own port.
_JOB = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_PORT")


@dataclass(frozen=True)
class RankInfo:
    """Rank of a process.

    Attributes:
        rank: among all ranks.
        size: number of ranks.
        local_rank: among the ranks on this node.
        local_size: number of ranks on this node.
        launcher: name of the launcher whose variables say so; empty for a single process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = ""


def world() -> RankInfo:
    """Return rank and size of this process, at any time: `pm.world().rank`.

    Raises:
        BadInput: variables of the environment contradict each other or are no numbers.
    """
    return read(os.environ)


def read(environ: Mapping[str, str]) -> RankInfo:
    """Return the rank that these environment variables describe.

    Raises:
        BadInput: the variables contradict each other or are no numbers.
    """
    for launcher, (rank, size, local_rank, local_size) in _VARIABLES.items():
        if size not in environ or (launcher != "torchrun" and rank not in environ):
            continue
        n = _number(environ, size, 1)
        if n == 1:
            continue
        r = _number(environ, rank, 0)
        if not 0 <= r < n:
            raise BadInput(f"{rank} is {r} of {size} = {n}; start every rank with the same launcher.")
        ranks_here = n if launcher in ("torchrun", "mpirun (PMI)") else 1
        if local_size in environ:
            ranks_here = int(re.match(r"\d+", environ[local_size] + "x1").group())  # type: ignore[union-attr]
        return RankInfo(r, n, _number(environ, local_rank, r), ranks_here, launcher)
    return RankInfo()


def variables_of(place: RankInfo) -> str:
    """Return the names of the variables that give this process's rank and the number of ranks."""
    return " and ".join(_VARIABLES[place.launcher][:2])


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, str(default))
    if not re.fullmatch(r"\d+", value):
        raise BadInput(f"{name} is {value!r} in the environment; it must be a number.")
    return int(value)


def settle_environment(environ: MutableMapping[str, str] | None = None) -> RankInfo:
    """Set the variables that torch needs (RANK, WORLD_SIZE, MASTER_ADDR ...) and the network interface between ranks.

    Args:
        environ: changed in place (default: that of this process).

    Returns:
        The rank of this process.

    Raises:
        BadInput: the address of rank 0 cannot be determined, or the network interface does not exist.
    """
    environ = os.environ if environ is None else environ
    place = read(environ)
    if place.size == 1:
        return place
    if place.launcher != "torchrun":
        environ["MASTER_ADDR"] = environ.get("MASTER_ADDR") or _address(place, environ)
        environ.setdefault("MASTER_PORT", str(_port(environ)))
    values = (place.rank, place.size, place.local_rank, place.local_size)
    for name, value in zip(_VARIABLES["torchrun"], values, strict=True):
        environ[name] = str(value)
    if named := environ.get(INTERFACE):
        interfaces = [name for _, name in socket.if_nameindex()]
        if named not in interfaces:
            raise BadInput(f"Network interface {named!r} is not there; this machine has {', '.join(interfaces)}.")
        environ["GLOO_SOCKET_IFNAME"] = environ["NCCL_SOCKET_IFNAME"] = named
    elif "GLOO_SOCKET_IFNAME" not in environ and (interface := interface_to(environ.get("MASTER_ADDR", "127.0.0.1"))):
        environ["GLOO_SOCKET_IFNAME"] = interface
    return place


def _address(place: RankInfo, environ: Mapping[str, str]) -> str:
    """Return the host on which rank 0 runs."""
    if nodes := environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST"):
        return first_host(nodes)
    if place.local_size == place.size:
        return "127.0.0.1"
    raise BadInput(
        f"{place.launcher} started ranks on several nodes but does not say where rank 0 is; "
        "set MASTER_ADDR to the name of the first node on all ranks (mpirun -x MASTER_ADDR=node1)."
    )


def _port(environ: Mapping[str, str]) -> int:
    """Return a port that is the same on all ranks of a job and most likely differs between jobs.

    It lies above the range from which systems assign ports.
    """
    job = "/".join(environ.get(name, "") for name in _JOB)
    return 61000 + zlib.crc32((job if job.strip("/") else str(os.getppid())).encode()) % 4000


def first_host(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it: gpu[003-004,7],login1 -> gpu003.

    Raises:
        BadInput: the list is not in Slurm's format.
    """
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    if not match:
        raise BadInput(f"The list of nodes {nodes!r} is not one that Slurm writes; set MASTER_ADDR.")
    return "".join(part or "" for part in match.groups())


def interface_to(address: str) -> str | None:
    """Return the network interface through which this machine reaches an address; None where that is unknown."""
    import psutil

    try:
        family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # on a datagram socket this sends nothing
            own_address = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(candidate.address.split("%")[0] == own_address for candidate in addresses):
            return name
    return None


def share_cores(environ: MutableMapping[str, str] | None = None) -> None:
    """Set OMP_NUM_THREADS to this rank's share of the cores, unless it is set.

    Must be called before torch or numba is imported, which read the variable once.

    Args:
        environ: changed in place (default: that of this process).
    """
    environ = os.environ if environ is None else environ
    place = read(environ)
    if place.size > 1 and "OMP_NUM_THREADS" not in environ:
        allowed = cores()
        bound = place.launcher != "mpirun (PMI)" and allowed < (os.cpu_count() or 1)  # the launcher has bound ranks
        environ["OMP_NUM_THREADS"] = str(allowed if bound else max(1, allowed // place.local_size))
