"""Planning scans for engines: which files may hold the rows that a filter of theirs asks for, in pages."""
