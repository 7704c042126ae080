"""Parts of study/measurements/compare_with_authors.py, which compares methods with their authors' code."""
