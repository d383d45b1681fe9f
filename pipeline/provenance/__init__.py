"""Where artifacts came from: what they say inside, seals, signatures, checks of all of these."""
