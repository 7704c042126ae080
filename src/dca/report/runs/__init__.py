"""The report about a folder of runs: one page, Markdown, LaTeX, CSV and drawings from the same tables and figures.

A section is one module in `sections/` with a function from the subject to a `Part`: paragraphs, tables and figures.
`sections/__init__.py` lists them in the order of the page. Every number carries the ids of the runs behind it.
"""
