"""One experiment: from a specification to a finished folder."""
