"""Gates that hold the reference decoder against other programs' implementations of the model."""
