"""Sources of topologies that tests pack, a folder with them, and packages made by hand, good and hostile ones."""

import hashlib
import io
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trident.cluster.code_store import CodeStore
from trident.cluster.package_archive import MANIFEST, PackageManifest, archive_of

COUNTS_OF_WORDS = """
    from spouts import FixedBatchSpout
    from states.memory import MemoryMapState
    from trident import TridentTopology
    from trident.operations import Count, Split

    topology = TridentTopology("word-counts")
    lines = topology.new_stream("lines", FixedBatchSpout("line: string", 2, ["the cow"], ["the moon"]))
    words = lines.each("line", Split(), "word").group_by("word")
    words.persistent_aggregate(MemoryMapState(), Count(), "count")
"""

BOLTS = """
    from trident.storm import BaseBasicBolt, BaseRichSpout, TopologyBuilder

    class Words(BaseRichSpout):
        def declare_output_fields(self, declarer):
            declarer.declare("word")

        def next_tuple(self):
            pass

    class Nothing(BaseBasicBolt):
        def execute(self, tuple, collector):
            pass

    builder = TopologyBuilder()
    builder.set_spout("words", Words())
    builder.set_bolt("count", Nothing(), 2).set_num_tasks(4).shuffle_grouping("words")
"""


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, by their paths; returns the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


def package_of(content: Mapping[str, bytes], **manifest: Any) -> tuple[str, bytes]:
    """Return the hash and the bytes of a package of these files."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    facts = {"target": "a.py:topology", "kind": "trident", "name": "a", "files": digests, **manifest}
    data = archive_of(PackageManifest(**facts), content)
    return hashlib.sha256(data).hexdigest(), data


def archive_by_hand(entries: Mapping[str, bytes], mode: int = 0, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip of entries as they are, with a manifest that names them."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in entries.items()}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        manifest = PackageManifest("a.py:topology", "trident", "a", files=digests)
        archive.writestr(zipfile.ZipInfo(MANIFEST), manifest.to_bytes())
        for name, data in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr, entry.compress_type = mode << 16, compression
            archive.writestr(entry, data)
    return target.getvalue()


def put(store: CodeStore, sha256: str, data: bytes) -> None:
    with store.incoming(sha256) as take:
        take(data)
