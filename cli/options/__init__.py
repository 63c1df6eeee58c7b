"""Options that commands share, how their values are parsed, and the session that commands use.

Imports the room ``output``.
"""
