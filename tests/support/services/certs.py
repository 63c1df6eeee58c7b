"""Certificates for tests, in files that can be replaced as a renewal does it."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


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


def issued(ca: trustme.CA, *names: x509.GeneralName, common: str = "") -> trustme.LeafCert:
    """A certificate of a CA with exactly these names; trustme's own knows no URIs."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    subject = [x509.NameAttribute(x509.NameOID.COMMON_NAME, common)] if common else []
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(x509.load_pem_x509_certificate(ca.cert_pem.bytes()).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=not subject)
    signer: Any = load_pem_private_key(ca.private_key_pem.bytes(), None)
    signed = made.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return trustme.LeafCert(private, signed, [])
