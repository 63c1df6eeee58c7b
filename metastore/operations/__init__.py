"""The transactions of an operation, from its start to its end: jobs, claims, runs, steps, parking,
retention.
"""
