"""A bucket that speaks as much of the S3 protocol as object stores' clients need, on a free loopback port."""

import hashlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree


class Bucket:
    """A server in a process of its own: delta-rs keeps Python's lock while it asks for the history of a table."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def facts(self) -> dict[str, Any]:
        """The names of the objects, and who signed requests."""
        with urllib.request.urlopen(f"{self.url}/?facts") as answer:
            facts: dict[str, Any] = json.load(answer)
        return facts

    def refuse(self, what: str = "writes") -> None:
        """Answer writes, or everything, with 503 from now on."""
        urllib.request.urlopen(f"{self.url}/?refuse={what}").close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def storage(bucket: Bucket) -> dict[str, str]:
    """Return the options of a state in a bucket."""
    return {
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "nowhere",
        "AWS_ACCESS_KEY_ID": "a-user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONDITIONAL_PUT": "etag",
        "max_retries": "0",
    }


_BUSY = b"<Error><Code>SlowDown</Code></Error>"


class _Store:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.signers: set[str] = set()
        self.refusing = "nothing"
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    store = _Store()

    def do_GET(self) -> None:
        name, query = self._name()
        if "facts" in query:
            facts = {"names": sorted(self.store.objects), "signers": sorted(self.store.signers)}
            self._answer(200, json.dumps(facts).encode())
        elif "refuse" in query:
            self.store.refusing = query["refuse"][0]
            self._answer(200, b"")
        elif self.store.refusing == "everything":
            self._answer(503, _BUSY)
        elif "list-type" in query:
            self._list(query.get("prefix", [""])[0], query.get("delimiter", [""])[0], query.get("start-after", [""])[0])
        else:
            self._read(name, body=True)

    def do_HEAD(self) -> None:
        self._read(self._name()[0], body=False)

    def do_PUT(self) -> None:
        name, query = self._name()
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.store.refusing != "nothing":
            self._answer(503, _BUSY)
            return
        with self.store.lock:
            if self.headers.get("If-None-Match") == "*" and name in self.store.objects:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            source = unquote(self.headers.get("x-amz-copy-source", "")).lstrip("/").partition("/")[2]
            if source and source not in self.store.objects:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            data = self.store.objects[source] if source else data
            if "partNumber" in query:
                self.store.parts.setdefault(name, {})[int(query["partNumber"][0])] = data
            else:
                self.store.objects[name] = data
        copied = f"<CopyObjectResult><ETag>{_tag(data)}</ETag></CopyObjectResult>".encode() if source else b""
        self._answer(200, copied, ETag=_tag(data))

    def do_DELETE(self) -> None:
        with self.store.lock:
            self.store.objects.pop(self._name()[0], None)
        self._answer(204, b"")

    def do_POST(self) -> None:
        name, query = self._name()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "uploads" in query:
            self._answer(200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
        elif "uploadId" in query:
            with self.store.lock:
                data = b"".join(part for _, part in sorted(self.store.parts.pop(name).items()))
                self.store.objects[name] = data
            text = f"<CompleteMultipartUploadResult><ETag>{_tag(data)}</ETag></CompleteMultipartUploadResult>"
            self._answer(200, text.encode())
        else:
            names = [found.text or "" for found in ElementTree.fromstring(body).iter() if found.tag.endswith("Key")]
            with self.store.lock:
                for one in names:
                    self.store.objects.pop(one, None)
            deleted = "".join(f"<Deleted><Key>{one}</Key></Deleted>" for one in names)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _name(self) -> tuple[str, dict[str, list[str]]]:
        signed = self.headers.get("Authorization", "")
        if "Credential=" in signed:
            self.store.signers.add(signed.partition("Credential=")[2].partition("/")[0])
        url = urlsplit(self.path)
        return unquote(url.path).lstrip("/").partition("/")[2], parse_qs(url.query, keep_blank_values=True)

    def _read(self, name: str, body: bool) -> None:
        data = self.store.objects.get(name)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if body else b"")
            return
        status, extra, part = 200, {}, data
        if "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start = int(first) if first else len(data) - int(last)
            end = min(int(last), len(data) - 1) if first and last else len(data) - 1
            status, part = 206, data[start : end + 1]
            extra = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
        self._answer(status, part, body, ETag=_tag(data), **{"Accept-Ranges": "bytes"}, **extra)

    def _list(self, prefix: str, delimiter: str, after: str) -> None:
        with self.store.lock:
            found = {n: d for n, d in sorted(self.store.objects.items()) if n.startswith(prefix) and n > after}
        folders = {
            prefix + n[len(prefix) :].partition("/")[0] + "/" for n in found if delimiter and "/" in n[len(prefix) :]
        }
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        files = "".join(
            f"<Contents><Key>{n}</Key><LastModified>{when}</LastModified><ETag>{_tag(d)}</ETag><Size>{len(d)}</Size>"
            "</Contents>"
            for n, d in found.items()
            if not any(n.startswith(folder) for folder in folders)
        )
        common = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in sorted(folders))
        head = f"<Name>bucket</Name><Prefix>{prefix}</Prefix><KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>"
        self._answer(200, f"<ListBucketResult>{head}{files}{common}</ListBucketResult>".encode())

    def _answer(self, status: int, data: bytes, body: bool = True, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()))
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body and status != 204:
            self.wfile.write(data)


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
