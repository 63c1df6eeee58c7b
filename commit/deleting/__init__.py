"""Taking rows out of an Iceberg table: the files that a predicate concerns, and publishing the rest."""
