"""The statistics of METHODOLOGY.md: order, estimate, doubts, verdict, and their simulation."""
