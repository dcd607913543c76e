"""Gates of waits and speculation: bytes, happens-before, and the count of every call site."""
