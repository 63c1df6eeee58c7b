"""Issuers of signed tokens: their keys, their tokens, and a server that tells the keys."""

import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa

URL, AUDIENCE = "https://issuer.example", "distop"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())

CLIENT, PASSWORD = "nightly", "the secret of nightly"
"""A program that the issuer knows."""


def key_set(**keys: Any) -> bytes:
    """Public keys by their ids."""
    listed = []
    for kid, key in keys.items():
        kind = (
            jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        )
        listed.append(json.loads(kind.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"})
    return json.dumps({"keys": listed}).encode()


def signed(key: Any = RSA, kid: str = "one", alg: str = "RS256", **claims: Any) -> str:
    """A token; a claim that is None is left out."""
    now = int(time.time())
    payload = {"iss": URL, "aud": AUDIENCE, "sub": "jane", "exp": now + 600, "iat": now} | claims
    kept = {name: value for name, value in payload.items() if value is not None}
    return jwt.encode(kept, key, algorithm=alg, headers={"kid": kid})


class Issuer(ThreadingHTTPServer):
    """An issuer that publishes its keys unless it is away, and gives tokens to programs (RFC 6749, 4.4)."""

    keys = key_set(one=RSA)
    away = False
    asked = 0
    bearer = ""
    """Whom it tells; empty: everybody."""
    elsewhere = ""
    """Where it says that its keys are; empty: here."""

    def __init__(self, ca: trustme.CA | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scheme = "https" if ca else "http"
        self.shown: list[tuple[str, str | None]] = []
        """The path and the ``Authorization`` header of each request."""
        if ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            ca.issue_cert("127.0.0.1").configure_cert(context)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Who does not trust it hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: Issuer
    timeout = 10

    def do_GET(self) -> None:
        issuer, authorization = self.server, self.headers["Authorization"]
        issuer.asked += 1
        issuer.shown.append((self.path, authorization))
        if issuer.away or (issuer.bearer and authorization != f"Bearer {issuer.bearer}"):
            return self._say(503 if issuer.away else 401, b"{}")
        config = json.dumps({"jwks_uri": issuer.elsewhere or f"{issuer.url}/keys"}).encode()
        return self._say(200, config if self.path.startswith("/.well-known/") else issuer.keys)

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        fields: Mapping[str, str] = {name: texts[-1] for name, texts in form.items()}
        if (fields.get("client_id"), fields.get("client_secret")) != (CLIENT, PASSWORD):
            return self._say(401, b'{"error": "invalid_client"}')
        token = signed(iss=self.server.url, sub=CLIENT, aud=fields.get("audience", "nobody"))
        reply = {"access_token": token, "token_type": "bearer", "expires_in": 600}
        return self._say(200, json.dumps(reply).encode())

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def issuing(ca: trustme.CA | None = None) -> Iterator[Issuer]:
    """An issuer on a free port; behind TLS if there is a CA."""
    with Issuer(ca) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
