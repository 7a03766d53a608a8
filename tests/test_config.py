"""Config: what is read, what is refused, and with which words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from trident import Config
from trident.errors import ConfigError


def test_settings_come_from_a_config_a_mapping_and_keywords() -> None:
    base = Config(max_spout_pending=5, log_dir="a")
    assert Config.of(base, log_dir="b") == Config(max_spout_pending=5, log_dir="b")
    assert Config.of({"max_spout_pending": 5}, log_dir="b") == Config(max_spout_pending=5, log_dir="b")
    assert Config.of() == Config()


def test_text_is_read_as_the_type_of_its_key() -> None:
    read = Config.of(
        {
            "max_spout_pending": "4", "message_timeout_s": "2.5", "takeover": "yes", "allow_inexact": "False",
            "parallelism": "2", "log_dir": "7", "engine": "in_process",
        }
    )  # fmt: skip
    assert read == Config(4, message_timeout_s=2.5, takeover=True, parallelism=2, log_dir="7", engine="in_process")


def test_a_path_is_taken_as_text() -> None:
    assert Config.of(log_dir=Path("a/b")).log_dir == str(Path("a/b"))


def test_the_mapping_has_every_key() -> None:
    assert Config().as_mapping().keys() == {field.name for field in dataclasses.fields(Config)}
    assert Config.of(Config(parallelism=3).as_mapping()) == Config(parallelism=3)


def test_every_setting_is_described() -> None:
    described = Config.__doc__ or ""
    for field in dataclasses.fields(Config):
        assert field.name in described


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"max_spout_pendin": 1},
            "unknown setting 'max_spout_pendin'; did you mean 'max_spout_pending'[?] Known are: ",
        ),
        (
            {"zzz": 1},
            r"unknown setting 'zzz'\. Known are: allow_changed_topology, allow_inexact, auto_bytes, batch_emit_interval_ms",
        ),
        ({"max_spout_pending": 0}, "max_spout_pending=0: must be at least 1"),
        ({"max_batch_attempts": 0}, "max_batch_attempts=0: must be at least 1"),
        ({"progress_kept": 0}, "progress_kept=0: must be at least 1"),
        ({"parallelism": 0}, "parallelism=0: must be at least 1"),
        ({"poll_interval_ms": -1}, "poll_interval_ms=-1: must not be negative"),
        ({"retry_backoff_ms": -1}, "retry_backoff_ms=-1: must not be negative"),
        ({"message_timeout_s": 0}, "message_timeout_s=0: must be more than 0 seconds"),
        ({"max_spout_pending": "many"}, "max_spout_pending='many': expected a whole number"),
        ({"max_spout_pending": 1.5}, "max_spout_pending=1.5: expected a whole number"),
        ({"max_spout_pending": True}, "max_spout_pending=True: expected a whole number"),
        ({"message_timeout_s": "soon"}, "message_timeout_s='soon': expected a number"),
        ({"takeover": "perhaps"}, "takeover='perhaps': expected true or false"),
        ({"takeover": 1}, "takeover=1: expected true or false"),
        ({"on_poison": "skip"}, "on_poison='skip': expected one of 'stop', 'dead_letter'"),
        ({"engine": "storm"}, "engine='storm': expected one of 'spark', 'in_process'"),
        ({"state_recovery": "hope"}, "state_recovery='hope': expected one of 'refuse', 'rewind', 'keep_totals', "),
        ({"state_recovery": "adopt"}, "state_recovery='adopt': expected one of 'refuse', 'rewind', 'keep_totals'"),
        ({"spark_conf": "a=b"}, "spark_conf='a=b': expected a JSON object"),
        ({"log_dir": 7}, "log_dir=7: expected"),
        (
            {"log_dir": "https://host/log"},
            "log_dir='https://host/log': must be a folder on a local disk",
        ),
        ({"log_dir": Path("https://host/log")}, "log_dir='https:/host/log': must be a folder on a local disk"),
        ({"log_dir": "dbfs:/logs"}, "log_dir='dbfs:/logs': must be a folder on a local disk"),
        ({"dead_letter_dir": "file:///var/dead"}, "dead_letter_dir='file:///var/dead': must be a folder"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Config.of(settings)
