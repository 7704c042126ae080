"""One file per method; each reads like its paper's method section."""
