"""One worker host: where its sidecar lives, the scratch folders of attempts, and sweeping both.

From outside: ``sidecar_folder``, ``loop``. Imports no other room.
"""
