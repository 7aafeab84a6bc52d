"""Why a plan is as it is: what bounds it, what every neighbour of it costs, and how two plans differ."""
