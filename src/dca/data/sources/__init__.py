"""Where labelled images come from: folders, tables, public datasets, the built-in sample."""
