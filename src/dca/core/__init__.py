"""Foundations for all other packages: errors and hints, options, random streams, files, progress, device, SQLite."""
