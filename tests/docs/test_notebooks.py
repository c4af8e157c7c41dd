"""The notebooks run from top to bottom, show what they should, and lie in git without outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
jupyter_client = pytest.importorskip("jupyter_client")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def outputs(notebook: Any, kind: str) -> list[str]:
    """Everything of one MIME type that the cells have shown; "text" is what was printed."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    if kind == "text":
        return [one["text"] for one in shown if one["output_type"] == "stream"]
    return [one["data"][kind] for one in shown if kind in one.get("data", {})]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None, "strip the outputs before a commit"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))

    class InFiles(jupyter_client.AsyncKernelManager):
        """Sockets in the file system, where there are such: nothing listens on a network."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            if os.name != "nt":
                self.transport, self.ip = "ipc", str(tmp_path / "k")

    done = nbclient.NotebookClient(
        notebook, kernel_manager_class=InFiles, timeout=200, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    streams = [output for cell in done.cells for output in cell.get("outputs", ()) if output["output_type"] == "stream"]
    # where the kernels are new, the first run says that it compiles them
    errors = [one["text"] for one in streams if one["name"] == "stderr"]
    assert all(text.startswith("Compiling kernels") for text in errors), errors
    html, said = outputs(done, "text/html"), "".join(outputs(done, "text"))
    assert any("data:image/png" in one for one in html) and outputs(done, "image/png"), "pictures"
    if path.stem == "first-reconstruction":
        assert any('<progress value="25.0000" max="25"' in one for one in html), "the bar, at its end"
        differs = float(said.split("differs from the truth by ")[1].split("%")[0])
        assert differs < 12, "it reconstructs"
        assert any("xarray" in one for one in html)
    else:
        assert said.count("stage 1 (rpie)") == 3 and "\x1b" not in said
        assert "gain" in said and "is 3" in said, "the refused option"
