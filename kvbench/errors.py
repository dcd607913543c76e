"""Every error a user can meet, and the exit code it ends in.

    KvbenchError                 one clear line: what, where, what would be allowed
    ├── UsageError          2    a bad option, suite, file or value
    │   └── SettingError    2    one named setting: name, value, allowed range, source
    ├── ExactnessError      4    outputs or bytes moved differ, or cannot be gated
    ├── EnvironmentInvalid  5    the machine broke the comparison
    ├── ArmFailure          6    an arm crashed, hung or answered nonsense
    ├── AssetError          2    a model or text could not be pulled or is damaged
    └── DeviceError         6    a device operation failed
        ├── OutOfDeviceMemory
        └── LeaseError           a borrowed handle was kept across a synchronize

Interruption (Ctrl-C, SIGTERM) ends in 130. Exit codes 1 and 3 belong to
``kvbench ab --require`` (requirement not met, inconclusive).
"""

from __future__ import annotations


class KvbenchError(Exception):
    """Base of all errors meant for a user; ``exit_code`` is what the CLI returns."""

    exit_code = 2


class UsageError(KvbenchError):
    """Something the user wrote cannot be used as it stands."""


class SettingError(UsageError):
    """One named setting has a value outside what is allowed."""

    def __init__(self, name: str, value: object, allowed: str, source: str = "argument") -> None:
        self.name, self.value, self.allowed, self.source = name, value, allowed, source
        super().__init__(f"{name} = {value!r} ({source}) is not allowed: {allowed}")


class AssetError(KvbenchError):
    """A model file or text could not be pulled, verified or read."""


class ExactnessError(KvbenchError):
    """Outputs or bytes moved differ where they must not."""

    exit_code = 4


class EnvironmentInvalid(KvbenchError):
    """The machine's state makes the comparison meaningless."""

    exit_code = 5


class ArmFailure(KvbenchError):
    """An arm's process crashed, hung or broke the protocol."""

    exit_code = 6


class DeviceError(KvbenchError):
    """An operation on a device failed."""

    exit_code = 6


class OutOfDeviceMemory(DeviceError):
    """The device's memory cannot hold an allocation."""


class LeaseError(DeviceError):
    """A handle leased from the device context was used after its lease ended."""
