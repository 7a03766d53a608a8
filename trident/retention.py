"""How long something of past batches is kept: the setting `history` of a log, `changes` of a state."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trident.errors import ConfigError

_SWEEP_EVERY = 64
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"([0-9]{1,18})|([0-9]{1,9})\s*([smhdw])")  # no more than is a number in every log


@dataclass(frozen=True)
class Retention:
    """The last `batches`, or those of the `ms` before the last one; 0 batches: nothing, which gives up what was kept."""

    batches: int | None = None
    ms: int | None = None

    @property
    def keeps_nothing(self) -> bool:
        return self.batches == 0

    @staticmethod
    def of(setting: str | int | None, name: str = "history") -> Retention | None:
        """Read the setting `name`, None if it is not given; `ConfigError` if it is neither a time nor a number of batches."""
        if setting is None:
            return None
        span = None if isinstance(setting, bool) else _SPAN.fullmatch(str(setting).strip())
        if span is not None and span[1] is not None:
            return Retention(batches=int(span[1]))
        if span is not None and int(span[2]) > 0:
            return Retention(ms=1000 * int(span[2]) * _UNITS[span[3]])
        raise ConfigError(
            f"{name}={setting!r}: must be a time with its unit, as in '90s', '30m', '12h', '7d', '2w', or a number of batches; "
            "0 keeps none"
        )

    def lets_go(self, txid: int, at_ms: int, last_txid: int, last_ms: int) -> bool:
        """Whether batches up to `txid`, which was committed at `at_ms`, may go when `last_txid` is the last one."""
        if self.batches is not None:
            return txid <= last_txid - self.batches
        return self.ms is not None and at_ms < last_ms - self.ms

    def __str__(self) -> str:
        if self.ms is None:
            return str(self.batches)
        unit = next(unit for unit in "dhms" if self.ms % (1000 * _UNITS[unit]) == 0)
        return f"{self.ms // (1000 * _UNITS[unit])}{unit}"


class Sweeps:
    """When one that commits sweeps away what need not be kept: once in so many batches, of which it may see only some."""

    def __init__(self) -> None:
        self._last: int | None = None

    def due(self, txid: int) -> bool:
        """Whether batch `txid` is the first to be seen since the last multiple of `_SWEEP_EVERY`."""
        before, self._last = self._last, txid // _SWEEP_EVERY
        return txid % _SWEEP_EVERY == 0 if before is None else before != self._last
