"""The settings of a running topology: typed, documented, unknown keys refused; and where each of them comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from trident.errors import ConfigError
from trident.retention import Retention
from trident.servers.log_addresses import LIKE, is_log_address, is_url, log_address_of
from trident.setting_types import MOST_MS, Settings, close_to, nest_spark_conf, number, read_settings, seconds, whole

NO_URL = (
    "must be a folder on a local disk, given as a path without a scheme. An object store has neither the locks nor the hard "
    "links that it needs"
)
SETTINGS_FILE = "trident.toml"
_VARIABLE = "TRIDENT_"
_GIVEN = "argument"

Recovery = Literal["refuse", "rewind", "keep_totals", "keep_totals_even_if_wrong", "discard_totals"]
Engine = Literal["spark", "in_process", "auto"]


@dataclass(frozen=True, repr=False)
class Config(Settings):
    """Settings of a topology: `TridentTopology(name, config=Config(…))`, `start`, `trident.toml`, `--conf key=value`.

    Attributes
    ----------
    max_spout_pending
        How many batches may be in flight at once; they are committed one at a time, in order.
    batch_emit_interval_ms
        At most one batch starts per interval; 0 starts batches as fast as they are committed. This is a limit, not a
        delay.
    target_batch_s
        How many seconds a batch may take to be processed and committed. While batches take longer, spouts that can be
        throttled [read less per batch](configuration.md#slow-stores-and-idle-sources). 0: they are never throttled.
    message_timeout_s
        A batch that is not processed within this many seconds fails and is replayed. Where no replay is possible, the
        topology ends if one call of your code does not return for so long: see [code that
        hangs](guarantees.md#code-that-hangs).
    max_batch_attempts
        How often a batch may fail before the topology stops with `BatchFailedError`. What your code raises in the same
        way at each try (a `ZeroDivisionError`, a `KeyError` …) ends it at the first, if the spouts repeat the batch. A
        replay because an earlier batch failed does not count, nor does a try while a source or a store is away.
    store_wait_s
        How long to wait for a store that does not answer, at the start too, before the topology ends. A store that
        refuses (a wrong password, a missing table) ends it at once. A source that does not answer is waited for without
        end.
    retry_backoff_ms, retry_backoff_max_ms
        The wait before the second try of a batch; it doubles with each further try, up to the maximum.
    on_poison
        `"stop"`, or `"dead_letter"`: the last try of a batch leaves out the tuples whose operation raises, and keeps
        them as [dead letters](guarantees.md#dead-letters), which `trident dead-letters` shows and puts back.
    dead_letter_dir
        The folder of dead letters, one JSON-lines file per batch that has any; default: `<log_dir>/dead_letters`, and
        with a log on a server `trident-log/<topology>/dead_letters`.
    max_rows_per_tuple
        How many rows a function or a query may make of one tuple; one more is treated as an exception that it raised.
        (`Split` has no limit.)
    max_rows_per_step
        How many rows a function, an aggregator or a join may make of one partition of a batch. One more fails the
        batch.
    max_bytes_per_partition
        How many bytes of a batch may come together in one partition of an exchange, or of a state that executors
        commit. One more fails the batch, and the error names a key that has many of the rows. A text column cannot hold
        more than the default.
    log_dir
        [Where the log is](deploying.md#the-log): a folder on a file system with locks and hard links, or an address
        such as `zookeeper://host1:2181,host2:2181/path`, `postgresql://user@host/database?topology=name`,
        `s3://bucket/prefix` (`gs`, `az`, `abfss`). Default: in memory if every state is in memory, else
        `trident-log/<topology>`.
    history
        How long [the log keeps what each batch was](deploying.md#history): `"7d"` (`s`, `m`, `h`, `d`, `w`) before the
        last batch, or a number of batches; 0 gives it up. Default: as the last start that gave it; at first a hundred
        batches at least.
    takeover
        Take a log that another driver holds. That driver can then write neither the log nor the states.
    allow_inexact
        Accept pairings of spout and state that are [not exact](guarantees.md#the-matrix), and queries that may pass to
        a state what a failed attempt wrote.
    allow_changed_topology
        Continue with a log although a state or a stream has [another meaning](changing-a-job.md#what-you-may-change)
        than when the log was written. Stored values are taken as they are, and the log records the new meaning.
    reset_batch_time
        If a wrong clock has set the time of the batches more than a minute ahead, begin again at the clock. Windows by
        the time of the batch then give what they hold, once, and begin again
        ([windows](windows.md#when-a-window-fires)); without it they give nothing until the clock has got there. Set it
        for one start.
    state_recovery
        What to do when [log and store do not belong together](guarantees.md#when-log-and-store-do-not-belong-together).
        `"refuse"` ends the start and says which of the others keeps the totals right: `"rewind"` (replays from the
        `history` what a store lacks), `"keep_totals"`, `"discard_totals"` or `"keep_totals_even_if_wrong"`. Set it for
        one start.
    engine
        `"spark"`; `"in_process"`: the same stages in this process, without Spark, for tests and small jobs (with
        several batches in flight, several threads call the same operation objects); or `"auto"`: small batches in this
        process and large ones on Spark, which starts when the first large batch comes.
    auto_bytes
        With `engine="auto"`, the size up to which a batch is small; one of unknown size is large. Lower it if there are
        many cores, or slow Python functions.
    state_placement
        Where states are committed: `"driver"`, in this process; `"executors"`, by tasks of Spark; or `"auto"`: in
        executors on a cluster if the store can fence its writers, else in the driver. A state's own `placement(...)`
        wins. With `engine="auto"` small batches are committed here in any case.
    verify_replays
        Which share of the batches, 0 … 1, is processed twice, to find [operations that do not repeat
        themselves](testing.md#operations-that-do-not-repeat-themselves): a clock, a random number, a counter. What
        differs is logged once for each step and counted in `status["replays"]`.
    workers
        How batches run on Spark. `"jobs"`: each is a Spark job. `"resident"`: [tasks
        stay](deploying.md#resident-workers) as long as the topology runs, many times as fast for small batches. `"auto"`:
        resident where this start starts a Spark of this machine, which gets two more slots for other jobs; else jobs.
    master
        Spark master URL; default `local[*]`, or the active session's.
    spark_conf
        Further Spark settings, by key.
    parallelism
        Spark tasks per batch and spout; default: the number of cores Spark has.
    poll_interval_ms
        How long to wait before an exhausted spout is asked again; longer where asking is much work, so that an idle
        driver uses a tenth of a core at most.
    progress_kept
        How many entries `recent_progress` keeps.
    metrics_port
        Serve [metrics](monitoring.md) over HTTP at this port while the topology runs, in OpenMetrics; 0 takes a free
        one, None serves none. Needs `trident-spark[metrics]`.
    metrics_host
        The address to serve metrics at. Whoever reaches it may read them: names of streams and states, and counts.
    ui_port
        Serve [the page](monitoring.md#the-page) of the topology at this port while it runs, read-only; 0 takes a free one, None
        serves none. `trident run MODULE:TOPOLOGY --ui` serves one with actions. Needs `trident-spark[ui]`.
    ui_host
        The address to serve the page at. Whoever reaches it may read it: figures, errors, the log, and values of
        states.
    """

    max_spout_pending: int = whole(3, 1)
    batch_emit_interval_ms: int = whole(0, 0, MOST_MS)
    target_batch_s: float = seconds(30.0, least=0)
    message_timeout_s: float = seconds(600.0)
    max_batch_attempts: int = whole(3, 1)
    store_wait_s: float = seconds(600.0, least=0)
    retry_backoff_ms: int = whole(100, 0, MOST_MS)
    retry_backoff_max_ms: int = whole(10_000, 0, MOST_MS)
    on_poison: Literal["stop", "dead_letter"] = "stop"
    dead_letter_dir: str | None = None
    max_rows_per_tuple: int = whole(1_000_000, 1)
    max_rows_per_step: int = whole(10_000_000, 1)
    max_bytes_per_partition: int = whole(2_000_000_000, 1)
    log_dir: str | None = None
    history: str | int | None = None
    takeover: bool = False
    allow_inexact: bool = False
    allow_changed_topology: bool = False
    reset_batch_time: bool = False
    state_recovery: Recovery = "refuse"
    engine: Engine = "spark"
    auto_bytes: int = whole(8 << 20, 0)
    state_placement: Literal["auto", "driver", "executors"] = "auto"
    verify_replays: float = number(0.0, "a share", 0, 1)
    workers: Literal["auto", "jobs", "resident"] = "auto"
    master: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    parallelism: int | None = whole(None, 1, 1_000_000)
    poll_interval_ms: int = whole(50, 0, MOST_MS)
    progress_kept: int = whole(100, 1)
    metrics_port: int | None = whole(None, 0, 65_535)
    metrics_host: str = "127.0.0.1"
    ui_port: int | None = whole(None, 0, 65_535)
    ui_host: str = "127.0.0.1"

    def __new__(cls, *values: Any, **given: Any) -> Self:
        """Note which settings are given: one that is left at its default may come from elsewhere."""
        made = super().__new__(cls)
        vars(made)["_origins"] = dict.fromkeys([*list(cls.__dataclass_fields__)[: len(values)], *given], _GIVEN)
        return made

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history is not None:
            Retention.of(self.history)
        if self.log_dir and is_url(self.log_dir):
            if not is_log_address(self.log_dir):
                raise self.refused(
                    "log_dir", f"must be a folder on a local disk, a path without a scheme, or one of {LIKE}"
                )
            log_address_of(self.log_dir)
        if self.dead_letter_dir and is_url(self.dead_letter_dir):
            raise self.refused("dead_letter_dir", NO_URL)

    @staticmethod
    def of(conf: Config | Mapping[str, Any] | None = None, **settings: Any) -> Config:
        """Build from another config or a mapping; text values are read as the type of their key."""
        base = conf.given if isinstance(conf, Config) else Config.of_mapping(conf)
        made = Config(**read_settings(Config, {**base, **settings}))
        if isinstance(conf, Config):
            vars(made)["_origins"].update({name: conf.origins[name] for name in base if name not in settings})
        return made

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each setting that is given comes from, by name: `argument` where nothing else is known."""
        origins: dict[str, str] = vars(self)["_origins"]
        return origins

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are given, by name."""
        return {name: getattr(self, name) for name in self.origins}

    def as_mapping(self) -> dict[str, Any]:
        """Return the settings by key."""
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "spark_conf": dict(self.spark_conf)}

    def log_folder(self, topology: str) -> str:
        """Return where a topology's log is: `log_dir`, or a folder below the working directory."""
        return self.log_dir or str(Path("trident-log") / topology)

    def dead_letter_folder(self, topology: str) -> str:
        """Return the folder of a topology's dead letters: `dead_letter_dir`, or one in the folder of the log.

        They are always files: if the log is on a server, they are where its folder would be.
        """
        if self.dead_letter_dir is not None:
            return self.dead_letter_dir
        folder = Config().log_folder(topology) if is_log_address(self.log_dir or "") else self.log_folder(topology)
        return str(Path(folder) / "dead_letters")


def resolve(own: Config, names: Sequence[str], folder: str, given: Config, origin: str = _GIVEN) -> Config:
    """Return the settings of a topology: what is given (by `origin`), over the environment, the file in `folder`, and its own.

    The file may have a section for each of the `names`. Raises `ConfigError`: says which setting is wrong, and where it is.
    """
    layers = [("topology", own), *_of_file(Path(folder) / SETTINGS_FILE, names)]
    layers += [
        (_variable(name), _layer(_variable(name), {name: text})) for name, text in settings_of_environment().items()
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for where, layer in [*layers, (origin, given)]:
        for name, value in layer.given.items():
            values[name] = {**values.get(name, {}), **value} if name == "spark_conf" else value
            origins[name] = where if layer.origins[name] == _GIVEN else layer.origins[name]
    made = Config(**values)
    vars(made)["_origins"].update(origins)
    return made


def settings_of_environment() -> dict[str, str]:
    """Return the settings that variables give, as `TRIDENT_HISTORY=7d`; `ConfigError` for one that is nearly such."""
    known, found = [each.name for each in fields(Config)], {}
    for variable, text in sorted(os.environ.items()):
        name = variable.removeprefix(_VARIABLE).lower()
        if not variable.startswith(_VARIABLE) or not text:
            continue
        if name in known:
            found[name] = text
        elif close := close_to(name, known, "", cutoff=0.8):
            raise ConfigError(f"the environment variable {variable}: there is no setting {name!r}{close}")
    return found


def _variable(name: str) -> str:
    return f"{_VARIABLE}{name.upper()}"


def _of_file(path: Path, names: Sequence[str]) -> Iterator[tuple[str, Config]]:
    """Give the settings of a file: those of all topologies beside it, then those in a section of one of these names."""
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
    shown = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    spark = ("spark", "spark_conf")
    yield shown, _layer(shown, {name: one for name, one in found.items() if not isinstance(one, dict) or name in spark})
    for name in names:
        if isinstance(found.get(name), dict) and name not in spark:
            yield f"{shown} [{name}]", _layer(f"{shown} [{name}]", found[name])


def _leaves(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _layer(where: str, values: Mapping[str, Any]) -> Config:
    tables = {name: values[name] for name in ("spark", "spark_conf") if isinstance(values.get(name), Mapping)}
    found = {name: value for name, value in values.items() if name not in tables}
    if tables:  # Spark's settings, as texts under their whole names
        named = [*_leaves("spark.", tables.get("spark", {})), *_leaves("", tables.get("spark_conf", {}))]
        found["spark_conf"] = dict(named)
    try:
        return Config.of(nest_spark_conf(found))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
