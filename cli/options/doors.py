"""Options of a coordinator for authentication and TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.options.bundles import Bundle
from distop.errors import InvalidArgument

if TYPE_CHECKING:
    from distop.coordinator.access.authentication import IdentityConfig
    from distop.coordinator.access.tokens import IssuerConfig
    from distop.proto.http.tls import TlsConfig

PANEL = "Who may come in"


@dataclass(frozen=True)
class DoorOptions:
    """How a coordinator identifies callers."""

    admin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUBJECT",
            help="First admin of identified callers, where no policy exists yet: creates one. Repeatable.",
            rich_help_panel=PANEL,
        ),
    ] = None
    token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Accepted tokens: lines of SUBJECT:SHA256[:GROUP,...].",
            rich_help_panel=PANEL,
        ),
    ] = ""
    issuer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]URL",
            help="Issuer of accepted signed tokens; several need names. Repeatable.",
            rich_help_panel=PANEL,
        ),
    ] = None
    audience: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="Audience (aud) that signed tokens must have.", rich_help_panel=PANEL
        ),
    ] = ""
    jwks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE|URL",
            help="URL of an issuer's keys, if it does not publish one. Repeatable.",
            rich_help_panel=PANEL,
        ),
    ] = None
    issuer_ca: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PEM",
            help="CA of the host that serves an issuer's keys. Repeatable.",
            rich_help_panel=PANEL,
        ),
    ] = None
    issuer_token_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="Token for the host that serves an issuer's keys. Repeatable.",
            rich_help_panel=PANEL,
        ),
    ] = None
    tls_cert: Annotated[
        str,
        typer.Option(
            metavar="PEM",
            help="Certificate of gRPC, the page and the catalog. Enables TLS.",
            rich_help_panel=PANEL,
        ),
    ] = ""
    tls_key: Annotated[str, typer.Option(metavar="PEM", help="And its key.", rich_help_panel=PANEL)] = ""
    tls_client_ca: Annotated[
        str,
        typer.Option(
            metavar="PEM",
            help="CA of client certificates: every gRPC client must present one.",
            rich_help_panel=PANEL,
        ),
    ] = ""
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Serve in plain text also to other hosts.", rich_help_panel=PANEL),
    ] = False

    def identity(self) -> IdentityConfig:
        from distop.coordinator.access.authentication import IdentityConfig

        return IdentityConfig(
            admins=tuple(self.admin or ()),
            token_file=self.token_file,
            issuers=self._issuers(),
            certificates=bool(self.tls_client_ca),
        )

    def _issuers(self) -> tuple[IssuerConfig, ...]:
        from distop.coordinator.access.tokens import IssuerConfig

        if self.issuer and not self.audience:
            raise InvalidArgument(
                "an issuer signs tokens for many services: name the audience of this one",
                hint="give --audience",
                details={"field": "audience"},
            )
        issuers = _by_name("issuer", self.issuer)

        def of_issuers(field: str, given: list[str] | None) -> dict[str, str]:
            named = _by_name(field, given)
            if unknown := sorted(named.keys() - issuers.keys()):
                raise InvalidArgument(
                    f"it names {unknown[0] or 'an issuer without a name'}, which is not an --issuer",
                    details={"field": field},
                )
            return named

        jwks = of_issuers("jwks", self.jwks)
        cas = of_issuers("issuer_ca", self.issuer_ca)
        tokens = of_issuers("issuer_token_file", self.issuer_token_file)
        return tuple(
            IssuerConfig(
                url=url,
                audience=self.audience,
                name=name,
                jwks=jwks.get(name, ""),
                ca=cas.get(name, ""),
                token_file=tokens.get(name, ""),
            )
            for name, url in issuers.items()
        )

    def tls(self) -> TlsConfig:
        from distop.proto.http.tls import TlsConfig

        return TlsConfig(
            cert=self.tls_cert, key=self.tls_key, client_ca=self.tls_client_ca, insecure=self.insecure
        )


def _by_name(field: str, given: list[str] | None) -> dict[str, str]:
    """The values of ``NAME=VALUE``, or of a value without a name: a name has none of the signs of a URL or
    path."""
    named: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or set(name) & set("/:.?"):
            name, value = "", text
        if name in named:
            raise InvalidArgument(
                f"{name or 'an issuer without a name'} is given twice",
                hint="give each issuer a name of its own: NAME=VALUE",
                details={"field": field},
            )
        named[name] = value
    return named


Doors = Annotated[DoorOptions, Bundle(DoorOptions)]
