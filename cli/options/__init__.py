"""Options that commands share, how their values are parsed, and the session they lead to.

Imports the room ``output``.
"""
