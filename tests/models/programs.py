"""All programs by name."""

from __future__ import annotations

from tests.models import generating, language, learning, structures, transforming
from tests.models.research import Research

PROGRAMS: dict[str, type[Research]] = {
    name: kind
    for module in (learning, generating, language, structures, transforming)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Research) and kind is not Research
}
