"""The libraries that make INT8 models by calibration: one module each, all in one table."""
