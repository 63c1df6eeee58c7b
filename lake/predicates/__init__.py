"""Predicates on rows: one grammar, one meaning, and the proofs by which readers leave files out.

:mod:`.syntax` parses a text, :mod:`.binding` fits it to the columns of a schema or refuses it, :mod:`.rows`
evaluates it, :mod:`.proofs` says what statistics and partitions prove about it. Everything that selects rows
(filters of reads and ingests, deletions, conditions of a merge, compaction, indexes) goes through these.
"""
