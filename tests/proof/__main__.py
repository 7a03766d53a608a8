"""Runs rows of the table and prints it: `python -m tests.proof --row P2 --seeds 1000`; without options all, for hours.

Records go to files in build/proof, or in the folder that `--out` names. The exit code is 1 if anything was wrong.
"""

import argparse
import datetime as dt
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.proof.proof_rows import ROWS
from tests.proof.proof_table import run_row, save, table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the rows of the proof, and print what came of them.")
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, help="how many of what a row counts first, in place of its full number")
    parser.add_argument("--minutes", type=float, help="the most that a row may take; the table says what was reached")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--group", default="", help="only trials whose group has this in its name, such as 'on Spark'")
    parser.add_argument("--out", type=Path, default=Path("build/proof"), help="the folder of the records")
    options = parser.parse_args(argv)
    records = []
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    about = {"date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}", "commit": _commit(), "machine": machine}
    for name in options.row or ROWS:
        row = ROWS[name] if options.seeds is None else ROWS[name].of_size(options.seeds)
        with tempfile.TemporaryDirectory(prefix="trident-proof-", ignore_cleanup_errors=True) as work:
            record = run_row(row, options.seed, Path(work), options.minutes, options.group)
            if (exported := Path(work) / "histories").exists():
                shutil.copytree(exported, options.out / "histories", dirs_exist_ok=True)
        save([record], options.out, about)  # at once: the next row may take hours
        sys.stderr.write(table([record]).splitlines()[-1] + "\n")
        records.append(record)
    sys.stdout.write(table(records) + "".join(f"WRONG {each}\n" for record in records for each in record.wrong))
    return 1 if any(record.wrong for record in records) else 0


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # what is killed is warned of
    sys.exit(main())
