"""Finds files that a table lists under a rounded partition value.

pyiceberg's compiled decoder reads doubles in manifests as 32-bit floats. A program that writes such entries
again stores the rounded values, as earlier versions of distop did when they merged manifests, and filters by
the right value then pass over the file. The bounds of the column in the same entry are bytes, which nobody
rounds: in a partition by the column both are the value of all its rows.
"""

from __future__ import annotations

import struct

import numpy as np
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType

from distop.lake.layout.partitioning import identity_columns


def has_doubles(spec: PartitionSpec, schema: Schema) -> bool:
    """Whether files of a partition spec may be listed under rounded values."""
    return bool(_doubles(spec, schema))


def is_rounded(file: DataFile, spec: PartitionSpec, schema: Schema) -> bool:
    """Whether the bounds of a file prove that it is listed under a rounded value.

    Parameters
    ----------
    spec, schema:
        The partition spec of the file, and a schema that has its columns.
    """
    for position, column in _doubles(spec, schema):
        listed, exact = file.partition[position], _only_value(file, column)
        if listed is None or exact is None or listed == exact:
            continue
        with np.errstate(over="ignore"):
            if listed == float(np.float32(exact)):
                return True
    return False


def _doubles(spec: PartitionSpec, schema: Schema) -> list[tuple[int, int]]:
    """Position in the partition and id of each column of doubles that it is by."""
    known = identity_columns(spec) & schema.field_ids
    return [
        (position, term.source_id)
        for position, term in enumerate(spec.fields)
        if term.source_id in known and isinstance(schema.find_type(term.source_id), DoubleType)
    ]


def _only_value(file: DataFile, column: int) -> float | None:
    least, greatest = ((bounds or {}).get(column) for bounds in (file.lower_bounds, file.upper_bounds))
    # Four bytes are of the time when the column was a float.
    if least is None or least != greatest or len(least) != 8:
        return None
    value: float = struct.unpack("<d", least)[0]
    return value
