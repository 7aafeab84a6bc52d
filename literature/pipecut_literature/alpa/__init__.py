"""Alpa's inter-operator dynamic programme (OSDI 2022)."""
