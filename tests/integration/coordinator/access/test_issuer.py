"""Tokens of an issuer that is not ours, by its own protocol."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs, urlsplit

import httpx
import oidc_provider_mock
import pytest

from distop.client import AsyncClient, Credentials
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.access.tokens import IssuerConfig
from distop.errors import Unauthenticated
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import config_of, running


def sign_in(issuer: str, subject: str, audience: str) -> str:
    """The token that somebody gets who signs in there."""
    back = "http://localhost/back"
    asked = {"client_id": audience, "redirect_uri": back, "response_type": "code", "scope": "openid"}
    with httpx.Client(base_url=issuer) as browser:
        allowed = browser.post("/oauth2/authorize", params=asked, data={"sub": subject})
        code = parse_qs(urlsplit(allowed.headers["location"]).query)["code"][0]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
        answer = browser.post("/oauth2/token", data=form, auth=(audience, "secret"))
        return str(answer.raise_for_status().json()["id_token"])


# Of the libraries of the issuer.
@pytest.mark.filterwarnings("ignore")
async def test_somebody_who_has_signed_in_elsewhere_is_known(etcd_config: EtcdConfig) -> None:
    """U5, S3: found through what the issuer tells of itself; a token for another service lets nobody in."""
    with oidc_provider_mock.run_server_in_thread() as server:
        issuer = f"http://localhost:{server.server_port}"
        identity = IdentityConfig(issuers=(IssuerConfig(url=issuer, audience="distop"),))
        mine = await asyncio.to_thread(sign_in, issuer, "jane", "distop")
        other = await asyncio.to_thread(sign_in, issuer, "jane", "another")
        async with running(config_of(etcd_config, identity=identity)) as coordinator:
            async with AsyncClient(coordinator.address, credentials=Credentials(token=mine)) as jane:
                assert (await jane.grants()).subject == "jane"
            async with AsyncClient(coordinator.address, credentials=Credentials(token=other)) as stranger:
                with pytest.raises(Unauthenticated, match="does not hold"):
                    await stranger.grants()
