"""The exact dynamic programme over device states: free placement, memory limits, replicas and recomputation."""
