"""Tables and their files: storage, layout, writing, publishing (Iceberg, Delta, plain files), rewriting,
indexes, cleanup.

Nothing is imported here: pyiceberg and pyarrow are loaded by the modules that need them.
"""
