"""Texts of Triton functions with holes, in Jinja's language; one module for each kind."""
