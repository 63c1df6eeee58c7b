"""A secret is shown only on explicit request."""

import copy
import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest

from distop.client import Credentials
from distop.client.credentials import Shown
from distop.coordinator.access.authentication import Proof
from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig
from distop.process.secret import NONE, Secret, revealed

TEXT = "canary9f3a"
HOLDERS = [
    Secret(TEXT),
    EtcdConfig(user="u", password=TEXT),
    Credentials(token=TEXT),
    Proof(Secret(TEXT)),
    {"storage": {"secret": Secret(TEXT)}},
]


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda one: type(one).__name__)
def test_a_secret_is_not_shown(holder: object, caplog: pytest.LogCaptureFixture) -> None:
    """S5: neither it nor what holds it, by text, log or error."""
    logging.getLogger("test").warning("shown %s %r", holder, holder, extra={"holder": str(holder)})
    told = [repr(holder), str(holder), f"{holder}", f"{holder!r:>40}", str(ValueError(holder)), caplog.text]
    assert not [text for text in told if TEXT in text]
    assert "***" in repr(holder)


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("dump", [pickle.dumps, json.dumps, msgspec.json.encode])
def test_a_secret_is_not_sent_by_accident(holder: object, dump: Callable[[object], object]) -> None:
    """S5"""
    with pytest.raises(TypeError):
        dump(holder)


def test_a_secret_is_revealed_on_request() -> None:
    assert Secret(Secret(TEXT)).reveal() == TEXT
    assert revealed({"a": {"key": Secret(TEXT), "anon": True}}) == {"a": {"key": TEXT, "anon": True}}
    assert EtcdConfig(user="u", password=TEXT).to_env()["DISTOP_ETCD_PASSWORD"] == TEXT
    assert Credentials(token=TEXT).to_env() == {"DISTOP_TOKEN": TEXT}


def test_a_secret_is_a_value() -> None:
    assert Secret(TEXT) == Secret(TEXT) != Secret("other")
    assert Secret(TEXT) != TEXT
    assert len({Secret(TEXT), Secret(TEXT), NONE}) == 2
    assert not NONE
    assert repr(NONE) == "''"
    assert copy.deepcopy(Secret(TEXT)) == copy.copy(Secret(TEXT)) == Secret(TEXT)
    config = EtcdConfig(user="u", password=TEXT)
    assert replace(config, timeout_s=1.0).password == Secret(TEXT) == asdict(config)["password"]


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "\u00e9", "\udc80", " ", "a" * 9_000])
def test_a_token_that_no_header_can_carry_is_refused_by_name(bad: str, tmp_path: Path) -> None:
    """U3, S5: without showing it."""
    file = tmp_path / "token"
    file.write_bytes(bad.encode(errors="surrogatepass"))
    for name, given in (("token", Credentials(token=bad)), ("token_file", Credentials(token_file=str(file)))):
        with pytest.raises(InvalidArgument) as refused:
            Shown(given)
        assert refused.value.details["field"] == name


def test_a_token_is_sent_without_blanks_around_it_and_kept_while_its_file_is_empty(tmp_path: Path) -> None:
    """S4"""
    file = tmp_path / "token"
    file.write_text("mine\n")
    for shown in (Shown(Credentials(token="mine\n")), Shown(Credentials(token_file=str(file)))):
        assert shown.metadata("127.0.0.1:1") == (("authorization", "Bearer mine"),)
        file.write_text("")
        assert shown.metadata("127.0.0.1:1") == (("authorization", "Bearer mine"),)
        file.write_text("mine\n")
