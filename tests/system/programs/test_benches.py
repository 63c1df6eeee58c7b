"""Every benchmark once, at a small size, so that none rots. What it measures then means nothing."""

import json
import os
import signal
import subprocess
import sys
from itertools import product

import pytest

from distop.executor.host.sidecar_folder import BASE_VARIABLE
from support.repository import ROOT
from support.services.executing import short_folder

pytestmark = [pytest.mark.process, pytest.mark.slow("every bench once, at a small size")]

BENCH = ROOT / "bench"
SKIPPED = 77
"""As in bench/common.py."""
LONGEST_S, ENDING_S = 240.0, 60.0


def words(text: str) -> set[str]:
    return set(text.split())


COMPLETIONS = words(
    "completions_over_grouped_raw coordinator_peak_mb jobs_per_s_10k raw_grouped_per_s raw_ratio_10k"
)
KEYS = {
    "backlog": words("batches_over_single batches_per_s fairness_200_tables"),
    "catalog": words(
        "commits_per_s_100 commits_per_s_one load_p50_ms over_peer over_sqlite rest_commits_per_s_100 "
        "rest_commits_per_s_one rest_load_p50_ms rest_over_peer rest_over_sqlite sqlite_load_p50_ms"
    ),
    "commit": {
        "commit_1000_over_10",
        *(
            f"{ours}_over_{theirs}_{where}_4"
            for ours, theirs, where in product(("files", "iceberg"), ("v1", "v2"), ("local", "s3"))
        ),
    },
    "commits": words("append_20_s append_40_s commit_1000_over_10"),
    "completions": COMPLETIONS
    | words("one_job_p50_ms plain_over_plain_10k seconds_100k traced_more_cpu_ms_10k traced_over_plain_10k"),
    "failover": words("crash_over_ttl_s_max graceful_ms_max rebuild_10k_s"),
    "index": words("build_s files_opened_fraction index_files_opened lookup_speedup"),
    "merge": words("recent_over_pyiceberg recent_over_spark spread_over_spark"),
    "page": words(
        "empty_page_ms home_ms home_worst_ms members_page_ms members_worst_ms operation_page_ms "
        "operation_worst_ms operations_page_ms operations_worst_ms rss_mb search_page_ms search_worst_ms "
        "table_page_ms table_worst_ms"
    ),
    "security": words("plain_jobs_per_s_10k plain_p50_ms secure_over_plain_10k secure_p50_extra_ms"),
    "spark": words("ratio_10k ratio_1k ratio_1k_default"),
    "write": words("native_over_distop native_over_distop_cpu native_over_write native_over_write_cpu"),
    "scale/backlog": words("backlog_10k_per_s backlog_1k_per_s backlog_50k_over_1k backlog_50k_per_s"),
    "scale/coordinators": words(
        "coordinators_1_per_s coordinators_2_over_1 coordinators_2_per_s coordinators_lesser_share"
    ),
    "scale/executors": words(
        "cpu_ms_per_op_callers cpu_ms_per_op_coordinator cpu_ms_per_op_etcd cpu_ms_per_op_executors "
        "one_job_over_three_txns one_job_p50_ms ops_per_s_1_executors ops_per_s_200_tables "
        "ops_per_s_2_executors ops_per_s_2_over_1_executors range_reads_per_op reads_and_compares_per_op"
    ),
    "scale/history": words(
        "history_20k_over_100_end history_20k_over_100_forget history_20k_over_100_start history_start_ms"
    ),
    "scale/marks": COMPLETIONS,
    "scale/memory": words(
        "memory_coordinator memory_executor memory_history_stored memory_idle_table "
        "memory_idle_table_etcd memory_idle_table_stored memory_job_coordinator memory_job_etcd "
        "memory_job_executor memory_operation memory_sidecar memory_table_stored memory_watcher"
    ),
    "scale/overload": words(
        "burst_1000_failed burst_1000_s busy_seen overload_best_cpu_ms_per_op overload_best_per_s "
        "overload_cpu_ms_per_op overload_goodput overload_leases_lost overload_past_deadline "
        "overload_per_s overload_processors_callers overload_processors_coordinator "
        "overload_processors_etcd"
    ),
    "scale/results": words(
        "collect_500k_s coordinator_mib get_operation_500k_ms get_operation_few_ms "
        "list_while_collected_max_s million_jobs_list_max_s million_jobs_s results_leases_lost"
    ),
    "scale/tables": {
        "leader_3_tables_s",
        *(
            figure.replace("N", tables)
            for tables in ("10", "30")
            for figure in words(
                "doctor_N_s ls_N_ms_per_table ls_N_tables_first_page_ms ls_N_whole_s page_N_ms"
            )
        ),
    },
    "scale/watchers": words("watchers_1_s watchers_500_s watchers_500_slowdown watchers_leases_lost"),
    "scale/watermarks": words(
        "watermarks_1k_commit_ms watermarks_1m_commit_ms watermarks_1m_look_ms watermarks_1m_over_1k_commit"
    ),
}
"""What each prints for programs, beside the version of etcd."""

WITH_NATIVE_SPARK = {
    "merge": {"recent_over_spark_merge", "spread_over_spark_merge"},
    "write": {"parquet_over_native_iceberg", "parquet_over_native_iceberg_cpu"},
}
"""And what more, where `make conformance` has put a Spark with Iceberg's runtime by."""

OF_SPARK = {"commit", "merge", "spark", "write"}


def test_every_bench_is_tried() -> None:
    alone = {path.stem for path in BENCH.glob("*.py") if "print_json(" in path.read_text()} - {"common"}
    of_scale = {f"scale/{path.stem}" for path in BENCH.glob("scale/*.py")} - {"scale/run"}
    assert alone | of_scale == KEYS.keys()


@pytest.mark.timeout(LONGEST_S + 2 * ENDING_S)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.spark] * (name in OF_SPARK)) for name in KEYS]
)
def test_a_bench_runs_and_prints_its_figures(name: str) -> None:
    script, *parts = ("scale/run", name.removeprefix("scale/")) if name.startswith("scale/") else (name,)
    with short_folder() as folder:
        process = subprocess.Popen(
            [sys.executable, str(BENCH / f"{script}.py"), "--small", *parts],
            env={**os.environ, "PYTHONPATH": str(BENCH), BASE_VARIABLE: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            printed, errors = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends all that it has started
            printed, errors = process.communicate(timeout=ENDING_S)
    if process.returncode == SKIPPED:
        pytest.skip(printed.splitlines()[-1])
    assert process.returncode == 0, printed + errors
    figures = json.loads(printed.splitlines()[-1])
    assert figures.pop("etcd")
    assert figures.pop("small")
    assert figures.keys() - WITH_NATIVE_SPARK.get(name, set()) == KEYS[name]
