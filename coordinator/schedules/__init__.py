"""Schedules of tables: operations that start at times or on conditions, once for each tick."""
