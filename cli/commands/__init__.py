"""The commands, one module for each group of them. Imports the rooms ``options`` and ``output``, and ``dev``.

A command imports the client, or the service that it runs, when it is called: these load gRPC and more, which
takes longer than everything else in ``--help`` or shell completion.
"""
