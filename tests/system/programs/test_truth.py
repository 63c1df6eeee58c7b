"""A short part of `make truth`: the cells without Spark; its page, and the values that it expects."""

import os
import sys
from collections.abc import Iterator

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.processes import captured
from support.repository import TESTS
from support.sources.kafka import Brokers
from truth import inferred
from truth.__main__ import measure
from truth.installation import PATIENCE_S, Installation, installed
from truth.page import PAGE, page
from truth.readers import READERS
from truth.references import disagreements
from truth.values import KINDS, WRITERS
from truth.verdicts import cells, known

GUESSES = "guesses"
SOME = {"numbers": KINDS[:8], "times": KINDS[8:12], "others": KINDS[12:], GUESSES: ()}


def test_the_page_of_truth_is_current() -> None:
    assert page() == PAGE.read_text(), "make truth ARGS=--page"


def test_names_of_values_are_unique() -> None:
    for kind in KINDS:
        names = [case.name for case in kind.cases]
        assert len(set(names)) == len(names)


def test_what_is_known_to_be_wrong_are_cells() -> None:
    assert set(known()) <= {*cells(WRITERS, READERS), *inferred.cells(READERS)}


def test_another_program_has_the_expected_values() -> None:
    assert [line for kind in KINDS for line in disagreements(kind)] == []


@pytest.fixture(scope="module")
def installation(etcd: EtcdProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    config = EtcdConfig(endpoints=(etcd.endpoint,), prefix="truth")
    with installed(config, tmp_path_factory.mktemp("truth")) as running:
        # The first operation starts the processes that plan and read for all others.
        rows = running.folder / "first.csv"
        rows.write_text("id\n1\n")
        running.client.create_table("first", f"file://{running.folder}/tables/first")
        running.client.start("first", "ingest", {"paths": str(rows)}).result(timeout_s=PATIENCE_S)
        yield running


@pytest.mark.parametrize("of", SOME)
def test_each_value_comes_out_as_it_went_in_or_is_refused_by_name(
    installation: Installation, brokers: Brokers, of: str
) -> None:
    """U3, V1: the ways in and the readers that need no Spark."""
    found = measure(installation, brokers, SOME[of], with_spark=False, guesses=of == GUESSES)
    assert found.unexpected() == []
    assert len(found.cells) > 150


@pytest.mark.spark
@pytest.mark.slow("two hundred writes of Spark, and reads of all tables")
@pytest.mark.timeout(1200)
def test_the_same_holds_in_spark() -> None:
    done = captured(
        [sys.executable, "-m", "truth", "--examples", "100"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
