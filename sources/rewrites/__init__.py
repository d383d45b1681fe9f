"""Known rewrites: what is changed in a copy of the model so that it can be captured."""
