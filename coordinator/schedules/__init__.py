"""What is done to tables by itself: at which times, on which conditions, and once for each tick."""
