"""Starting an operation: checking the request, planning it with the code of its type, launching it.

The services of a coordinator are here too: the rooms above start operations with them.
"""
