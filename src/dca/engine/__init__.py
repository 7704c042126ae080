"""How a fit runs: images, steps, the training loop, evaluation. Independent of any method's mathematics."""
