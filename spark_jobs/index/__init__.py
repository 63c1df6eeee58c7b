"""``build_index``: a secondary index of one column."""
