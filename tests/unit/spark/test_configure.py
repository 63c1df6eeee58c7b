"""Setting a Spark session up for Iceberg's runtime."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distop.spark import configure

CATALOG = "spark.sql.catalog.distop"
EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISTOP_CATALOG", "DISTOP_TOKEN", "DISTOP_INSECURE"):
        monkeypatch.delenv(name, raising=False)


def settings(builder: SparkSession.Builder) -> dict[str, str]:
    return {name: str(value) for name, value in builder._options.items()}


def test_the_catalog_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(configure(SparkSession.Builder()))[f"{CATALOG}.uri"] == "http://127.0.0.1:7072"
    monkeypatch.setenv("DISTOP_CATALOG", "https://catalog.example:443")
    monkeypatch.setenv("DISTOP_TOKEN", "mine")
    found = settings(configure(SparkSession.Builder()))
    assert found[f"{CATALOG}.uri"] == "https://catalog.example:443"
    assert found[f"{CATALOG}.token"] == "mine"
    found = settings(configure(SparkSession.Builder(), "https://other", catalog="lake", token="theirs"))
    assert found["spark.sql.catalog.lake.uri"] == "https://other"
    assert found["spark.sql.catalog.lake.token"] == "theirs"
    assert CATALOG not in found


def test_extensions_that_were_set_before_stay() -> None:
    builder = SparkSession.Builder().config("spark.sql.extensions", "a.B, c.D")
    assert settings(configure(builder))["spark.sql.extensions"] == f"a.B,c.D,{EXTENSION}"
    again = configure(configure(SparkSession.Builder()))
    assert settings(again)["spark.sql.extensions"] == EXTENSION


def test_a_token_goes_to_no_other_host_in_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the client's does not."""
    configure(SparkSession.Builder(), "http://[::1]:7072", token="mine")
    with pytest.raises(ValueError, match="https"):
        configure(SparkSession.Builder(), "http://catalog.example:7072", token="mine")
    monkeypatch.setenv("DISTOP_INSECURE", "1")
    configure(SparkSession.Builder(), "http://catalog.example:7072", token="mine")


@pytest.mark.parametrize("wrong", [{"uri": "127.0.0.1:7072"}, {"catalog": "my lake"}, {"catalog": ""}])
def test_options_that_configure_cannot_apply_are_refused(wrong: dict[str, str]) -> None:
    """U3"""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        configure(SparkSession.Builder(), **wrong)


def test_import_distop_spark_loads_no_other_package() -> None:
    """So that it works in environments that have only Spark."""
    script = "import sys; known = set(sys.modules); import distop.spark; print(*(set(sys.modules) - known))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": str(Path(__file__).parents[3] / "src")},
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    ours = {name for name in done.stdout.split() if name.startswith(("distop.", "pyspark"))}
    assert ours == {"distop.spark", "distop.spark.session", "distop.proto", "distop.proto.addresses"}
