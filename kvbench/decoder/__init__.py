"""Model files, weights, the engine loop: what an arm of the reference decoder is made of."""
