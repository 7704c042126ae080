"""Projects: folders of photos that a person turns into a classifier, on the page of `dca app` or by hand."""
