"""Finding operation types."""

import logging
import re
from importlib.metadata import EntryPoint

import pytest

from distop.errors import InvalidArgument, UnknownOperationType
from distop.operations import registry as registries
from distop.operations.noop import Noop
from distop.operations.registry import GROUP, VARIABLE, Registry
from support.types.probes import PROBES, Hooked


def test_installed_types_are_found_by_their_entry_points() -> None:
    registry = Registry(())
    assert {"ingest", "noop"} <= set(registry.names())
    assert isinstance(registry.get("noop"), Noop)
    assert registry.get("noop") is registry.get("noop"), "one stateless object serves all"


def test_a_type_that_is_refused_keeps_no_other_from_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: whichever way each is named."""
    installed = EntryPoint("hooked", "support.types.probes:Hooked", GROUP)
    monkeypatch.setattr(registries, "_installed", lambda: {"hooked": installed})
    registry = Registry(("no.such.module:Broken",))
    refused = []
    for name in registry.of_users():
        try:
            registry.load(name)
        except InvalidArgument as error:
            registry.refuse(name, error.message)
            refused.append(name)
    assert refused == ["no.such.module:Broken"]
    assert isinstance(registry.get("hooked"), Hooked)


def test_types_without_a_package_are_named_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(Registry(PROBES).get("hooked")).__name__ == "Hooked"
    monkeypatch.setenv(VARIABLE, " support.types.probes:Hooked ,,support.types.probes:Slow,")
    assert {"hooked", "slow", "noop"} <= set(Registry().names())
    assert isinstance(Registry().get("hooked"), Hooked)


@pytest.mark.parametrize("level", ["DEBUG", "WARNING"])
def test_types_of_users_log_as_much_as_distop(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Lines at info of a job were dropped as those of libraries are."""
    package = logging.getLogger("support")
    monkeypatch.setattr(package, "level", logging.NOTSET)
    logging.getLogger("distop").setLevel(level)
    Registry(PROBES).get("hooked")
    assert package.level == logging.getLogger("distop").level


def test_an_unknown_type_is_told_what_is_known() -> None:
    """U3."""
    with pytest.raises(UnknownOperationType, match=r"'vacuum'.*noop") as caught:
        Registry(()).get("vacuum")
    assert caught.value.details == {"field": "type"}
    assert "distop.operations" in caught.value.hint


@pytest.mark.parametrize(
    "item",
    [
        "support.types.probes",
        "support.types.probes:Nothing",
        "support.types.probes:PROBES",
        "no.such.module:Hooked",
        ":Hooked",
    ],
)
def test_a_wrong_setting_is_named(item: str) -> None:
    """U3."""
    with pytest.raises(InvalidArgument, match=re.escape(item)):
        Registry((item,)).names()
