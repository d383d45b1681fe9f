"""One module per library that quantizes to INT8 by calibration, all in one table."""
