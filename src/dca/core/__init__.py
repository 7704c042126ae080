"""Foundations for all other packages: errors, actions, options, seeds, files, progress, device."""
