"""Rewriting an Iceberg table: which files a delete, a merge, a compaction or an overwrite of partitions takes
away, what is put in their place, and the conflicts between the two.
"""
