"""The errors that a user may meet, all subclasses of `DynamoError`."""

from dynamo.base.errors import (
    BackendError,
    ConstraintViolation,
    DynamoError,
    GuardFailed,
    InternalError,
    InvalidBackend,
    LoadError,
    RecompileError,
    RecompileLimitExceeded,
    Unsupported,
    VerifyError,
)

__all__ = [
    "BackendError", "ConstraintViolation", "DynamoError", "GuardFailed", "InternalError",
    "InvalidBackend", "LoadError",
    "RecompileError", "RecompileLimitExceeded", "Unsupported", "VerifyError",
]
