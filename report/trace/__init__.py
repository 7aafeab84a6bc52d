"""The whole run as a trace for Perfetto (ui.perfetto.dev) and ``chrome://tracing``.

Process 1 holds the devices: a row for each rank with its passes, and the memory of each stage as a counter.
Process 2 holds the network: messages between stages and synchronisations. In the Trace Event Format two slices of
one row either lie apart or one inside the other, and importers drop what does not; so whatever may happen at the
same time as another has a row of its own (``report.trace.rows``).
"""

from report.trace.events import microseconds
from report.trace.whole import trace_of

__all__ = ["microseconds", "trace_of"]
