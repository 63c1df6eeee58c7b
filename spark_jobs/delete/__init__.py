"""``delete``: deletes the rows of a table for which a predicate is true."""
