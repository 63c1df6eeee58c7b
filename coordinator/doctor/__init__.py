"""``distop cluster doctor``: reading a live system, checking its invariants, and putting findings right.

The checks are pure functions of what ``reading`` has read.
"""
