"""Whether the master of a standalone cluster is missed."""

from __future__ import annotations

import socket

import pytest

from distop.executor.launch.spark import master_away
from distop.metastore.etcd.embedded import free_port


def test_a_master_that_does_not_answer_is_missed() -> None:
    away = f"127.0.0.1:{free_port()}"
    assert away in master_away(f"spark://{away}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert master_away(f"spark://{away},127.0.0.1:{server.getsockname()[1]}") == ""


@pytest.mark.parametrize(
    "master", ["", "local[*]", "yarn", "k8s://https://127.0.0.1:1", "local-cluster[1,1,512]"]
)
def test_other_clusters_have_no_such_master(master: str) -> None:
    assert master_away(master) == ""
