"""Keeps secrets out of texts: options and addresses as a `repr`, an error or a log line may show them."""

import dataclasses
import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

SECRET = {"trident.secret": True}  # the `metadata` of a field that is never shown
_HIDDEN = "***"
_END = re.compile(r"[\s'\"]")
_END_OF_QUERY = re.compile(r"[\s'\")\]]")
_CONTAINERS = re.compile(r"(?:abfss?|wasbs?)$", re.IGNORECASE)  # the text before the `@` is not a user there
_SECRET_NAME = re.compile(
    r"secret|passw|pwd|token|credential|jaas|(access|account|api|private|encryption|shared)[._-]?key", re.IGNORECASE
)
# `password=…`, as in the words of libpq and of JAAS, `"password": "…"`, and what a header has.
_NAMED = re.compile(
    r"""((?:\b|_)(?:passw(?:or)?d|pwd|secret|token|api_?key|access_?key(?:_id)?)["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s"',;&)}\]]+)"""
    r"|(\bBearer\s+)[\w.~+/=-]+",
    re.IGNORECASE,
)
_VALUE = re.compile(r"=[^&;]*")
_WORDS = ("passw", "pwd", "secret", "token", "key", "bearer")


def redacted(text: str) -> str:
    """Return a text whose URLs show neither user and password nor the values of their query, and no `password=…` its value."""
    low = text.lower()
    if any(word in low for word in _WORDS):  # the pattern alone takes ten times as long
        text = _NAMED.sub(lambda match: f"{match[1] or match[3]}{_HIDDEN}", text)
    if "://" not in text:
        return text
    text = _of_each_url(text, _without_user) if "@" in text else text
    return _of_each_url(text, _without_query) if "?" in text else text


def _of_each_url(text: str, change: Callable[[str, int, int], tuple[str, int]]) -> str:
    """Change what follows each `://`, up to a space or quotation mark; no part of it is looked at twice, as a pattern would."""
    parts, done = list[str](), 0
    while (found := text.find("://", done)) >= 0:
        end = _place(_END, text, found + 3)
        shown, until = change(text, found + 3, end)
        parts += [text[done : found + 3], shown]
        done = until
    return "".join([*parts, text[done:]])


def _without_user(text: str, start: int, end: int) -> tuple[str, int]:
    # Up to the last `@`: a password that was not quoted may have any character in it.
    at = text.rfind("@", start, end)
    if at < 0:
        return text[start:end], end
    return text[start:at] if _CONTAINERS.search(text, max(0, start - 9), start - 3) else _HIDDEN, at


def _without_query(text: str, start: int, end: int) -> tuple[str, int]:
    query = text.find("?", start, end) + 1
    if not query:
        return text[start:end], end
    end = _place(_END_OF_QUERY, text, query)
    return text[start:query] + _VALUE.sub(f"={_HIDDEN}", text[query:end]), end


def _place(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.search(text, start)
    return len(text) if found is None else found.start()


def _shown_text(text: str) -> str:
    """Return a text without secrets in URLs; of one that is a JSON object, as that of `user`, also without those by name."""
    try:
        value = json.loads(text) if text.startswith("{") else None
    except ValueError:
        value = None
    return json.dumps(shown_configuration(value), ensure_ascii=False) if isinstance(value, dict) else redacted(text)


def shown_configuration(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as plain data, without secrets: those in URLs, and values whose names speak of one, in mappings too."""
    return {
        str(name): _HIDDEN if value is not None and _SECRET_NAME.search(str(name)) else _shown_value(value)
        for name, value in sorted(settings.items(), key=lambda item: str(item[0]))
    }


def _shown_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return shown_configuration(value)
    if isinstance(value, list | tuple):
        return [_shown_value(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else _shown_text(str(value))


class RedactingFormatter(logging.Formatter):
    """Formats records of a log without the secrets that `redacted` finds, whoever wrote them into an error."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class Redacted:
    """A dataclass whose `repr` shows no secrets (`SECRET`, mappings, URLs); made with `@dataclass(repr=False)`."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __repr__(self) -> str:
        fields = [each for each in dataclasses.fields(self) if each.repr]
        fields.sort(key=lambda each: each.kw_only is True)  # positional options come first, as in the call
        return f"{type(self).__qualname__}({', '.join(f'{each.name}={self.text_of(each.name)}' for each in fields)})"

    def text_of(self, name: str) -> str:
        value, field = getattr(self, name), self.__dataclass_fields__[name]
        hidden = value is not None and "trident.secret" in field.metadata
        text = repr(_HIDDEN if hidden else _without_secrets(value))
        return text if isinstance(value, (str, Mapping, list, tuple)) else redacted(text)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {
            name: _HIDDEN if isinstance(inner, str | bytes) else _without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(map(_without_secrets, value)) if type(value) in (list, tuple) else value
    return value
