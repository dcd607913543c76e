"""One profile for property tests: no time limits, since test machines are busy machines."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "kvbench", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("kvbench")
