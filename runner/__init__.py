"""plan (pure data) → execute (local or cluster) → journal → verdict."""
