"""The transport: host-resident windows, delivered to the device ahead of time, byte for byte.

Reading order: window (where bytes lie), prefix (which are stable), plan (what moves when),
order (who waits for whom), ring (where it lands), pipeline (one graph's life), staging and budget
(whether there is room, and what if not), telemetry and levels (what happened), simulate (the same
code against a clock). It knows devices, not models.
"""
