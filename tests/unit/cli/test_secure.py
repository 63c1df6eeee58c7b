"""What ``distop dev --secure`` makes where it is missing, and keeps while it holds: certificates, tokens."""

from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509

from distop.cli import secure
from distop.cli.secure import Security
from distop.errors import InvalidArgument


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in named}


def test_valid_certificates_are_kept_and_others_are_made_anew(tmp_path: Path) -> None:
    """S3"""
    folder = tmp_path / "secure"
    Security(folder, ["127.0.0.1", "[::1]"])
    first = contents(folder)
    Security(folder, ["localhost"])
    assert contents(folder) == first
    server = {"server.crt", "server.key"}
    for broken in (b"no certificate", first["etcd.crt"]):
        (folder / "server.crt").write_bytes(broken)
        Security(folder)
        now = contents(folder)
        assert {name for name in now if now[name] != first[name]} == server
    (folder / "etcd.key").unlink()
    Security(folder, ["coordinator.example", "192.0.2.7"])
    assert contents(folder)["etcd.crt"] != first["etcd.crt"]
    wanted = {"localhost", "127.0.0.1", "::1", "coordinator.example", "192.0.2.7"}
    assert names(folder) == wanted
    # A start on another address does not take the name away that others know it by.
    Security(folder, ["other.example"])
    assert names(folder) == wanted | {"other.example"}
    assert contents(folder)["ca.crt"] == first["ca.crt"]


def test_a_certificate_is_made_anew_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4"""
    with monkeypatch.context() as patched:
        patched.setattr(secure, "DAYS", secure.RENEWED_DAYS - 1)
        Security(tmp_path)
    first = contents(tmp_path)
    Security(tmp_path)
    now = contents(tmp_path)
    assert {name for name in now if now[name] != first[name]} == {
        f"{name}.{kind}" for name in ("server", "etcd") for kind in ("crt", "key")
    }


def test_tokens_are_those_that_lie_there(tmp_path: Path) -> None:
    """S3"""
    security = Security(tmp_path)
    (tmp_path / "jane.token").write_text("hers\n")
    Path(security.token_path("reader")).unlink()
    before = (tmp_path / "tokens").read_text()
    Security(tmp_path)
    lines = dict(line.split(":") for line in (tmp_path / "tokens").read_text().splitlines())
    assert set(lines) == {"admin", "jane", "landing", "operator", "reader", "writer"}
    assert lines["jane"] == sha256(b"hers").hexdigest()
    known = dict(line.split(":") for line in before.splitlines())
    assert {name for name in known if known[name] != lines[name]} == {"reader"}


def test_a_ca_whose_key_is_another_one_is_refused(tmp_path: Path) -> None:
    security = Security(tmp_path)
    (tmp_path / "ca.key").write_bytes(Path(security.path("server.key")).read_bytes())
    with pytest.raises(InvalidArgument, match=r"ca\.key .*ca\.crt"):
        Security(tmp_path)
