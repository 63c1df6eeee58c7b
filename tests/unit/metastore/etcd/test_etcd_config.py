"""How etcd is named, and what follows from it."""

import pytest

from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig


@pytest.mark.parametrize(
    ("text", "endpoints", "tls"),
    [
        ("a:2379", ("a:2379",), False),
        ("http://a:2379/, http://b:1", ("a:2379", "b:1"), False),
        ("https://a:2379,https://b:1/", ("a:2379", "b:1"), True),
        ("https://a:2379,b:1", ("a:2379", "b:1"), True),
    ],
)
def test_https_means_tls_and_survives_the_way_to_a_child(
    text: str, endpoints: tuple[str, ...], tls: bool
) -> None:
    """U5: what was said to be encrypted is never spoken in plain text, by a child process neither."""
    config = EtcdConfig.from_env({"DISTOP_ETCD": text})
    assert (config.endpoints, config.tls) == (endpoints, tls)
    assert EtcdConfig.from_env(config.to_env()) == config


def test_a_ca_means_tls() -> None:
    config = EtcdConfig(ca_cert="ca.pem")
    assert config.tls
    assert EtcdConfig.from_env(config.to_env()) == config
    assert EtcdConfig().to_env() == {}


@pytest.mark.parametrize("text", ["http://a:1,https://b:1", "ftp://a:1", "https://a"])
def test_a_configuration_of_etcd_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        EtcdConfig.from_env({"DISTOP_ETCD": text})
    assert refused.value.details["field"] == "endpoints"


def test_a_client_certificate_needs_tls() -> None:
    with pytest.raises(InvalidArgument, match="needs TLS"):
        EtcdConfig(cert="c.pem", key="k.pem")
