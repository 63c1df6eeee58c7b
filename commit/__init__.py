"""Publishing what operations produce: Iceberg files and snapshots, and the steps that make them visible.

Nothing is imported here: pyiceberg and pyarrow are loaded by the modules that need them.
"""
