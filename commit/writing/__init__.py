"""What a job does to write rows: Parquet files in their final place, and one manifest that lists them."""
