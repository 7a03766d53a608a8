"""Names in texts: the error for an attribute in camelCase names the one in snake_case; counts and amounts; values."""

import re
from operator import attrgetter
from typing import Any, NoReturn

from trident.tuples import TridentTuple

_MAX_SHOWN = 300

# What a terminal obeys, and what turns the direction of the words around it.
_UNSEEN = (*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_SEEN = {code: f"\\u{code:04x}" for code in _UNSEEN if chr(code) not in "\n\t"}

_ALIASES = {"build": "start", "new_drpcstream": "new_drpc_stream"}
_OF_TOPOLOGY = {"join": "topology.join", "merge": "topology.merge", "union": "topology.merge"}


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count and its noun.

    >>> counted(1, "batch", "batches"), counted(1200, "tuple")
    ('1 batch', '1,200 tuples')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def amount(count: int, unit: str) -> str:
    """Return how much there is of something, of bytes in KiB, MiB, GiB or TiB; the page's `amount` does the same.

    >>> amount(197_973, "bytes"), amount(1200, "records"), amount(1, "batches"), amount(1, "entries"), amount(1, "bytes")
    ('193 KiB', '1,200 records', '1 batch', '1 entry', '1 byte')
    """
    power = min((count.bit_length() - 1) // 10, 4)
    if unit != "bytes" or power < 1:
        one = re.sub(r"([^s])s$", r"\1", re.sub(r"(ch|sh|x|ss)es$", r"\1", re.sub(r"ies$", "y", unit)))
        return counted(count, one, unit)
    size = count / (1 << 10 * power)
    return f"{size:,.{0 if size >= 100 else 1}f} {'KMGT'[power - 1]}iB"


def duration(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> duration(0.5), duration(59), duration(3700), duration(90_000)
    ('0.5 s', '59 s', '1 h 1 min', '1 d 1 h')
    """
    whole = int(max(seconds, 0))
    for unit, inner, name, inside in ((86_400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // inner} {inside}"
    return f"{seconds:.1f} s" if 0 < seconds < 1 else f"{whole} s"


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters, the last of them a mark if it is longer.

    >>> cut("a long text", 6), cut("short", 6)
    ('a lon…', 'short')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def visible(text: str) -> str:
    """Return a text, or JSON, with what is not seen as JSON writes it: values, names and errors are the work of others."""
    return text.translate(_SEEN)


def page_entry(record: object, *names: str) -> dict[str, Any]:
    words = {name: name.split("_") for name in names}
    return {first + "".join(map(str.title, more)): attrgetter(name)(record) for name, (first, *more) in words.items()}


def shown(value: object) -> str:
    """Return a value as text, shortened; of a huge value no full text is made first."""
    if isinstance(value, (str, bytes)) and len(value) > _MAX_SHOWN:
        return f"{_short(repr(value[: _MAX_SHOWN + 1]))} ({len(value)} {'bytes' if isinstance(value, bytes) else 'characters'})"
    if isinstance(value, TridentTuple):
        cut = tuple(one[: _MAX_SHOWN + 1] if isinstance(one, (str, bytes)) else one for one in value)
        return _short(repr(TridentTuple(value.fields, cut)))
    return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


class TridentNames:
    """Mixed into the fluent classes."""

    def __getattr__(self, name: str) -> NoReturn:
        snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
        snake = _ALIASES.get(snake, snake)
        here = type(self).__name__
        if snake != name and hasattr(type(self), snake):
            raise AttributeError(
                f"{here!r} has no attribute {name!r}; it is called {snake!r} here", name=name, obj=self
            )
        instead = f"; it is a method of the topology: {_OF_TOPOLOGY[snake]}" if snake in _OF_TOPOLOGY else ""
        raise AttributeError(f"{here!r} has no attribute {name!r}{instead}", name=name, obj=self)
