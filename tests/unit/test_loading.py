"""What a service loads when it starts."""

import subprocess
import sys

import pytest

OF_TRACES = {"opentelemetry"}
OF_METRICS = {"starlette", "uvicorn", "prometheus_client", "h11", "anyio"}
OF_TABLES = {"pyiceberg", "pydantic", "pyarrow", "pandas", "numpy", "fsspec", "pyspark", "duckdb"}
"""Two thirds of the processor time of a coordinator's start, if it loaded them then."""


@pytest.mark.parametrize(
    "module", ["coordinator.service", "executor.runner.service", "executor.sidecar.server"]
)
def test_a_service_loads_what_metrics_and_tables_need_when_it_needs_it(module: str) -> None:
    script = f"import sys, distop.{module}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "distop" in loaded
    assert not loaded & (OF_METRICS | OF_TABLES | OF_TRACES)


def test_import_distop_loads_no_package_and_every_name_of_it_is_found() -> None:
    script = (
        "import sys, distop\n"
        "assert not [name for name in sys.modules if name.startswith('distop.')]\n"
        "for name in distop.__all__:\n"
        "    getattr(distop, name)\n"
        "assert distop.Client.__module__ == 'distop.client.blocking'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_help_of_the_command_loads_no_grpc() -> None:
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from distop.cli.main import app\n"
        "assert 'watermark' in CliRunner().invoke(app, ['--help']).stdout\n"
        "assert 'grpc' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
