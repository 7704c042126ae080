"""What images there are and which of them are used. Knows no model."""
