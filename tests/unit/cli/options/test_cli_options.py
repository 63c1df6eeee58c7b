"""Options that many commands share, such as those about limits and about those who call."""

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from distop.cli.options.bundles import Bundle, command, expanded
from distop.cli.options.services import AccessOptions, LimitOptions
from distop.coordinator.api.calls import Limits
from distop.errors import InvalidArgument


@dataclass
class Place:
    host: Annotated[str, typer.Option()] = "here"
    port: Annotated[int, typer.Option()] = 1


def loudly(ctx: typer.Context, loud: Annotated[bool, typer.Option()] = False) -> str:
    return f"{ctx.info_name}{'!' if loud else ''}"


def greet(place: Annotated[Place, Bundle(Place)], voice: Annotated[str, Bundle(loudly)], name: str) -> int:
    """Greets."""
    print(f"{voice} {name} {place.host}:{place.port}")
    return 3


def test_a_bundle_is_replaced_by_its_options() -> None:
    made = expanded(greet)
    assert list(inspect.signature(made).parameters) == ["name", "host", "port", "ctx", "loud"]
    assert (made.__name__, made.__doc__) == ("greet", "Greets.")


def test_a_command_gets_what_its_bundles_make_and_returns_an_exit_code() -> None:
    app = typer.Typer()
    command(app)(greet)
    result = CliRunner().invoke(app, ["you", "--port", "7", "--loud"], standalone_mode=False)
    assert result.stdout == "greet! you here:7\n"
    assert result.return_value == 3


def meeting(place: Annotated[Place, Bundle(Place, panel="Where")], at: int = 9) -> str:
    return f"{place.host}:{place.port} at {at}"


def test_a_bundle_is_made_of_others() -> None:
    def announce(meeting: Annotated[str, Bundle(meeting)], name: str) -> None:
        print(f"{name}: {meeting}")

    made = expanded(announce)
    assert list(inspect.signature(made).parameters) == ["name", "at", "host", "port"]
    app = typer.Typer()
    command(app)(announce)
    result = CliRunner().invoke(app, ["you", "--host", "there"])
    assert result.stdout == "you: there:1 at 9\n"


def test_each_option_is_a_limit_of_its_own() -> None:
    assert LimitOptions().limits() == Limits()
    given = LimitOptions(caller_calls=1, caller_streams=2, caller_starts=3.0, all_calls=4, all_streams=5)
    assert given.limits() == Limits(calls_each=1, streams_each=2, starts_per_s=3.0, calls=4, streams=5)


AUDIENCE = "distop"


def test_each_issuer_has_what_is_given_for_its_name() -> None:
    given = AccessOptions(
        audience=AUDIENCE,
        issuer=["https://login.example/?a=b", "k8s=https://cluster.example"],
        jwks=["k8s=/keys.json"],
        issuer_ca=["/ca.pem"],
    )
    login, cluster = given.identity().issuers
    assert (login.name, login.url, login.jwks, login.ca) == ("", "https://login.example/?a=b", "", "/ca.pem")
    assert (cluster.name, cluster.url, cluster.jwks) == ("k8s", "https://cluster.example", "/keys.json")


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("audience", {"audience": "", "issuer": ["https://a.example"]}, "name the audience"),
        ("issuer", {"issuer": ["https://a.example", "https://b.example"]}, "without a name is given twice"),
        ("issuer", {"issuer": ["a=https://a.example", "a=https://b.example"]}, "a is given twice"),
        ("jwks", {"issuer": ["https://a.example"], "jwks": ["/one", "/two"]}, "given twice"),
        ("jwks", {"issuer": ["https://a.example"], "jwks": ["b=/one"]}, "b, which is not an --issuer"),
    ],
)
def test_an_option_of_no_issuer_or_of_two_is_refused(
    field: str, given: dict[str, object], message: str
) -> None:
    """U5: the last one would count, and nobody would notice."""
    with pytest.raises(InvalidArgument, match=message) as raised:
        AccessOptions(**{"audience": AUDIENCE, **given}).identity()  # type: ignore[arg-type]
    assert raised.value.details == {"field": field}
