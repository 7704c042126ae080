"""How a fit runs: its images and features, steps, the loop, resuming, held-out predictions. Knows no method."""
