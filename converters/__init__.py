"""One file a format: how it is made and how it is run. The only room that knows frameworks."""
