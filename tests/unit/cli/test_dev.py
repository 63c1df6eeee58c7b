"""What ``distop dev`` prints for the next terminal."""

from pathlib import Path

import pytest

from distop.cli.dev import Dev, DevConfig
from distop.cli.output.human import HumanOutput
from distop.metastore.etcd.config import EtcdConfig


@pytest.mark.parametrize(("port", "is_shown"), [(2379, False), (23790, True)])
def test_an_etcd_that_is_not_at_the_usual_place_is_exported(
    tmp_path: Path, port: int, is_shown: bool
) -> None:
    """Commands that read etcd itself, such as alert list, find that of dev."""
    hints = Dev(DevConfig(data=tmp_path), HumanOutput())._hints(EtcdConfig(endpoints=(f"127.0.0.1:{port}",)))
    assert (f"  export DISTOP_ETCD=127.0.0.1:{port}" in hints) is is_shown
