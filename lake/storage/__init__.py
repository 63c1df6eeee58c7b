"""Files on any storage: one file as a step sees it, moving it, listing and removing folders.

Nothing here knows tables. From outside: ``storage`` for options, ``places`` for single files.
"""

from distop.lake.storage.stored_file import Md5Writer

__all__ = ["Md5Writer"]
