"""``distop executor --check``: what is wrong with the workers of a Spark cluster, before operations find out.

From outside: ``spark_setup.check``. What runs on a worker is ``probe``, sent there by value, and ``facts``,
which the distop of the worker has. Imports the rooms ``launch``, ``sidecar`` and ``host``.
"""
