"""Files on any storage: one file as a step sees it, moving it, listing and removing folders.

Nothing here knows tables. From outside: ``storage`` for options, ``places`` for single files.
"""
