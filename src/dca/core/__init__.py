"""What every other package stands on: errors, options, seeds, files, progress, device."""
