"""Options about those who call: which issuer each of them is about."""

from __future__ import annotations

import pytest

from distop.cli.options.doors import DoorOptions
from distop.errors import InvalidArgument

AUDIENCE = "distop"


def test_each_issuer_has_what_is_given_for_its_name() -> None:
    given = DoorOptions(
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
def test_what_is_about_no_issuer_or_about_two_is_refused(
    field: str, given: dict[str, object], message: str
) -> None:
    """U5: the last one would count, and nobody would notice."""
    with pytest.raises(InvalidArgument, match=message) as raised:
        DoorOptions(**{"audience": AUDIENCE, **given}).identity()  # type: ignore[arg-type]
    assert raised.value.details == {"field": field}
