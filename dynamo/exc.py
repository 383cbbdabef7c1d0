"""The errors that a user may meet, all subclasses of `DynamoError`."""

from dynamo.base.errors import (
    BackendError,
    ConstraintViolation,
    DynamoError,
    InternalError,
    InvalidBackend,
    RecompileError,
    RecompileLimitExceeded,
    Unsupported,
    VerifyError,
)

__all__ = [
    "BackendError", "ConstraintViolation", "DynamoError", "InternalError", "InvalidBackend",
    "RecompileError", "RecompileLimitExceeded", "Unsupported", "VerifyError",
]
