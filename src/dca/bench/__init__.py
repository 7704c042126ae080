"""What the fast implementations cost, beside a plain reference in the same run; `dca bench` prints it."""
