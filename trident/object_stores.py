"""What the errors of object stores say, as delta-rs and obstore raise them: whether one is away, or refuses, in few words."""

import re

from trident.redaction import redacted

_NO_ANSWER = re.compile(r"error sending request|HTTP error|timed out|non-2xx status code")
_REFUSAL = re.compile(r"non-2xx status code: 40[13]")
_COLOUR = re.compile("\x1b\\[\\d*m↳? ?")
_BACKTRACE = re.compile(r"\d+: |at |clone3?$|start_thread$")


def is_refused(error: BaseException) -> bool:
    """Whether the store does not permit it."""
    return _REFUSAL.search(str(error)) is not None


def is_unanswered(error: BaseException) -> bool:
    """Whether the store did not answer, or only that it cannot at the moment."""
    return _NO_ANSWER.search(str(error)) is not None and not is_refused(error)


def short(error: BaseException) -> str:
    """Return the text of an error without secrets, and without the colours, stack traces and sources that some have."""
    text = str(error).partition("Debug source:")[0]
    lines = [line.strip() for line in _COLOUR.sub("", redacted(text)).splitlines()]
    return "; ".join(line for line in lines if line and not _BACKTRACE.match(line))[:500]
