"""Devices and links into ns and bytes: times, memory, the prices of stages and plans, tables of them."""
