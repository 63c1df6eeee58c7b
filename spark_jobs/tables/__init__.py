"""Reading tables: snapshots, filters, and groups of data files."""
