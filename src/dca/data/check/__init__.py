"""What is wrong with a dataset, and what to do about it."""
