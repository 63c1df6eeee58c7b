"""Tokens of issuers that are not ours, by their own protocols."""

import asyncio
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import oidc_provider_mock
import pytest
import trustme

from distop.client import AsyncClient, Credentials
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.access.tokens import IssuerConfig
from distop.errors import Unauthenticated
from distop.metastore.etcd.config import EtcdConfig
from support.services.certs import put
from support.services.coordinators import config_of, running
from support.services.issuers import issuing, signed


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
async def test_a_caller_with_a_token_of_the_issuer_is_known(etcd_config: EtcdConfig) -> None:
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
                with pytest.raises(Unauthenticated, match="the token is invalid"):
                    await stranger.grants()


async def test_a_service_account_of_kubernetes_is_known(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """U5, S3: its keys are behind the API server, which has a CA of its own and wants to know who asks."""
    ca = trustme.CA()
    issuer, account = "https://kubernetes.default.svc.cluster.local", "system:serviceaccount:data:nightly"
    with issuing(ca) as server:
        server.bearer = "the coordinator's own"
        config = IssuerConfig(
            url=issuer,
            audience="distop",
            name="k8s",
            jwks=f"{server.url}/openid/v1/jwks",
            ca=put(tmp_path / "ca.crt", ca.cert_pem.bytes()),
            token_file=put(tmp_path / "token", server.bearer.encode()),
        )
        identity = IdentityConfig(issuers=(config,))
        mine = Credentials(token=signed(iss=issuer, sub=account, aud=["distop"]))
        other = Credentials(token=signed(iss=issuer, sub=account, aud=[issuer]))
        async with running(config_of(etcd_config, identity=identity)) as coordinator:
            async with AsyncClient(coordinator.address, credentials=mine) as nightly:
                assert (await nightly.grants()).subject == f"k8s:{account}"
            # That of any pod, for the API server.
            async with AsyncClient(coordinator.address, credentials=other) as stranger:
                with pytest.raises(Unauthenticated, match="the token is invalid"):
                    await stranger.grants()
        assert server.shown == [("/openid/v1/jwks", f"Bearer {server.bearer}")]
