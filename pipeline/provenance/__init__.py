"""Where artifacts came from: what they say inside, seals, signatures, and checks of all of these."""
