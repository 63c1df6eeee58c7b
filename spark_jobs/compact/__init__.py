"""``compact``: small files of a table rewritten into files of a target size."""
