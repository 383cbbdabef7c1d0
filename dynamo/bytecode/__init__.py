"""Bytecode as data: decoded to one instruction set for all Python versions, and assembled again."""
