"""What processes need whatever their part is: tasks that go on whatever fails, and other processes, for calls
that may hang or take too much."""
