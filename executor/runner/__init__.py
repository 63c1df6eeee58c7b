"""The runner: takes operations, launches their jobs,
follows them to the last; as a process or in a user's program.
"""
