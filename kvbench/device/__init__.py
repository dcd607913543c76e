"""Devices: queues, events, copies, kernels and graphs, behind one interface (api.py).

``cpu`` runs queues as worker threads, or under a deterministic explorer; ``cuda`` is the real
thing. The context (context.py) leases queues and elides waits; the op log (oplog.py) and the
happens-before check (races.py) prove that what was issued is ordered.
"""
