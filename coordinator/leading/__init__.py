"""Leading tables: which coordinator should lead a table, which one does, and the loop that drives it."""
