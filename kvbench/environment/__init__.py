"""The machine: what it is (fingerprint), what it did during a run (telemetry), its noise."""

from kvbench.environment.fingerprint import fingerprint, fingerprint_hash
from kvbench.environment.telemetry import Sample, Sampler, violations

__all__ = ["Sample", "Sampler", "fingerprint", "fingerprint_hash", "violations"]
