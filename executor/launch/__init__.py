"""Launching the jobs of an operation: on Spark, or in threads of this process."""
