"""Pages: one self-contained HTML file about a model, or about several models on the same images.

A page is a list of sections. A section is one module in `sections/` with a function, and a template of the same name
beside it; `sections/__init__.py` lists them in the order of the page. Pages need no network and run no script.
"""
