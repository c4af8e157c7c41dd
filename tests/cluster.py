"""Slurm on this machine: one node, its daemons in namespaces of their own, on loopback, with a private configuration.

`running()` yields a Cluster. Its daemons see nothing of the machine's network and its processes; when the first
process of their namespaces is killed, the system kills whatever they have started, however the test ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "unshare", "nsenter", "ip")
#: CPUs that the node says to have, however many there are.
CPUS = 4

#: A job that is requeued waits for cred_expire seconds, then until somebody looks: by default three minutes in all.
CONFIGURATION = """\
ClusterName=ptymesh
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""
#: The first process of the namespaces. Names are looked up for an interface with an address other than 127.0.0.1 only.
DAEMONS = """\
ip link set lo up && ip addr add 127.0.0.2/8 dev lo && hostname localhost || exit 1
munged --foreground --key-file=key --socket=socket --pid-file=munged.pid --log-file=munged.log --seed-file=seed &
while kill -0 $! && ! [ -S socket ]; do sleep 0.05; done
slurmctld -D &
slurmd -D &
wait -n
"""


class Unavailable(Exception):
    """Why there can be no cluster here, in words."""


class Cluster:
    """Slurm's commands: `call("squeue", "--noheader")`."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.folder, self.pid = folder, pid

    def call(self, *command: str, cwd: Path | None = None, **environ: str) -> str:
        """Standard output of a command within the cluster. Raises AssertionError with what it said where it fails."""
        inside = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--pid", "--mount", f"--wdns={cwd or '/'}"]
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        ran = subprocess.run(
            [*inside, *command],
            env={**own, "SLURM_CONF": str(self.folder / "slurm.conf"), **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, f"{' '.join(command)}: {ran.stdout} {ran.stderr}\n{self.said()}"
        return ran.stdout

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job: JobState, Restarts, Reason and the rest."""
        words = self.call("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def said(self) -> str:
        """The end of what the daemons have said."""
        return (self.folder / "daemons.txt").read_text()[-4000:]


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster that is ready for jobs. Raises Unavailable."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]:
        raise Unavailable(f"Slurm is not installed here (no {', '.join(missing)})")
    if os.geteuid():
        raise Unavailable("only root may start Slurm's daemons")
    # not in pytest's folders, which root alone may enter: munge wants its socket to be open to everybody
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        Path(name).chmod(0o755)
        yield from _running(Path(name))


def _running(folder: Path) -> Iterator[Cluster]:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(secrets.token_bytes(64))
    (folder / "key").chmod(0o600)
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, cpus=CPUS))
    unshare = ["unshare", "--fork", "--pid", "--kill-child", "--mount-proc", "--net", "--uts", "bash", "-c", DAEMONS]
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    with (folder / "daemons.txt").open("w") as said:
        daemons = subprocess.Popen(unshare, cwd=folder, env=environ, stdout=said, stderr=said)
    try:
        yield _ready(folder, daemons)
    finally:
        daemons.send_signal(signal.SIGKILL)  # and with it, by --kill-child, all that is in its namespaces
        daemons.wait()


def _ready(folder: Path, daemons: subprocess.Popen[bytes]) -> Cluster:
    """Waits until the node is idle. Raises Unavailable where namespaces may not be made, or a daemon has ended."""
    children = Path(f"/proc/{daemons.pid}/task/{daemons.pid}/children")
    given_up = time.monotonic() + 30
    while time.monotonic() < given_up:
        if daemons.poll() is not None:
            raise Unavailable(f"a cluster cannot be started here: {(folder / 'daemons.txt').read_text()[-1000:]}")
        with contextlib.suppress(AssertionError, OSError, IndexError):
            cluster = Cluster(folder, int(children.read_text().split()[0]))
            if (folder / "socket").exists() and "State=IDLE" in cluster.call("scontrol", "show", "node", "localhost"):
                return cluster
        time.sleep(0.1)
    raise AssertionError((folder / "daemons.txt").read_text())
