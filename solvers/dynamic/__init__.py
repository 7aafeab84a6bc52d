"""Exact dynamic programmes over chains of layers."""
