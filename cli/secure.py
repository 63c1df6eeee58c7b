"""The CA, certificates and tokens of ``distop dev --secure``, as files in one folder.

Missing ones are created, existing ones are used again. For trying things out only: the key of the CA is in
the same folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from distop.client import AsyncClient, Credentials, Grant
from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import FREQUENT_COMPACTION, EtcdProcess, free_port

ADMIN, LANDING = "admin", "landing"
ROLES = {"writer": "writer", "operator": "operator", "reader": "reader", LANDING: "operator"}
"""Subjects, in addition to the admin, that get a role on all tables, by name."""

GRANTS = [Grant(who=who, role=role, tables=("*",)) for who, role in ROLES.items()]

CA_DAYS, DAYS, RENEWED_DAYS = 3650, 365, 30
"""Validity of certificates, and how long before their end they are renewed."""

_TOKEN = ".token"
_EVERY = ("0.0.0.0", "::", "")


class Security:
    """The files in ``folder``, which is created if missing; only their owner may read them.

    Each file ``NAME.token`` is the token of the subject NAME. A file that is added or removed takes effect at
    the next start.

    Parameters
    ----------
    hosts:
        Names and addresses that the certificate of the services must contain in addition to those of
        loopback.

    Raises
    ------
    InvalidArgument
        The folder cannot be used, or its content is invalid.
    """

    def __init__(self, folder: Path, hosts: Iterable[str] = ()) -> None:
        self.folder = folder
        names = {"localhost", "127.0.0.1", "::1"}
        names |= {socket.gethostname() if host in _EVERY else host for host in hosts}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            authority = self._authority()
            self._leaf("server", authority, ExtendedKeyUsageOID.SERVER_AUTH, names)
            self._leaf("etcd", authority, ExtendedKeyUsageOID.CLIENT_AUTH, {"distop"})
            self._tokens()
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"{folder} cannot be used: {error}",
                hint="remove it; the next start creates it again",
                details={"field": "data"},
            ) from None

    def path(self, name: str) -> str:
        """Path of one of the files."""
        return str(self.folder / name)

    def token_path(self, subject: str) -> str:
        """Path of a subject's token."""
        return self.path(subject + _TOKEN)

    def credentials(self, subject: str) -> Credentials:
        """What a subject presents to coordinators."""
        return Credentials(ca=self.path("ca.crt"), token_file=self.token_path(subject))

    def coordinator_arguments(self) -> list[str]:
        """Settings of a coordinator with TLS and authentication."""
        pair = ["--tls-cert", self.path("server.crt"), "--tls-key", self.path("server.key")]
        return [*pair, "--token-file", self.path("tokens"), "--admin", ADMIN]

    def etcd(self, data: Path, port: int = 0) -> tuple[EtcdProcess, EtcdConfig]:
        """An etcd (not started) that accepts only clients with the certificate, and how to connect to it.

        ``port`` 0 takes a free one. It serves health and metrics in plain text, on a separate port.
        """
        config = EtcdConfig(
            endpoints=(f"https://127.0.0.1:{port or free_port()}",),
            ca_cert=self.path("ca.crt"),
            cert=self.path("etcd.crt"),
            key=self.path("etcd.key"),
        )
        health, url = free_port(), f"https://{config.endpoints[0]}"
        options = (
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-metrics-urls=http://127.0.0.1:{health}",
            f"--cert-file={self.path('server.crt')}",
            f"--key-file={self.path('server.key')}",
            f"--trusted-ca-file={self.path('ca.crt')}",
            "--client-cert-auth",
            *FREQUENT_COMPACTION,
        )
        return EtcdProcess(data, client_port=health, options=options), config

    async def grant(self, client: AsyncClient) -> None:
        """Create the initial grants, once: grants that are removed later stay removed."""
        done = self.folder / "granted"
        if not done.exists():
            await client.change_grants(GRANTS, reason="distop dev --secure")
            _put(done, b"")

    def _authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        if not (self.folder / "ca.crt").exists():  # it is written after its key
            key = ec.generate_private_key(ec.SECP256R1())
            name = _name("distop dev")
            builder = _builder(name, name, key.public_key(), CA_DAYS)
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
            _put(self.folder / "ca.key", _pem(key))
            _put(self.folder / "ca.crt", builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return self._pair("ca")

    def _pair(self, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        certificate = x509.load_pem_x509_certificate((self.folder / f"{name}.crt").read_bytes())
        key = load_pem_private_key((self.folder / f"{name}.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError(f"{name}.key is not the key of {name}.crt")
        return certificate, key

    def _leaf(
        self,
        name: str,
        authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
        purpose: x509.ObjectIdentifier,
        hosts: set[str],
    ) -> None:
        """A certificate of the CA; the existing one while it is valid and names these hosts."""
        issuer, issuer_key = authority
        wanted = {_general_name(host) for host in hosts}
        # One that is missing, half of a pair, or of another CA is created again.
        with contextlib.suppress(OSError, ValueError, InvalidSignature, x509.ExtensionNotFound):
            there, _ = self._pair(name)
            there.verify_directly_issued_by(issuer)
            named = set(there.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
            if wanted <= named and there.not_valid_after_utc > _in_days(RENEWED_DAYS):
                return
            wanted |= named
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name("distop"), issuer.subject, key.public_key(), DAYS)
        from_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([purpose]), False),
            (x509.SubjectAlternativeName(sorted(wanted, key=repr)), False),
            (from_issuer, False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        _put(self.folder / f"{name}.key", _pem(key))
        signed = builder.sign(issuer_key, hashes.SHA256())
        _put(self.folder / f"{name}.crt", signed.public_bytes(Encoding.PEM))

    def _tokens(self) -> None:
        for subject in (ADMIN, *ROLES):
            if not (path := self.folder / f"{subject}{_TOKEN}").exists():
                _put(path, f"{secrets.token_urlsafe(32)}\n".encode())
        lines = [
            f"{path.stem}:{sha256(path.read_text().strip().encode()).hexdigest()}\n"
            for path in sorted(self.folder.glob(f"*{_TOKEN}"))
        ]
        _put(self.folder / "tokens", "".join(lines).encode())


def _put(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only by its owner."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _in_days(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    # Clocks may be wrong by an hour.
    since = datetime.now(UTC) - timedelta(hours=1)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(since)
    builder = builder.not_valid_after(_in_days(days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
