"""What the client returns: operations, tables, batches, members, findings; as plain dataclasses.

From outside: what ``distop.client`` exports. Imports the room ``transport``.
"""
