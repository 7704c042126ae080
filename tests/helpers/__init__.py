"""What several test modules share: small images, miniature datasets, made runs."""
