"""What processes need whatever their part is: other processes, for calls that may hang or take too much."""
