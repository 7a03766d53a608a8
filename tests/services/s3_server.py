"""Moto's S3 on a port of this machine: `python s3_server.py PORT`.

It decides one request after the other, as S3 does for one object.
"""

import io
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_deciding = threading.Lock()


class _KeptOpen(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"


def main(port: int) -> None:
    """Serve until the process is killed."""
    moto = DomainDispatcherApplication(create_backend_app)

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # Read first: a request that comes slowly must not keep the others waiting.
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        with _deciding:
            return [b"".join(moto(environ, start_response))]

    make_server("127.0.0.1", port, serve, threaded=True, request_handler=_KeptOpen).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
