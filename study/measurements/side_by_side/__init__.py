"""Parts of study/measurements/side_by_side.py, which compares methods with their authors' code."""
