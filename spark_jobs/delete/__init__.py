"""``delete``: the rows of a table go for which a predicate is true."""
