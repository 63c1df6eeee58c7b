"""From "all jobs are done" to "published": hooks, steps, the finishing transaction, parking,
and collection.
"""
