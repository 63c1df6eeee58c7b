"""The shape of a table, fixed for one operation: schema, partitioning, properties,
and where files are staged.
"""
