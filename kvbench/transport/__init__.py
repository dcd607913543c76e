"""The transport: host-resident windows, delivered to the device ahead of time, byte for byte.

Reading order: window (where bytes lie), prefix (which are stable), plan (what moves when),
order (who waits for whom), ring (where it lands), pipeline (one graph's life), budget (whether
there is room), telemetry (what happened). It knows devices, not models.
"""
