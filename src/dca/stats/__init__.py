"""Statistics: calibration, intervals, prediction sets (conformal), and paired comparisons."""
