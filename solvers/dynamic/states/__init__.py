"""The programme over device states: free placement, memory, modes of a stage."""
