"""Programs of ptymesh with a fault in them, as forks of a server (server.py) that has imported everything."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Seconds after which a program hangs.
PATIENCE_S = 60.0
#: Seconds that processes which it has started may take to end after it; spares of warm.py end so too.
GRACE_S = 3.0


def compiler() -> str | None:
    """Of C."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def compile_shim(folder: Path) -> Path:
    """shim.c as a library to preload."""
    found, library = compiler(), folder / "shim.so"
    assert found, "the faults need a C compiler"
    subprocess.run([found, "-O1", "-shared", "-fPIC", "-o", library, HERE / "shim.c", "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Ended:
    """How a program ended: its status (None: it hung), what it said, processes that it left behind, and how soon."""

    status: int | None
    out: str
    err: str
    left: list[str]
    seconds: float


class Programs:
    """A server of programs, with a folder of its own for temporary files.

    variables: of its environment; shim: what is preloaded.
    """

    def __init__(self, shim: Path | None = None, variables: Mapping[str, str] | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ptymesh-programs-"))
        self.temporary, self.said = self.home / "temporary", self.home / "said"
        for folder in (self.temporary, self.said):
            folder.mkdir()
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        environment |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # as ptymesh sets it before torch
        environment |= ({"LD_PRELOAD": str(shim)} if shim else {}) | dict(variables or {})
        self._pipe = ours.makefile("rwb")
        command = [sys.executable, str(HERE / "server.py"), str(theirs.fileno()), self.temporary]
        self._server = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.close()
        self._answer()

    def close(self) -> None:
        """The server ends, and its folders go."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._server.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def start(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        spares: int = 0,
        cold: bool = False,
    ) -> int:
        """Starts `python ARGUMENTS` in a folder; returns its process id. cold: it imports everything by itself."""
        for path in self.said.iterdir():
            path.unlink()
        asked = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment or {})}
        said = [str(self.said / "out"), str(self.said / "err")]
        return self._ask("start", **asked, said=said, spares=spares, cold=cold)["pid"]

    def wait(self, seconds: float = PATIENCE_S, grace: float = GRACE_S) -> Ended:
        """Until it has ended, and all that it has started."""
        answer = self._ask("wait", seconds=seconds, grace=grace)
        return Ended(answer["status"], self.said_on("out"), self.said_on("err"), answer["left"], answer["seconds"])

    def said_on(self, stream: str) -> str:
        """What the program has said so far, on "out" or "err"."""
        path = self.said / stream
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def run(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, spares: int = 0
    ) -> Ended:
        """`start` and `wait`."""
        self.start(arguments, folder, environment, spares)
        return self.wait()

    def litter(self) -> list[str]:
        """What lies in the folder for temporary files."""
        return sorted(path.name for path in self.temporary.iterdir())

    def _ask(self, what: str, **given: Any) -> dict[str, Any]:
        self._pipe.write(json.dumps({"do": what, **given}).encode() + b"\n")
        self._pipe.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._pipe.readline()
        if not line:
            raise RuntimeError(f"the server of programs has ended with {self._server.wait()}")
        return json.loads(line)
