"""A Python that workers cannot use is refused before Spark is started."""

import json
import os
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from distop.executor.launch.settings import PythonUnusable, refuse_unusable, why_bare
from support.processes import captured


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without distop."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return str(folder / "bin" / "python")


def archive(folder: Path, name: str, member: str) -> str:
    with zipfile.ZipFile(folder / name, "w") as made:
        made.writestr(member, "")
    return str(folder / name)


def test_a_python_that_may_have_distop_is_accepted(bare: str, tmp_path: Path) -> None:
    mine = archive(tmp_path, "mine.zip", "mine/types.py")
    refuse_unusable("local[2]", {"spark.submit.pyFiles": mine}, {})
    refuse_unusable("spark://master:7077", {}, {})
    # On hosts of their own workers may have another Python at this path.
    refuse_unusable("spark://master:7077", {"spark.pyspark.python": bare}, {})
    refuse_unusable("yarn", {"spark.pyspark.python": "./environment/bin/python"}, {})


def test_a_pex_is_refused(tmp_path: Path) -> None:
    packed = archive(tmp_path, "packed", "__main__.py")
    for settings, environ in (
        ({"spark.pyspark.python": "./worker.pex"}, {}),
        ({}, {"PYSPARK_PYTHON": packed}),
    ):
        with pytest.raises(PythonUnusable, match="is a PEX"):
            refuse_unusable("spark://master:7077", settings, environ)


def test_distop_in_py_files_is_refused(tmp_path: Path) -> None:
    ours = archive(tmp_path, "ours.zip", "distop/executor/__init__.py")
    files = f"{archive(tmp_path, 'mine.zip', 'mine/types.py')},file://{ours}"
    with pytest.raises(PythonUnusable, match=r"ours\.zip \(--py-files\) holds distop"):
        refuse_unusable("spark://master:7077", {"spark.submit.pyFiles": files}, {})
    for elsewhere in ("hdfs:///lib/distop-0.2.0-py3-none-any.whl", "hdfs:///lib/distop.zip"):
        with pytest.raises(PythonUnusable, match="holds distop"):
            refuse_unusable("yarn", {"spark.submit.pyFiles": elsewhere}, {})
    refuse_unusable("yarn", {"spark.submit.pyFiles": "hdfs:///lib/distop_types.zip"}, {})


def test_an_interpreter_of_this_host_without_distop_is_refused(bare: str) -> None:
    with pytest.raises(PythonUnusable, match=r"does not find distop in a process of its own: .*distop"):
        refuse_unusable("local[2]", {"spark.pyspark.python": bare}, {})
    assert why_bare(sys.executable) == ""
    assert "No such file" in why_bare("/no/such/python")


def test_an_executor_in_a_pex_is_refused_with_its_code(bare: str) -> None:
    """As a PEX does it: the interpreter has nothing, and the program puts all it needs into its own path."""
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; from distop.cli.__main__ import main; sys.exit(main())"
    )
    done = captured(
        [bare, "-c", program, "executor", "--master", "local[1]", "--output", "json"],
        env={**os.environ, "DISTOP_ETCD": "127.0.0.1:1"},
        timeout=120,
    )
    assert done.returncode == 5, done.stderr[-2000:]
    error = json.loads(done.stderr.strip().splitlines()[-1])["error"]
    assert error["code"] == "PYTHON_UNUSABLE"
    assert bare in error["message"]
    assert "venv-pack" in error["hint"]
