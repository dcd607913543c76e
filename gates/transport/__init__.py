"""Gates on the transport itself: programs of engine calls, run in-process in many orders.

program     what is done: prefill, decode, shift, reset, clear, save and load, less memory ...
scenario    a program with a model and settings, in which a kind of fault can show
harness     runs a scenario under threads or an explorer seed, and digests what came out
races, schedules, mutants, delivery, flips, structure, recovery, sensitivity    the gates
"""
