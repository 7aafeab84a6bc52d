"""Plans in the formats of other programs: torchtitan and Megatron lists of layers, PipeDream."""
