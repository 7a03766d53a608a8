"""Every stored format, byte by byte: what an earlier release wrote is read, and the same is written today.

A file of `golden/` has a line for each sample: its name and its bytes in hex. Formats of a released version are never
changed; a new version gets files of its own, and the old ones stay.
"""

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from confluent_kafka import TopicPartition

from spouts.kafka.clients import Spot
from spouts.kafka.offset_commits import PartitionWork
from spouts.spark.chunks import Chunk, read_manifest, write_manifest
from states.delta.fence import CommitNote
from tests.harness.crashing_stores import DictMap
from tests.state.samples import same
from trident.errors import CorruptValueError, SpoutError
from trident.fields import Fields
from trident.log import framing
from trident.log.file_log import FileLog
from trident.log.lock import Claim, SegmentName
from trident.log.log_reader import LogReader
from trident.log.log_state import LogState
from trident.log.records import (
    AdoptRecord,
    CommitRecord,
    DefineRecord,
    LayoutRecord,
    Record,
    ResetRecord,
    StartRecord,
    TopologyRecord,
    record_from_data,
)
from trident.run.dead_letters import DeadLetter
from trident.state import (
    CodecSerializer,
    Key,
    OpaqueValue,
    Sentinel,
    SerializedMap,
    StateType,
    TransactionalValue,
    decode,
    encode,
)
from trident.state.encoding.codec import decode_keys, decode_many, encode_keys, encode_many
from trident.state.encoding.serializers import Serializer, serializer_for
from trident.state.txid import Winners
from trident.steps.failures import Failure, LeftOut

GOLDEN = Path(__file__).parent / "golden"
BERLIN = ZoneInfo("Europe/Berlin")

VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "int": 7,
    "int-negative": -1,
    "int-16": 300,
    "int-32": -70_000,
    "int-64": 2**63 - 1,
    "int-unsigned-64": 2**63,
    "int-big": 2**64,
    "int-big-negative": -(2**63) - 1,
    "float": 0.1,
    "float-negative-zero": -0.0,
    "float-infinity": math.inf,
    "float-nan": math.nan,
    "text-empty": "",
    "text": "žluť",
    "text-40": "x" * 40,
    "text-300": "x" * 300,
    "bytes": b"\x00\xff",
    "decimal": Decimal("-1.10"),
    "decimal-38-18": Decimal("12345678901234567890.123456789012345678"),
    "decimal-exponent": Decimal("1E+5"),
    "date": dt.date(2024, 2, 29),
    "datetime-naive": dt.datetime(2024, 2, 29, 1, 2, 3, 4),
    "datetime-utc": dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
    "datetime-zone": dt.datetime(2024, 10, 27, 2, tzinfo=BERLIN, fold=1),
    "datetime-offset": dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2), "CEST")),
    "time": dt.time(1, 2, 3, 4),
    "timedelta": dt.timedelta(-1, 5, 6),
    "tuple": (1, "a"),
    "list": [1, "a"],
    "list-20": list(range(20)),
    "dict": {"a": 1, 2: [()]},
    "set": {"b", "a"},
    "frozenset": frozenset(),
    "uuid": UUID(int=1),
    "nested": {"rows": [(Decimal("1.0"), None), (dt.date(1, 1, 1), [frozenset([1])])]},
}

KEYS: dict[str, Key] = {
    "empty": (),
    "text": ("the",),
    "two-texts": ("the", "cow"),
    "int": (1,),
    "bool": (True,),
    "float": (1.0,),
    "float-zero": (0.0,),
    "nan": (math.nan,),
    "decimal": (Decimal("1.1"),),
    "decimal-zero": (Decimal(0),),
    "none": (None,),
    "bytes": (b"\x00",),
    "date": (dt.date(2024, 2, 29),),
    "datetime-naive": (dt.datetime(2024, 2, 29, 1, 2, 3, 4),),
    "datetime-utc": (dt.datetime(2024, 2, 29, tzinfo=dt.UTC),),
    "nested": ((1, ("a",)), None),
    "snapshot": ("$MAP-STATE-GLOBAL$",),
    "sentinel": ("\x00trident-sentinel", 3),
    "sixteen": tuple(range(16)),
}

A = 1 << 20
OPAQUE, TRANSACTIONAL = OpaqueValue(3, A, None, [1.5, "ž"]), TransactionalValue(3, {"a": 1})
SENTINEL = Sentinel("0123456789abcdef", 3, A + 1, "words/count", True, "4f1c")
STORED: dict[str, tuple[str, StateType, Any]] = {
    "codec-opaque": ("codec", StateType.OPAQUE, OPAQUE),
    "codec-transactional": ("codec", StateType.TRANSACTIONAL, TRANSACTIONAL),
    "codec-non-transactional": ("codec", StateType.NON_TRANSACTIONAL, 7),
    "codec-sentinel": ("codec", StateType.OPAQUE, SENTINEL),
    "json-opaque": ("json", StateType.OPAQUE, OPAQUE),
    "json-transactional": ("json", StateType.TRANSACTIONAL, TRANSACTIONAL),
    "json-non-transactional": ("json", StateType.NON_TRANSACTIONAL, "ž"),
    "json-sentinel": ("json", StateType.TRANSACTIONAL, SENTINEL),
}

RECORDS: dict[str, Record] = {
    "define": DefineRecord(1, "lines", {"files": [["a", 0, 10]], "raw": b"\x00\xff", "f": 0.5, "none": None}),
    "topology": TopologyRecord(
        {"counts": {"kind": "opaque", "key": ["word: string"], "by": "Count", "streams": ["lines"]}},
        {"lines": {"spout": "TextFileSpout", "promise": "transactional", "fields": ["line: string"]}},
    ),
    "start": StartRecord(7, ("counts",)),
    "commit": CommitRecord(
        1, A, {"lines": [1, 10]}, {"counts": [0, 3]}, {"tuples": 9}, 1_700_000_000_000, {"states": {}, "streams": {}}
    ),
    "layout": LayoutRecord("counts", 4, "opaque"),
    "layout-claimed": LayoutRecord("counts", 4, "opaque", 7 << 20),
    "adopt": AdoptRecord("counts", 9, True, {0: (9, 0), 1: (8, 3)}),
    "reset": ResetRecord("total"),
}


def golden(name: str) -> dict[str, bytes]:
    """Read a file of samples."""
    lines = (GOLDEN / f"{name}.txt").read_text(encoding="ascii").splitlines()
    return {name: bytes.fromhex(data) for name, data in (line.split() for line in lines)}


def check(name: str, written: dict[str, bytes]) -> dict[str, bytes]:
    """Compare what is written today with the file of samples; return the file."""
    found = golden(name)
    differing = {sample: data.hex() for sample, data in written.items() if found.get(sample) != data}
    assert not differing
    assert list(found) == list(written)
    return found


def test_values() -> None:
    found = check("values.v1", {name: encode(value) for name, value in VALUES.items()})
    assert encode_many(list(VALUES.values())) == list(found.values())
    for name, value in VALUES.items():
        assert same(decode(found[name]), value)
    assert same(decode_many(list(found.values())), list(VALUES.values()))


def test_keys() -> None:
    found = check("keys.v1", {name: encode_keys([key])[0] for name, key in KEYS.items()})
    assert encode_keys(list(KEYS.values())) == list(found.values())
    for name, key in KEYS.items():
        assert same(decode_keys([found[name]]), [key])


def test_stored_values_and_sentinels() -> None:
    serializers: dict[str, Serializer] = {name: serializer_for(by, kind) for name, (by, kind, _) in STORED.items()}
    found = check("stored.v1", {name: serializers[name].serialize(item) for name, (_, _, item) in STORED.items()})
    for name, (_, _, item) in STORED.items():
        assert same(serializers[name].deserialize(found[name]), item)


def test_the_transaction_log(tmp_path: Path) -> None:
    state = LogState("0123456789abcdef", "words")
    (tmp_path / "epoch-00000006").touch()
    log = FileLog(tmp_path, Claim.take(tmp_path, False), state, 1 << 20)
    log._begin_segment(None)
    for record in RECORDS.values():
        log.append(record, durable=not isinstance(record, DefineRecord))
    first, second = SegmentName(7, 1).file, SegmentName(7, 2).file
    log._begin_segment(log._segment)  # its header is full of state
    written = {"segment-1": (tmp_path / first).read_bytes()}
    log.close()
    written["segment-2"] = (tmp_path / second).read_bytes()
    payloads = {name: framing.encode(record.to_data()) for name, record in RECORDS.items()}

    found = check("log.v1", written | payloads)
    for name, record in RECORDS.items():
        assert record_from_data(framing.decode(found[name])) == record
    for segment, file in (("segment-1", first), ("segment-2", second)):
        folder = tmp_path / segment
        folder.mkdir()
        (folder / file).write_bytes(found[segment])
        assert LogReader(folder).refresh() == state


LETTER = DeadLetter(
    3, A, 0, Failure("Price", "('ž',)", "KeyError: 'ž'", details="at", left_out=LeftOut({"n": 1}, "s-1", 0, 1, 4))
)


def test_records_of_json(tmp_path: Path) -> None:
    manifest = write_manifest(str(tmp_path), "1f", Fields("n: long"), [Chunk("a", 1, 8, 90, 7)], "the stream 's'")
    work = PartitionWork(10, -1)
    work.begin("topic-id", 3)
    for offset in range(10, 15):
        work.arrive(offset, None)
    for offset in range(12, 15):
        work.finish(offset)
    work.failures[11] = 2
    commit: Any = work.to_commit(Spot("topic", 0))
    written = {
        "dead-letter": LETTER.to_line().encode(),
        "manifest": (tmp_path / "manifest.json").read_bytes(),
        "offset-notes": commit.metadata.encode(),
        "delta-commit": CommitNote(3, A, "0f", Winners(((1, 3),))).metadata()["trident.commit"].encode(),
    }
    found = check("json.v1", written)
    assert DeadLetter.of_line(found["dead-letter"].decode()) == LETTER
    (tmp_path / "manifest.json").write_bytes(found["manifest"])
    assert read_manifest(str(tmp_path)) == manifest
    again = PartitionWork.of(TopicPartition("topic", 0, 10, found["offset-notes"].decode()))
    assert (again.topic_id, again.partitions, list(again.done), again.failures) == ("topic-id", 3, [(12, 15)], {11: 2})
    assert CommitNote.found_in({"trident.commit": found["delta-commit"]}) == CommitNote(3, A, "0f", Winners(((1, 3),)))


def test_a_letter_or_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is of version 2; this version of the software reads version 1"):
        DeadLetter.of_line(LETTER.to_line().replace('"version": 1', '"version": 2'))
    newer = golden("json.v1")["manifest"].replace(b'"version": 1', b'"version": 2')
    (tmp_path / "manifest.json").write_bytes(newer)
    with pytest.raises(SpoutError, match=r"manifest.json cannot be read .* it is of version 2"):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize("version", [0, 2, 255])
def test_a_version_that_is_not_known_is_refused_with_its_key(version: int) -> None:
    good = golden("stored.v1")["codec-opaque"]
    store = DictMap({("good",): good, ("newer",): bytes([version]) + good[1:]})
    state = SerializedMap(store, CodecSerializer())
    with pytest.raises(CorruptValueError, match=r"read key \('newer',\): decode b.*newer version. Use the serializer"):
        state.multi_get([("good",), ("newer",), ("good",)])
    with pytest.raises(CorruptValueError, match="newer version"):
        decode_keys([bytes([version]) + golden("keys.v1")["text"][1:]])
