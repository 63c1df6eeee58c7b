"""Leading tables: who should, who does, and the loop that moves a table's operations to their end."""
