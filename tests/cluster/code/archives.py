"""Packages that tests make by hand, good and hostile ones."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from typing import Any

from trident.cluster.code.code_store import CodeStore
from trident.cluster.code.package_archive import MANIFEST, PackageManifest, archive_of

__all__ = ["archive_by_hand", "package_of", "put"]


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
        archive.writestr(
            zipfile.ZipInfo(MANIFEST), PackageManifest("a.py:topology", "trident", "a", files=digests).to_bytes()
        )
        for name, data in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr, entry.compress_type = mode << 16, compression
            archive.writestr(entry, data)
    return target.getvalue()


def put(store: CodeStore, sha256: str, data: bytes) -> None:
    """Store a package."""
    with store.incoming(sha256) as package:
        package.write(data)
