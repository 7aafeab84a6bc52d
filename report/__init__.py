"""Pictures, pages and traces of a plan that was run on the timeline. Reads, draws, and never prints or solves.

``simulation`` runs a plan, ``content`` collects every number that is shown as plain data, and whatever is drawn is
drawn from that data alone: so the page, its pictures and ``--json`` cannot disagree.
"""
