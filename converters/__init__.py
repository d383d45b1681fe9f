"""One module per format, which converts and runs it; only these packages know the frameworks."""
