"""METHOD.md's statistics: order, estimate, doubts, verdict, and the simulation that checks them."""
