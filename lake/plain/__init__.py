"""Publishing into a tree of plain Parquet files."""
