"""One worker host: the folder of its sidecar, the scratch folders of attempts, and sweeping both.

From outside: ``sidecar_folder``, ``loop``. Imports no other room.
"""
