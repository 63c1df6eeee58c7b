"""Manifests as earlier versions have written them again: their doubles had been read as 32-bit floats."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader

from distop.lake.layout.model import Layout
from support.tables.publishing import Table

NUMBERS = pa.schema([("id", pa.int64()), ("x", pa.float64())])


def _rounded(self: DoubleReader, decoder: BinaryDecoder) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(struct.unpack("<d", decoder.read(8))[0]))


def rounded_table(folder: Path, values: Sequence[float]) -> Table:
    """A table by ``x`` with a file for each value, most of them listed under what 32 bits hold of it: the
    manifests of the last ones were not merged, and are exact."""
    layout = Layout.create(NUMBERS, ["x"], {"commit.manifest.min-count-to-merge": "2"})
    table = Table("numbers", f"file://{folder}/numbers", layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DoubleReader, "read", _rounded)
        for number, value in enumerate(values):
            table.append({"id": [number], "x": [value]}, NUMBERS)
    return table
