"""Plans written for other programs, and read back as these run them: torchtitan, Megatron-LM, DeepSpeed."""
