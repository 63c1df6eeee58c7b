"""What is sent of what stands and of what was delivered; and a webhook that hangs, refuses or redirects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from distop.coordinator.alerts import webhook as sending
from distop.coordinator.alerts.alerting import FIRING, RESOLVED, Outcomes, changes
from distop.coordinator.alerts.conditions import failed, late, name_of
from distop.coordinator.alerts.webhook import Webhook
from distop.errors import InvalidArgument, PreconditionFailed, Unavailable
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.table import AlertCursor, AlertRecord
from distop.process.secret import Secret

TABLES = {"flights"}


def ended(instance: int, outcome: str, revision: int = 0) -> tuple[OperationId, HistoryRecord, int]:
    record = HistoryRecord(outcome=outcome, error_code="JOB_FAILED", finished_at=100.0 + instance)
    return OperationId("flights", "ingest", instance), record, revision or 10 + instance


def sent(
    ends: Iterable[tuple[OperationId, HistoryRecord, int]] = (),
    *,
    current: Iterable[AlertRecord] = (),
    before: Iterable[AlertRecord] = (),
    tables: set[str] = TABLES,
) -> list[tuple[str, str, float]]:
    delivered = {name_of(alert): alert for alert in before}
    kept = {name: (alert, KeyValue.missing(b"")) for name, alert in delivered.items()}
    outcomes = Outcomes(AlertCursor(revision=1), kept)
    for end in ends:
        outcomes.add(*end)
    todo = changes(list(current), outcomes, delivered, tables)
    return [(status, alert.operation or alert.table, alert.since) for status, alert in todo]


def test_each_failure_is_sent_also_if_a_success_follows_before_anybody_looks() -> None:
    assert sent([ended(6, "success"), ended(5, "failed"), ended(4, "failed")]) == [
        (FIRING, "flights/ingest/4", 104.0),
        (FIRING, "flights/ingest/5", 105.0),
        (RESOLVED, "flights/ingest/5", 105.0),
    ]


def test_a_failure_that_was_sent_is_not_sent_again_and_ends_with_a_later_success_or_its_table() -> None:
    known = failed(*ended(5, "failed"))
    assert sent([ended(4, "success"), ended(5, "failed")], before=[known]) == []
    assert sent([ended(6, "cancelled")], before=[known]) == []
    resolved = [(RESOLVED, "flights/ingest/5", 105.0)]
    assert sent([ended(6, "success")], before=[known]) == resolved
    assert sent(before=[known], tables=set()) == resolved


def test_a_failure_is_sent_also_if_it_began_before_one_that_was_sent() -> None:
    known = failed(*ended(5, "failed"))
    last = ended(4, "failed", revision=99)
    assert sent([ended(5, "failed"), last], before=[known]) == [(FIRING, "flights/ingest/4", 104.0)]
    assert sent([ended(5, "failed"), last], before=[failed(*last)]) == []


def test_a_failure_ends_with_a_success_that_was_recorded_after_it_and_not_with_one_that_began_later() -> None:
    last = ended(5, "failed", revision=99)
    assert sent([ended(6, "success"), last]) == [(FIRING, "flights/ingest/5", 105.0)]
    resolved = [(RESOLVED, "flights/ingest/5", 105.0)]
    assert sent([ended(4, "success", revision=100)], before=[failed(*last)]) == resolved


def test_a_condition_that_has_begun_anew_is_sent_again() -> None:
    first = late("flights", 7, 100.0, 60.0, now=200.0)
    assert first is not None
    assert late("flights", 7, 100.0, 60.0, now=160.0) is None
    second = late("flights", 8, 300.0, 60.0, now=400.0)
    assert second is not None
    assert sent(current=[first], before=[first]) == []
    assert sent(current=[second], before=[first]) == [(FIRING, "flights", 300.0)]
    assert sent(before=[first]) == [(RESOLVED, "flights", 100.0)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n", PreconditionFailed),
        (
            b"HTTP/1.1 307 There\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            PreconditionFailed,
        ),
        (b"HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n", Unavailable),
        (b"", Unavailable),
    ],
)
async def test_a_webhook_that_refuses_redirects_or_hangs_is_left_without_a_word_about_its_path(
    answer: bytes, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "POST_S", 0.2)
    monkeypatch.setattr(sending, "RETRY_FOR_S", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(error) as raised:
        await Webhook(Secret(f"http://127.0.0.1:{port}/s3cret")).send({"kind": "failed"})
    assert "s3cret" not in str(raised.value)
    over.set()
    server.close()


def test_a_token_does_not_go_to_another_host_in_plain_text(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc")
    Webhook(Secret("https://hooks.example/x"), str(token))
    for url in (
        "http://hooks.example/x",
        "ftp://hooks.example/x",
        "https://user:pw@hooks.example/x",
        "hooks",
    ):
        with pytest.raises(InvalidArgument) as raised:
            Webhook(Secret(url), str(token))
        assert "/x" not in str(raised.value)
