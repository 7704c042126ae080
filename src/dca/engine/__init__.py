"""How a fit runs: images, steps, the loop, evaluation. Knows no method's mathematics."""
