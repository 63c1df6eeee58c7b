"""Certificates for tests, in files that can be replaced as a renewal does it."""

from __future__ import annotations

import os
from pathlib import Path

import trustme


def put(path: Path, content: bytes) -> str:
    """Replace a file at once; its path."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)
    return str(path)


def put_pair(folder: Path, name: str, issued: trustme.LeafCert) -> tuple[str, str]:
    """The paths of a certificate and its key."""
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    return put(folder / f"{name}.crt", chain), put(folder / f"{name}.key", issued.private_key_pem.bytes())
