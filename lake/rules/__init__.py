"""Rules that the rows of a table must keep: the option ``checks`` of tables, and rules as SQL."""
