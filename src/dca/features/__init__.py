"""Stores of image features, on disk and in memory. They know no model and open no image."""
