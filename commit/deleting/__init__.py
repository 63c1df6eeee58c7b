"""Taking rows out of an Iceberg table: what a predicate means, the files it concerns, publishing the rest."""
