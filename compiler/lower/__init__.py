"""Lower a program to its backends: recipe passes, partitions, calibration, buckets."""
