"""Arms: the reference decoder and other programs, behind one protocol, and their supervisor."""
