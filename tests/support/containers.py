"""An engine of containers, where one answers."""

import os
import shutil
from functools import cache
from typing import Any

import pytest


@cache
def engine() -> Any:
    """A docker engine; the test is skipped where none answers."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except DockerException as error:
        return f"no container engine answers: {error}"
    return client


def engine_or_skip() -> Any:
    client = engine()
    if isinstance(client, str):
        pytest.skip(client)
    return client


NOT_THERE = (
    "docker with Compose is not there, or may not make a base image (root may; or name DISTOP_BASE_IMAGE): "
    "no target of make installs it, make images needs it"
)


def base_of_images() -> str:
    """The base on which ``make images`` can build here; empty: it cannot."""
    base = os.environ.get("DISTOP_BASE_IMAGE") or ("here" if os.getuid() == 0 else "")
    return base if shutil.which("docker") and not isinstance(engine(), str) else ""
