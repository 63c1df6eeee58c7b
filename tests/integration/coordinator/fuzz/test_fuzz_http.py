"""Requests and bytes of strangers at the page and the catalog: answered or cut off, and never with a 500."""

import json
from collections.abc import Mapping
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.types import LongType, NestedField

from distop.coordinator.rest.routes import ROUTES
from distop.coordinator.web.requests import CALLS, Query
from support.services.reached import ADMIN, Reached, answer
from support.services.tokens import token_of
from support.untrusted import damaged, json_texts, objects, texts

DEFECTS = (500, 502)
untimed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

ROOT = f"Bearer {token_of(ADMIN)}"
SCHEMA = Schema(NestedField(1, "id", LongType())).model_dump(mode="json", by_alias=True)


def printed(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Texts as a header has them, well or not."""
    return strategy.map(lambda text: text.encode(errors="replace").replace(b"\r", b"").replace(b"\n", b""))


HEADERS = {
    "Host": st.sampled_from(
        [
            "localhost",
            "127.0.0.1:1",
            "[::1]",
            "[",
            "[::1",
            "localhost:/?",
            "localhost:99999999",
            "",
            "evil.example",
        ]
    ),
    "Authorization": st.one_of(
        st.sampled_from([ROOT, "Bearer", "Bearer  ", "Basic eA==", "bearer x"]), texts
    ),
    "Cookie": st.one_of(
        st.sampled_from(["distop_session=x", "distop_session", '="";;=', "distop_session=\\777"]), texts
    ),
    "Content-Type": st.sampled_from(
        ["application/json", "application/x-www-form-urlencoded", "text/plain", "application/json; charset=x"]
    ),
    "Accept": texts,
    "If-None-Match": texts,
    "Origin": texts,
    "Idempotency-Key": st.one_of(st.just("0191e0a0-0000-7000-8000-000000000001"), texts),
    "Expect": st.sampled_from(["100-continue", "x"]),
    "Upgrade": st.sampled_from(["websocket", "h2c"]),
    "Connection": st.sampled_from(["close", "upgrade", "keep-alive, Upgrade"]),
    "Transfer-Encoding": st.sampled_from(["chunked", "gzip, chunked", "identity"]),
    "Content-Length": st.sampled_from(["0", "5", "99999999999999999999", "-1", "5, 6", "x"]),
}

METHODS = st.sampled_from(["GET", "GET", "POST", "HEAD", "DELETE", "PUT", "OPTIONS", "TRACE", "get", "BREW"])


@st.composite
def headers(draw: st.DrawFn, known: bool = True) -> list[tuple[str, bytes]]:
    """Some headers; one in two requests comes from the admin."""
    chosen = draw(st.lists(st.sampled_from([name for name in HEADERS if name != "Host"]), max_size=3))
    named = [(name, draw(printed(HEADERS[name]))) for name in chosen]
    if draw(st.booleans()):
        named.append(("Host", b"localhost"))
    else:
        named.append(("Host", draw(printed(HEADERS["Host"]))))
    if known and draw(st.booleans()):
        named.append(("Authorization", ROOT.encode()))
    return named


def written(method: str, target: str, named: list[tuple[str, bytes]], body: bytes = b"") -> bytes:
    """A request as bytes."""
    lines = [f"{method} {target} HTTP/1.1".encode(errors="replace")]
    lines += [name.encode() + b": " + value for name, value in named]
    if body and not {"Content-Length", "Transfer-Encoding"} & {name for name, _ in named}:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


def asked(method: str, target: str, body: bytes = b"", **named: str) -> bytes:
    """One of the admin."""
    given = {
        "Host": "localhost",
        "Authorization": ROOT,
        **{name.replace("_", "-"): text for name, text in named.items()},
    }
    return written(method, target, [(name, text.encode()) for name, text in given.items()], body)


parts = st.one_of(st.just("t"), st.just("default"), texts).map(
    lambda text: quote(text, safe="", errors="replace")
)

forms = st.lists(st.tuples(st.one_of(st.just("token"), texts), texts), max_size=14).map(
    lambda given: urlencode(
        [(a.encode(errors="replace"), b.encode(errors="replace")) for a, b in given]
    ).encode()
)


@st.composite
def page_requests(draw: st.DrawFn) -> bytes:
    paths = [*CALLS, "/sign-in", "/sign-out", "/static/page.css"]
    path = draw(st.one_of(st.sampled_from(paths), parts.map("/{}".format)))
    query = draw(st.lists(st.tuples(st.sampled_from(sorted(Query.KNOWN)), texts), max_size=4))
    told = urlencode([(name, text.encode(errors="replace")) for name, text in query])
    return written(draw(METHODS), f"{path}?{told}", draw(headers()), draw(st.one_of(st.just(b""), forms)))


def _models(union: object) -> list[dict[str, object]]:
    """What updates or requirements may say: their kinds, each with all of its fields."""
    found = []
    for model in union.__args__[0].__args__:  # type: ignore[attr-defined]
        fields = {(field.alias or name): None for name, field in model.model_fields.items()}
        kind = "action" if "action" in fields else "type"
        found.append({**fields, kind: model.model_fields[kind].default})
    return found


_few = st.one_of(
    st.integers(-2, 3),
    texts,
    st.none(),
    st.just({}),
    st.just([]),
    st.just(SCHEMA),
    st.just({"schema-id": 0, "type": "struct", "fields": []}),
    st.just(
        {"spec-id": 0, "fields": [{"source-id": 9, "field-id": 1, "transform": "bucket[0]", "name": "x"}]}
    ),
    st.just({"order-id": 1, "fields": [{"source-id": 9, "transform": "identity", "direction": "up"}]}),
    objects,
)


def _filled(kinds: list[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
    def fill(kind: Mapping[str, object]) -> st.SearchStrategy[dict[str, object]]:
        return st.fixed_dictionaries(
            {
                name: st.just(value) if name in ("action", "type") and value else _few
                for name, value in kind.items()
            }
        )

    return st.sampled_from(kinds).flatmap(fill)


UPDATES, REQUIREMENTS = _filled(_models(TableUpdate)), _filled(_models(TableRequirement))
_change = st.fixed_dictionaries(
    {"requirements": st.lists(REQUIREMENTS, max_size=2), "updates": st.lists(UPDATES, max_size=3)}
)
BODIES = st.one_of(
    _change,
    st.fixed_dictionaries(
        {"name": texts, "schema": st.one_of(st.just(SCHEMA), _few)},
        optional={
            "location": texts,
            "partition-spec": _few,
            "write-order": _few,
            "stage-create": st.booleans(),
            "properties": st.dictionaries(texts, texts, max_size=3),
        },
    ),
    st.fixed_dictionaries({"namespace": st.lists(texts, max_size=3), "properties": _few}),
    st.fixed_dictionaries({"removals": _few, "updates": _few}),
    st.fixed_dictionaries({"name": texts, "metadata-location": texts}),
    objects,
).map(json.dumps)


QUERIES = ["pageToken", "pageSize", "parent", "snapshots", "purgeRequested"]


@st.composite
def catalog_requests(draw: st.DrawFn, prefix: str) -> bytes:
    route = draw(st.sampled_from(ROUTES))
    path = route.path.replace("{prefix}", prefix)
    for part in ("{namespace}", "{table}", "{view}"):
        path = path.replace(part, draw(parts), 1)
    method = route.method if draw(st.integers(0, 9)) else draw(METHODS)
    query = draw(st.lists(st.tuples(st.sampled_from(QUERIES), texts), max_size=3))
    named = draw(headers())
    if draw(st.integers(0, 9)):
        named = [one for one in named if one[0] != "Content-Type"] + [("Content-Type", b"application/json")]
    body = b""
    if route.body is not None:
        body = draw(st.one_of(BODIES, BODIES, json_texts)).encode(errors="replace")
    told = urlencode([(name, text.encode(errors="replace")) for name, text in query])
    return written(method, f"{path}?{told}", named, body)


def check(door: Reached, address: str, sent: bytes) -> None:
    got = answer(address, sent, method=sent.partition(b" ")[0].decode("latin-1"))
    assert got is None or got[0] not in DEFECTS, got
    assert not door.crashes()


@untimed
@given(page_requests())
@example(asked("POST", "/sign-in", b"&".join([b"a=1"] * 20)))
@example(asked("GET", "/table?name=t", Host="localhost:/?"))
@example(asked("GET", "/metrics", Accept="application/openmetrics-text;version=,"))
@example(asked("GET", "/%0A"))
def test_no_request_is_a_defect_of_the_page(door: Reached, sent: bytes) -> None:
    """S1, U3"""
    check(door, door.page, sent)


@pytest.mark.parametrize("updates", [[], [{"action": "set-properties", "updates": {"a": "b"}}]])
def test_a_table_of_no_schema_is_refused(door: Reached, updates: list[dict[str, object]]) -> None:
    """S1, U3: pyiceberg looks for its schema with ``next()``, whose end kept requests from being answered."""
    body = json.dumps({"requirements": [{"type": "assert-create"}], "updates": updates}).encode()
    path = f"/v1/{door.folder.name}/namespaces/default/tables/none"
    sent = asked("POST", path, body, Content_Type="application/json")
    assert (answer(door.catalog, sent, method="POST", ends=False) or (0,))[0] == 400
    check(door, door.catalog, sent)


@untimed
@given(st.data())
def test_no_request_is_a_defect_of_the_catalog(door: Reached, data: st.DataObject) -> None:
    """S1, U3"""
    check(door, door.catalog, data.draw(catalog_requests(door.folder.name)))


@untimed
@given(st.data(), st.sampled_from(["page", "catalog"]))
def test_no_bytes_are_a_defect(door: Reached, data: st.DataObject, which: str) -> None:
    """S1: request lines that are none, chunks that are none, what comes behind an answer."""
    whole = page_requests() if which == "page" else catalog_requests(door.folder.name)
    whole = st.one_of(whole, st.lists(whole, min_size=2, max_size=3).map(b"".join), st.binary(max_size=200))
    check(door, getattr(door, which), data.draw(damaged(whole)))


BROKEN = {
    "no request line": b"\r\n\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "a version that is none": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"x" * 100,
    "a flood of headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 100_000,
    "a header without end": b"GET / HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 1_000_000,
    "a line without end": b"GET /" + b"a" * 1_000_000,
    "chunks that are none": asked("POST", "/sign-in", Transfer_Encoding="chunked") + b"zz\r\nabc\r\n",
    "a chunk of 2^64": asked("POST", "/sign-in", Transfer_Encoding="chunked") + b"f" * 16 + b"\r\nabc\r\n",
    "two lengths": asked("POST", "/sign-in", Transfer_Encoding="chunked", Content_Length="5") + b"0\r\n\r\nG",
    "more than is awaited": asked("POST", "/sign-in", b"token=x") + b"\x00\xff" * 5_000,
    "a huge body that does not come": asked("POST", "/sign-in", Content_Length="9" * 15) + b"token=x",
    "a huge body": asked("POST", "/sign-in", Content_Length="9" * 15) + b"x" * 1_000_000,
    "an answer without its body, and garbage": asked("POST", "/x", Content_Length="100") + b"x" * 200,
    "a body that is refused before it is read, in chunks that are none": asked(
        "POST", "/v1/config", Transfer_Encoding="chunked"
    )
    + b"zz\r\n" * 10,
    "a HEAD with chunks that are none": asked("HEAD", "/", Transfer_Encoding="chunked") + b"zz\r\n",
    "requests behind each other": asked("GET", "/") * 50,
}


@pytest.mark.parametrize("which", ["page", "catalog"])
@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
def test_bytes_that_are_no_http_request_are_answered_or_cut_off(
    door: Reached, which: str, sent: bytes
) -> None:
    """S1"""
    check(door, getattr(door, which), sent)
