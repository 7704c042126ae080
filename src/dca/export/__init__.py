"""A finished model for programs without torch: an ONNX file, a script, a page for the browser."""
