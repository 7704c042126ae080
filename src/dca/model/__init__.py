"""What a finished model is and can do."""
