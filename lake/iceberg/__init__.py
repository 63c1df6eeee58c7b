"""Publishing into Iceberg tables: the commit steps of every mode, snapshots, manifests, branches,
rollback.
"""
