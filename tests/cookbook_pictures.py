"""The pictures of docs/cookbook.md, drawn from its programs: `python -m tests.cookbook_pictures` writes them again."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from trident import TridentTopology

__all__ = ["FOLDER", "PAGE", "drawn"]

PAGE = Path(__file__).parents[1] / "docs" / "cookbook.md"
FOLDER = PAGE.parent / "images" / "cookbook"
_RECIPE = re.compile(r"^## (.+?)\n(?:.*?)^```py(?:thon)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def drawn() -> Iterator[tuple[str, str]]:
    """Iterate over the recipes: the name of the file, and the picture of the topology as the program declares it."""
    for title, program in _RECIPE.findall(PAGE.read_text(encoding="utf-8")):
        names: dict[str, Any] = {"url": "postgresql://localhost/shop"}
        with tempfile.TemporaryDirectory() as folder, chdir(folder):  # some programs make files
            exec(compile(program.partition("\nwith topology.start")[0], title, "exec"), names)
        topology = names["topology"]
        assert isinstance(topology, TridentTopology)
        yield f"{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}.svg", topology.to_svg()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, picture in drawn():
        (FOLDER / name).write_text(picture, encoding="utf-8")
