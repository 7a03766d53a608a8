"""The tutorial is followed in one folder, page after page, and shows what the pages say; its first page needs Spark."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.test_docs import DOCS, blocks, environment

PAGES = [DOCS / "tutorial" / name for name in ("2-a-topology.md", "3-keep-it-running.md")]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_tutorial_is_followed_in_one_folder(tmp_path: Path) -> None:
    told = ""
    for page in PAGES:
        for language, code in _FENCED.findall(page.read_text(encoding="utf-8")):
            if language in ("python", "py"):
                (tmp_path / code.split()[1]).write_text(code, encoding="utf-8")  # it begins with a comment, its name
            elif language == "sh":
                told += typed(code, tmp_path)
    promised = [line for page in PAGES for block in blocks(page, "") for line in block.splitlines() if shown(line)]
    assert len(promised) > 20
    assert [line for line in promised if words(line) not in words(told)] == []


def typed(commands: str, folder: Path) -> str:
    """Run commands as they are typed, but for what is installed already; return what they print."""
    kept = [line for line in commands.splitlines() if not line.startswith("pip install")]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(kept)],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or "'milk,one'" in done.stderr, done.stdout + done.stderr  # one is to fail
    return done.stdout + done.stderr


def shown(line: str) -> bool:
    """Whether a page shows the line as it is printed: no command of its own, and nothing that depends on the machine."""
    return bool(line) and not line.startswith(("trident up", "trident submit", "trident list", "complete:"))


def words(text: str) -> str:
    """Return a text on one line: the pages wrap long ones, and tables are as wide as they have to be."""
    return " ".join(text.split())
