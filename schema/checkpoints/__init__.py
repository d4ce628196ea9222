"""Facts on checkpoints that need no torch: headers, and methods of quantization."""
