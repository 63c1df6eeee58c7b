"""How a job writes rows: Parquet files in their final place, and one manifest that lists them."""
