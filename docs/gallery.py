"""Makes the figures of the gallery: python docs/gallery.py [NAME ...]

Each is simulated, reconstructed and drawn by ptymesh's own commands, as docs/gallery.md shows them, in a temporary
folder: seconds each, once the kernels are compiled. Written to docs/figures/NAME.png, small enough for a repository.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

FOLDER = Path(__file__).with_name("figures")
PAGE = Path(__file__).with_name("gallery.md")
WIDTH = 1000


def examples() -> dict[str, list[str]]:
    """Name of the figure and lines of commands, of each section of the page that has both."""
    found = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        figure = re.search(r"\]\(figures/([\w-]+)\.png\)", section)
        lines = re.search(r"^```sh\n(.*?)^```", section, re.S | re.M)
        if figure and lines and "ptymesh simulate" in lines[1]:
            found[figure[1]] = lines[1].splitlines()
    return found


def make(name: str, lines: list[str]) -> None:
    """Runs the lines; the figure that the last of them names is the section's."""
    with tempfile.TemporaryDirectory() as folder:
        for line in lines:
            words = shlex.split(line, comments=True)
            if words[0] == "ptymesh":
                subprocess.run([sys.executable, "-m", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            else:
                subprocess.run(line, cwd=folder, check=True, shell=True)
        shown = re.findall(r"[\w/]+\.png", lines[-1])
        picture = Image.open(Path(folder) / shown[-1]).convert("RGB")
        height = round(picture.height * min(1, WIDTH / picture.width))
        picture = picture.resize((min(WIDTH, picture.width), height), Image.Resampling.LANCZOS)
        path = FOLDER / f"{name}.png"
        picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
        sys.stdout.write(f"{path}: {path.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    known = examples()
    for wanted in sys.argv[1:] or known:
        make(wanted, known[wanted])
