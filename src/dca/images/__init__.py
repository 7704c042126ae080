"""Images: the one gate that opens and decodes them, crops, hashes, thumbnails; one pass per image."""
