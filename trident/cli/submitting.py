"""`trident submit` and `trident upgrade`: packs the code, sends it or rehearses it, and waits if that is asked for."""

import io
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from trident.cli.console import INTERRUPTED, print_json, problems, say, wrong_use
from trident.cli.state_commands import rehearse
from trident.cluster.client import ClusterClient
from trident.cluster.package_archive import read_package
from trident.cluster.submissions import refuse_changes
from trident.cluster.topology_overviews import TopologyOverview, first_line
from trident.cluster.topology_package import TopologyPackage, load_package, make_package, settings_of
from trident.cluster_state.cluster_records import StormBase
from trident.config import Config, settings_of_environment
from trident.errors import ClusterError, ConfigError, EnvironmentProblem, LogError, NameTaken
from trident.log.log_address import open_reader
from trident.log.log_reader import exists
from trident.plan.meaning import Meaning, compare
from trident.setting_types import nest_spark_conf
from trident.targets import NoSuchTarget, forget_modules

NOT_YET = 4  # the exit code if a topology was submitted or upgraded, and did not run within the time


@dataclass(frozen=True)
class Code:
    """What is packed: the arguments of `make_package`, the settings, and how long its driver is awaited (None: it is not)."""

    target: str
    include: Sequence[str]
    requirements: Path | None
    conf: Mapping[str, str]
    wait_s: float | None = None

    def package(self, name: str = "") -> TopologyPackage:
        """Make the package; what is wrong with the target or the settings is a wrong use of the command."""
        with wrong_use(NoSuchTarget, ConfigError):
            made = make_package(self.target, self.include, self.requirements)
            settings_of(made.manifest.kind, name or made.manifest.name, self.settings(made))
        return made

    def settings(self, package: TopologyPackage) -> dict[str, str]:
        """Return what the cluster records: the settings of the command over those of the environment, and where the log is."""
        if package.manifest.kind != "trident":
            return dict(self.conf)
        log = {} if package.log_dir is None else {"log_dir": package.log_dir}
        return {**log, **settings_of_environment(), **self.conf}


def submit(client: ClusterClient, code: Code, name: str, workers: int | None, as_json: bool) -> None:
    package = code.package(name)
    wanted = name or package.manifest.name
    if any(each.base.storm_name == wanted and each.base.status.kind != "killed" for each in client.topologies()):
        raise NameTaken(  # before anything is sent; that it is still free is decided by Nimbus
            f"the cluster has a topology {wanted!r}. Give another name (--name), kill it first (`trident kill {wanted}`), or "
            "give it new code (`trident upgrade`)"
        )
    conf = code.settings(package)
    of_run = _log_of_run(wanted) if package.manifest.kind == "trident" and "log_dir" not in conf else None
    with _upload(package, as_json) as progress:
        storm_id = client.submit(package, name, conf, workers, progress=progress)
    if not as_json:
        say(f"submitted {wanted} as {storm_id}")
    if of_run is not None:
        say(f"{wanted}: {of_run(client.show(storm_id).base.log_dir)}", console=problems() if as_json else None)
    _await_active(client, storm_id, package.sha256, code.wait_s, f"it stays submitted: `trident show {wanted}`")
    if as_json:
        print_json(client.show(storm_id).as_json())


def upgrade(client: ClusterClient, topology: str, code: Code, keep_conf: bool, as_json: bool) -> None:
    base = client.show(topology).base
    package = code.package(base.storm_name)
    if base.kind == package.manifest.kind == "trident":
        _ask_stores(base, package, _settings(base, code, package, keep_conf))
    with _upload(package, as_json) as progress:
        done = client.upgrade(topology, package, None if keep_conf else code.settings(package), progress)
    if not as_json:
        if done["changed"]:
            compared = ", which fits its log" if done["compared"] else ""
            say(f"{done['name']}: generation {done['generation']} runs the new code{compared}")
        else:
            say(f"{done['name']}: it already has this code and these settings; nothing was done")
        for note in done["notes"]:
            say(f"{done['name']}: {note}")
    left = f"the upgrade goes on: `trident show {done['name']}`"
    _await_active(client, done["id"], package.sha256, code.wait_s, left)
    if as_json:
        print_json(done)


def rehearse_code(client: ClusterClient, topology: str, code: Code, keep_conf: bool, last: int, as_json: bool) -> int:
    """Say which totals new code would change, as `rehearse`, with the code at work; returns the exit code."""
    base = client.show(topology).base
    if base.kind != "trident":
        raise typer.BadParameter(f"{base.storm_name} consists of spouts and bolts, which keep no batches to run again")
    package = code.package(base.storm_name)
    with tempfile.TemporaryDirectory(prefix="trident-rehearsal-") as place:
        packages = {"former": client.package_of(topology), "new": package.data}
        former, new = (_load(data, Path(place, name).resolve(), base.storm_name) for name, data in packages.items())
        return rehearse(former, new, _settings(base, code, package, keep_conf), last, as_json)


def _settings(base: StormBase, code: Code, package: TopologyPackage, keep_conf: bool) -> Config:
    conf = base.conf if keep_conf else code.settings(package)
    return Config.of(nest_spark_conf({**({"log_dir": base.log_dir} if base.log_dir else {}), **conf}))


def _ask_stores(base: StormBase, package: TopologyPackage, config: Config) -> None:
    """Refuse what the stores of changed states would refuse at its start, as far as log and stores are seen from here."""
    try:
        with closing(open_reader(config.log_folder(base.storm_name))) as reader:
            former = Meaning.of_log(reader.refresh().declared) if reader.is_there() else None
    except (LogError, EnvironmentProblem):  # away, or of a server whose package is not here
        return
    compared = None if former is None else compare(former, Meaning.of_log(package.manifest.meaning))
    if compared is None or compared.refused or not compared.evolutions:
        return
    from trident.read.open_partitions import refused_by_stores  # Arrow with it, which few upgrades need

    # What modules print as they are loaded is no answer of the command.
    with tempfile.TemporaryDirectory(prefix="trident-upgrade-") as place, redirect_stdout(sys.stderr):
        new = _load(package.data, Path(place, "new").resolve(), base.storm_name)
        graph, settings = new.graph(), new.settings(config, origin="submission")
        refuse_changes(base.storm_name, "its stores", refused_by_stores(graph, settings, compared, None))


def _load(data: bytes, folder: Path, name: str) -> Any:
    folder.mkdir()
    manifest = read_package(io.BytesIO(data), folder)
    forget_modules({path.stem for path in folder.iterdir()})
    return load_package(folder, manifest, name)


def _log_of_run(name: str) -> Callable[[str], str] | None:
    """Return what says what becomes of the log that `trident run` has written in this folder; None if there is none."""
    place = Config().log_folder(name)
    if not exists(place):
        return None
    with closing(open_reader(place)) as reader:
        txid, holder = reader.refresh().txid, reader.holder()

    def beside(log_dir: str) -> str:
        if Path(log_dir).absolute() != Path(place).absolute():
            return (
                f"its log is {log_dir}, not {place} of `trident run` in this folder, which ends with batch {txid}. "
                "States that were written with that one do not fit; to go on with it, kill the topology and submit it with "
                f"--conf {shlex.quote(f'log_dir={Path(place).absolute()}')}"
            )
        from_whom = "" if holder is None else f", which it takes over from the running driver, {holder}"
        return f"goes on after batch {txid} of {place}{from_whom}"

    return beside


@contextmanager
def _upload(package: TopologyPackage, as_json: bool) -> Iterator[Callable[[int], None] | None]:
    console = problems()
    if not console.is_terminal or as_json:
        yield None
        return
    columns = (TextColumn("sending {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(package.manifest.name, total=len(package.data))
        yield lambda sent: bar.advance(task, sent)


def _await_active(client: ClusterClient, storm_id: str, sha256: str, wait_s: float | None, left: str) -> None:
    """Wait until the driver of the newest generation is active, and say what happens meanwhile; None: do not wait."""
    if wait_s is None:
        return
    until, said = time.monotonic() + wait_s, {""}
    try:
        while True:
            overview = client.show(storm_id)
            runs = "inactive" if overview.base.status.kind == "inactive" else "active"
            if overview.driver == runs and overview.base.code_hash == sha256:
                return
            if overview.base.code_hash != sha256:
                last = next(iter(client.errors(storm_id)), {"error": "see `trident errors`"})
                raise ClusterError(
                    f"topology {overview.base.storm_name!r} is back on its former code, because the new code cannot run: "
                    f"{first_line(last['error'])}"
                )
            if overview.base.status.kind in ("failed", "killed"):
                reason = overview.base.status.reason or "see `trident errors`"
                raise ClusterError(f"topology {overview.base.storm_name!r} is {overview.base.status.kind}: {reason}")
            for line in _progress_lines(overview):
                if line not in said:
                    said.add(line)
                    say(f"{overview.base.storm_name}: {line}", console=problems())
            if time.monotonic() > until:
                now = next(iter(_progress_lines(overview)))
                late = f"error: topology {overview.base.storm_name!r} does not run after {wait_s:g} s ({now}); {left}"
                say(late, "bold red", problems())
                raise typer.Exit(NOT_YET)
            time.sleep(0.3)
    except KeyboardInterrupt:
        say(f"stopped waiting; {left}", console=problems())
        raise typer.Exit(INTERRUPTED) from None


def _progress_lines(overview: TopologyOverview) -> Iterator[str]:
    if overview.assignment is None:
        yield f"waiting for a slot: {overview.why_waiting}"
        return
    yield f"its driver is {overview.driver} on {overview.assignment.slot}"
    if overview.last_error is not None and overview.last_error.time_secs >= overview.assignment.start_time_secs:
        yield f"its driver is started again, after: {first_line(overview.last_error.error)}"
