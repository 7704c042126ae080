"""The report about runs: tables, figures and claims as HTML, Markdown, CSV and LaTeX."""
