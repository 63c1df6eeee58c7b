"""Etcds of a test's own: with users, with certificates, with little room."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.embedded import EtcdProcess, find_etcdctl, free_port
from support.processes import captured


def etcdctl(etcd: EtcdProcess, *arguments: str) -> str:
    """Run etcdctl against ``etcd``; what it says."""
    command = [str(find_etcdctl()), f"--endpoints={etcd.endpoint}", *arguments]
    done = captured(command, timeout=20, env={"ETCDCTL_API": "3"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def enable_users(etcd: EtcdProcess, *, user: str, password: str, prefix: str) -> None:
    """Let in ``root`` (password ``root``), and ``user`` below the keys of ``prefix`` only."""
    etcdctl(etcd, "user", "add", "root:root")
    etcdctl(etcd, "user", "grant-role", "root", "root")
    etcdctl(etcd, "role", "add", "distop")
    etcdctl(etcd, "role", "grant-permission", "distop", "readwrite", "--prefix", prefix)
    etcdctl(etcd, "user", "add", f"{user}:{password}")
    etcdctl(etcd, "user", "grant-role", user, "distop")
    etcdctl(etcd, "auth", "enable")


async def fill(client: EtcdClient, key: bytes) -> None:
    """Write versions of ``key`` until an etcd with a small quota has had enough, which it notices late."""
    for _ in range(500):
        await client.put(key, bytes(300_000))


@dataclass(frozen=True)
class Certificates:
    """A certificate authority of a test's own, and what it signed. Paths of PEM files."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str


def make_certificates(folder: Path) -> Certificates:
    """A CA, a server's certificate for 127.0.0.1, and a client's."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=20)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", "-days", "1")
    for name, usage in (("server", "serverAuth"), ("client", "clientAuth")):
        (folder / f"{name}.ext").write_text(f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={usage}\n")
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed_by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1")
        extensions = ("-extfile", f"{name}.ext")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed_by, *extensions)
    names = ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")
    return Certificates(*(str(folder / name) for name in names))


def etcd_with_tls(folder: Path, certificates: Certificates) -> tuple[EtcdProcess, str]:
    """An etcd (not started) that also speaks mutual TLS, and the endpoint where it does."""
    secure = f"127.0.0.1:{free_port()}"
    plain = f"127.0.0.1:{free_port()}"
    options = (
        f"--listen-client-urls=http://{plain},https://{secure}",
        f"--advertise-client-urls=https://{secure}",
        f"--cert-file={certificates.server_cert}",
        f"--key-file={certificates.server_key}",
        f"--trusted-ca-file={certificates.ca}",
        "--client-cert-auth",
    )
    return EtcdProcess(folder, client_port=int(plain.rpartition(":")[2]), options=options), secure
