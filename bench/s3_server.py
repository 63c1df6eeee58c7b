"""An S3 API on loopback: moto's server for S3 alone, which spares it looking for the service of each request.

``s3_server.py PORT``: serves until it is ended. Everything is kept in memory.
"""

from __future__ import annotations

import logging
import sys

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


def main(port: str) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = create_backend_app("s3")
    make_server("127.0.0.1", int(port), application, True, request_handler=MotoRequestHandler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
