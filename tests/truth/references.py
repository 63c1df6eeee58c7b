"""What another program makes of the same texts: the values that are expected must be its values, too."""

from collections.abc import Iterator

import duckdb

from truth.readers import values_of
from truth.values import Kind

_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "decimal(9,2)": "DECIMAL(9,2)",
    "decimal(38,0)": "DECIMAL(38,0)",
    "decimal(38,38)": "DECIMAL(38,38)",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "string": "VARCHAR",
    "uuid": "UUID",
}
"""DuckDB's names of the types whose values have a spelling."""


def disagreements(kind: Kind) -> Iterator[str]:
    """The values for whose spelling DuckDB has another value of this type."""
    if kind.name not in _TYPES:
        return
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")  # that of a time without a zone, for distop
        for case in kind.cases:
            if case.value is None or case.text is None or case.refused.issuperset(kind.writers(case)):
                continue
            relation = connection.sql(f"SELECT CAST(? AS {_TYPES[kind.name]}) AS v", params=[case.text])
            (value,) = values_of(relation.to_arrow_table().column("v"), kind.arrow)
            if repr(value) != repr(case.value):
                yield f"{kind.name} {case.name}: {case.value!r} is expected, and DuckDB has {value!r}"
